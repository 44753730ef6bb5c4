"""The envelope of a message: CloudEvents 1.0 in binary mode over NATS headers. Called by the bus alone.

Two kinds come without: what people type on the urgent lane, and beats. Their subject tells what they are.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from flexpipe.events import catalog
from flexpipe.events.catalog import Lane
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import canonical_json
from flexpipe.kernel.machine import Delivered, Publish

SPEC_VERSION = "1.0"
MESSAGE_ID = "Nats-Msg-Id"  # what JetStream drops repeats by
CONTENT_TYPE = "application/json"
KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""What can be the last part of a subject: no wildcard, no blank, no empty part."""


def subject_of(publish: Publish) -> str:
    """The subject a message is said on. Raises InvalidInput for a type outside the catalogue or a key that is none."""
    return _said(publish.type).subject(key_of(publish.key))


def key_of(key: str) -> str:
    """The key itself. Raises InvalidInput where it would reach other subjects than one."""
    if not KEY.fullmatch(key):
        raise InvalidInput("key", key, "letters, digits and dashes, parts joined by dots")
    return key


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


def open_envelope(
    headers: dict[str, str] | None,
    body: bytes,
    *,
    fallback_id: str,
    subject: str = "",
    stored_at_s: float | None = None,
) -> Delivered:
    """A delivery, checked against the catalogue. Raises InvalidInput naming what is wrong with it."""
    fields = {name.lower(): value for name, value in (headers or {}).items()}
    type_ = fields.get("ce-type")
    if type_ is None:
        type_, body = _bare(subject, body)
    text = _text(type_, body)
    message = catalog.parse(type_, text)
    return Delivered(
        type=type(message).__name__,
        message=text,
        message_id=fields.get("ce-id") or fields.get(MESSAGE_ID.lower()) or fallback_id,
        traceparent=fields.get("traceparent"),
        sent_at_s=stored_at_s,
    )


def _bare(subject: str, body: bytes) -> tuple[str, bytes]:
    """Type and body of a message without headers, where its lane takes such ones."""
    found = catalog.of_subject(subject)
    if found is not None and found[0].lane is Lane.URGENT:
        return found[0].ce_type, _typed_by_hand(found[0].ce_type, found[1], body)
    if found is not None and found[0].is_beat:
        return found[0].ce_type, body
    raise InvalidInput("ce-type", None, "a message carries its CloudEvents type as a header")


def _typed_by_hand(type_: str, deployment: str, body: bytes) -> bytes:
    """The body with the deployment that its subject names; an empty one is `{}`."""
    text = _text(type_, body).strip() or "{}"
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = " ".join(str(error).split())
        raise InvalidInput(type_, text, f"a body is JSON, such as {{}}: {fault}") from error
    if not isinstance(fields, dict):
        raise InvalidInput(type_, text, "a body is a JSON object, such as {}")
    named = fields.setdefault("deployment", deployment)
    if named != deployment:
        raise InvalidInput("deployment", named, f"its subject says {deployment!r}: leave it out")
    try:
        return canonical_json(fields).encode()
    except ValueError as error:  # NaN, or half of a surrogate pair
        raise InvalidInput(type_, text, "a body is JSON, such as {}") from error


def _text(type_: str, body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(type_, body[:40], f"a body is UTF-8 JSON: {error.reason}") from error


def _said(type_: str) -> catalog.Said:
    said = catalog.BY_NAME.get(type_) or catalog.BY_TYPE.get(type_)
    if said is None:
        raise InvalidInput("type", type_, "use a message class of the catalogue")
    return said
