"""The bus in other people's words: a JSON schema a message and one AsyncAPI 3.0 document, from the catalogue alone.

`make schemas` writes them, a test compares. FastStream's own generator describes the handlers of one process, in no
stable order and with headers that we do not send; this describes the whole bus, from both sides, the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from flexpipe.bus.envelope import CONTENT_TYPE, MESSAGE_ID, SPEC_VERSION
from flexpipe.events import catalog
from flexpipe.events.catalog import Lane, Said
from flexpipe.events.message import words

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE = "asyncapi.yaml"
ASYNCAPI_VERSION = "3.0.0"
API_VERSION = "1"


def write(folder: Path) -> tuple[str, ...]:
    """Write every file, and remove schemas of messages that are no more. Gives the names written."""
    folder.mkdir(parents=True, exist_ok=True)
    files = generated()
    for name, text in files.items():
        (folder / name).write_text(text)
    for stale in sorted(_present(folder) - set(files)):
        (folder / stale).unlink()
    return tuple(files)


def differences(folder: Path) -> tuple[str, ...]:
    """Names of files that are missing, too many or not what would be written."""
    files = generated()
    names = sorted(set(files) | _present(folder))
    return tuple(
        name
        for name in names
        if not (folder / name).is_file() or (folder / name).read_text() != files.get(name)
    )


def generated() -> dict[str, str]:
    """Every file by name, sorted."""
    files = {schema_file(said): _json(json_schema(said)) for said in catalog.MESSAGES}
    files[ASYNCAPI_FILE] = str(yaml.safe_dump(asyncapi(), sort_keys=False, width=120))
    return dict(sorted(files.items()))


def schema_file(said: Said) -> str:
    """`<noun>.<word>.json`."""
    return ".".join(words(said.message)) + ".json"


def json_schema(said: Said) -> dict[str, Any]:
    """What a body is when it is read: unknown fields are let pass."""
    return {
        "$schema": DIALECT,
        "$id": said.ce_type,
        **said.message.model_json_schema(mode="validation"),
    }


def asyncapi() -> dict[str, Any]:
    """Channels, who sends and who receives on them, and the messages."""
    rows = sorted(catalog.MESSAGES, key=lambda said: said.ce_type)
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "FlexPipe's bus",
            "version": API_VERSION,
            "description": "Control messages over NATS, CloudEvents 1.0 in binary mode.",
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {"nats": {"host": "127.0.0.1:4222", "pathname": "", "protocol": "nats"}},
        "channels": {_channel(said): _channel_item(said) for said in rows},
        "operations": {
            f"{service}.{action}.{_channel(said)}": _operation(said, action)
            for said in rows
            for action, services in (("send", said.says), ("receive", said.hears))
            for service in services
        },
        "components": {
            "messages": {_channel(said): _message(said) for said in rows},
            "schemas": {"headers": _headers()},
        },
    }


def _channel(said: Said) -> str:
    return ".".join(words(said.message))


def _channel_item(said: Said) -> dict[str, Any]:
    return {
        "address": said.subject("{key}"),
        "description": _description(said),
        "parameters": {
            "key": {"description": "What the message is about; may have several parts."}
        },
        "messages": {
            said.message.__name__: {"$ref": f"#/components/messages/{_channel(said)}"},
        },
    }


def _description(said: Said) -> str:
    if not said.is_stored:
        return f"Lane {said.lane}, core NATS: no stream keeps it."
    stream = next(stream for stream in catalog.STREAMS if said.lane in stream.lanes)
    lane = f"Lane {said.lane}, stream {stream.name}."
    if said.lane is Lane.URGENT:
        return (
            f"{lane} May be typed by hand: without headers, and with a body that is empty or leaves out "
            "the deployment, which is the key."
        )
    return lane


def _operation(said: Said, action: str) -> dict[str, Any]:
    channel = f"#/channels/{_channel(said)}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{said.message.__name__}"}],
    }


def _message(said: Said) -> dict[str, Any]:
    headers = {} if said.is_beat else {"headers": {"$ref": "#/components/schemas/headers"}}
    return {
        "name": said.ce_type,
        "title": said.message.__name__,
        "summary": " ".join((said.message.__doc__ or "").split()),
        "contentType": CONTENT_TYPE,
        **headers,
        "payload": {"$ref": f"./{schema_file(said)}"},
    }


def _headers() -> dict[str, Any]:
    texts = {
        "ce-id": "Derived from what led to the message.",
        "ce-type": "The message's type; its schema is named by it.",
        "ce-source": "Who says it, /flexpipe/<service>/<name>.",
        "ce-time": "When, RFC 3339.",
        MESSAGE_ID: "Equal to ce-id: JetStream drops repeats by it.",
        "traceparent": "W3C trace context.",
    }
    properties: dict[str, Any] = {
        name: {"type": "string", "description": text} for name, text in texts.items()
    }
    properties["ce-specversion"] = {"const": SPEC_VERSION}
    required = ["ce-id", "ce-type", "ce-source", "ce-time", "ce-specversion", MESSAGE_ID]
    return {"type": "object", "required": required, "properties": properties}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _present(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")} | {
        path.name for path in folder.glob("*.yaml")
    }
