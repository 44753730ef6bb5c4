"""The envelope of a message: CloudEvents 1.0 in binary mode over NATS headers. Called by the bus alone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from flexpipe.events import catalog
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Delivered, Publish

SPEC_VERSION = "1.0"
MESSAGE_ID = "Nats-Msg-Id"  # what JetStream drops repeats by
CONTENT_TYPE = "application/json"
KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""What can be the last part of a subject: no wildcard, no blank, no empty part."""


def subject_of(publish: Publish) -> str:
    """The subject a message is said on. Raises InvalidInput for a type outside the catalogue or a key that is none."""
    if not KEY.fullmatch(publish.key):
        raise InvalidInput("key", publish.key, "letters, digits and dashes, parts joined by dots")
    return _said(publish.type).subject(publish.key)


def headers_of(publish: Publish, *, source: str, at_s: float) -> dict[str, str]:
    """CloudEvents attributes, the W3C trace context and the id that makes a repeat one message."""
    headers = {
        "ce-specversion": SPEC_VERSION,
        "ce-id": publish.message_id,
        "ce-type": _said(publish.type).ce_type,
        "ce-source": source,
        "ce-time": datetime.fromtimestamp(at_s, UTC).isoformat(),
        "content-type": CONTENT_TYPE,
        MESSAGE_ID: publish.message_id,
    }
    if publish.traceparent is not None:
        headers["traceparent"] = publish.traceparent
    return headers


def open_envelope(headers: dict[str, str] | None, body: bytes, *, fallback_id: str) -> Delivered:
    """A delivery, checked against the catalogue. Raises InvalidInput naming what is wrong with it."""
    fields = {name.lower(): value for name, value in (headers or {}).items()}
    type_ = fields.get("ce-type")
    if type_ is None:
        raise InvalidInput("ce-type", None, "a message carries its CloudEvents type as a header")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(type_, body[:40], f"a body is UTF-8 JSON: {error.reason}") from error
    message = catalog.parse(type_, text)
    return Delivered(
        type=type(message).__name__,
        message=text,
        message_id=fields.get("ce-id") or fields.get(MESSAGE_ID.lower()) or fallback_id,
        traceparent=fields.get("traceparent"),
    )


def _said(type_: str) -> catalog.Said:
    said = catalog.BY_NAME.get(type_) or catalog.BY_TYPE.get(type_)
    if said is None:
        raise InvalidInput("type", type_, "use a message class of the catalogue")
    return said
