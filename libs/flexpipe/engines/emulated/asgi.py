"""Reading bounded bodies, sending events and noticing that a client left, on bare ASGI."""

import json
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.types import Receive, Send

from flexpipe.engines.emulated.wire import MAX_BODY_BYTES, Malformed


async def bounded_body(request: Request) -> bytes:
    """The body, up to MAX_BODY_BYTES. Raises Malformed for a longer one."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise Malformed(f"the body exceeds {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def call_when_gone(receive: Receive, drop: Callable[[], None]) -> None:
    """Wait for the client to leave (its body must have been read), then call ``drop``."""
    while (await receive())["type"] != "http.disconnect":
        pass
    drop()


async def open_events(send: Send) -> None:
    """Begin a 200 of server-sent events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_event(send: Send, body: Mapping[str, object]) -> None:
    await send_text(send, json.dumps(body, separators=(",", ":")))


async def send_text(send: Send, body: str) -> None:
    """An event whose JSON is written already."""
    event = f"data: {body}\n\n".encode()
    await send({"type": "http.response.body", "body": event, "more_body": True})


async def close_events(send: Send) -> None:
    """Send the last event, ``[DONE]``."""
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
