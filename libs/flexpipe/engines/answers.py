"""What engines answer, read: chunks, gate reports, and the typed errors of everything that is neither.

Used by `client` alone; its callers catch the errors.

    EngineError
    ├── EngineUnreachable     nobody answered: refused, reset or silent before the answer began
    ├── EngineRefused         4xx: the engine lives and will not do this (status, message)
    │   └── GateClosed        409 of the gate, with the newest route entry it holds
    └── EngineBroke           5xx, a body that ends too early, an answer that is not SGLang's
"""

from __future__ import annotations

import json
from typing import Any, Final

from flexpipe.engines.gate import GATE_PATH
from flexpipe.engines.generation import Chunk, Finish, GateReport
from flexpipe.kernel.errors import FlexPipeError

MAX_EVENT_BYTES: Final = 16 << 20
"""One cumulative chunk; a context of a million tokens stays below it."""

MAX_MESSAGE_CHARS: Final = 500
GATE_REFUSALS: Final = frozenset({"gate_closed", "wrong_plan", "stale_fence"})


class EngineError(FlexPipeError):
    """Root of what can go wrong between us and an engine."""


class EngineUnreachable(EngineError):
    """No answer began within the limit."""


class EngineRefused(EngineError):
    """The engine answered that it will not: its HTTP status and its message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"engine refused ({status}): {message}")


class GateClosed(EngineRefused):
    """The gate let a request not in. `kind` is gate_closed, wrong_plan or stale_fence.

    `route_entry` is the newest route entry the gate was given, as JSON text; None if it has none.
    """

    def __init__(self, kind: str, message: str, route_entry: str | None) -> None:
        self.kind = kind
        self.route_entry = route_entry
        super().__init__(409, message)


class EngineBroke(EngineError):
    """The engine failed, or fell silent, after it had begun to answer. `status` where it answered 5xx."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class Events:
    """Cuts a body into server-sent events. At newlines only: the JSON may hold U+2028 raw."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, part: bytes) -> list[bytes]:
        """The payloads of the `data:` lines that this part completed, without the final `[DONE]`."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineBroke(f"the engine sent an event above {MAX_EVENT_BYTES} bytes")
        payloads = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        return [payload for payload in payloads if payload != b"[DONE]"]


def read_chunk(event: bytes) -> Chunk:
    """One event of `/generate`. Raises the typed error that an event carries."""
    try:
        value = json.loads(event)
        if "error" in value:
            error = value["error"]
            raise _by_status(int(error.get("code", 400)), str(error.get("message", "")))
        meta = value["meta_info"]
        return Chunk(
            output_ids=tuple(value["output_ids"]),
            finish=_finish(meta.get("finish_reason")),
            prompt_tokens=meta.get("prompt_tokens") or 0,
            cached_tokens=meta.get("cached_tokens") or 0,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineBroke(f"a chunk of /generate cannot be read: {error!r}") from error


def _finish(reason: dict[str, Any] | None) -> Finish | None:
    """An abort that carries an HTTP status is an error; one without was asked for."""
    if reason is None:
        return None
    status = reason.get("status_code")
    if status is not None:
        raise _by_status(int(status), str(reason.get("message", "")))
    matched = reason.get("matched")
    return Finish(
        type=reason["type"],
        message=reason.get("message"),
        matched=matched if isinstance(matched, int) else None,
    )


def read_refusal(status: int, body: bytes) -> EngineError:
    """The typed error of an answer with this status. Reads the gate's form and SGLang's three."""
    try:
        value = json.loads(body)
    except ValueError:
        value = body.decode("utf-8", "replace")
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        message = str(error.get("message", error.get("detail", error)))
        kind = error.get("type")
        if status == 409 and kind in GATE_REFUSALS:
            entry = value.get("route_entry")
            text = None if entry is None else json.dumps(entry, separators=(",", ":"))
            return GateClosed(kind, _short(message), text)
    else:
        message = str(error)
    return _by_status(status, message)


def _by_status(status: int, message: str) -> EngineError:
    if status >= 500:
        return EngineBroke(f"engine answered {status}: {_short(message)}", status)
    return EngineRefused(status, _short(message))


def read_gate(body: bytes) -> GateReport:
    try:
        value = json.loads(body)
        entry = value["route_entry"]
        value["route_entry"] = None if entry is None else json.dumps(entry, separators=(",", ":"))
        return GateReport.model_validate(value)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineBroke(f"{GATE_PATH} cannot be read: {error!r}") from error


def _short(text: str) -> str:
    line = " ".join(text.split()) or "no message"
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"
