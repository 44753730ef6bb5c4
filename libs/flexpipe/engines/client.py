"""The HTTP that every engine of ours speaks: SGLang's own, with the gate in its front.

Routers generate and relay through it, workers poll, warm and set the gate. It never retries: what an
error means for a sequence or a plan is its caller's decision. Every call has a time limit.

    EngineError
    ├── EngineUnreachable     nobody answered: refused, reset or silent before the answer began
    ├── EngineRefused         4xx: the engine lives and will not do this (status, message)
    │   └── GateClosed        409 of the gate, with the newest route entry it holds
    └── EngineBroke           5xx, a body that ends too early, an answer that is not SGLang's
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx

from flexpipe.engines.gate import GATE_PATH
from flexpipe.engines.generation import (
    Chunk,
    EngineLoad,
    Finish,
    GatePass,
    GateReport,
    SamplingParams,
)
from flexpipe.kernel.errors import FlexPipeError

CONNECT_LIMIT_S: Final = 2.0
"""Engines are on the same machine or one hop away; a connect that takes longer will not come."""

CONTROL_LIMIT_S: Final = 5.0
"""Aborts, loads and gates answer in milliseconds; SGLang's loop may be busy for a second or two."""

SILENCE_LIMIT_S: Final = 120.0
"""Longest wait for the next byte of a generation: a long prompt on a CPU, behind other prompts."""

MAX_STREAMS: Final = 4096
"""Connections of one client pool: above any admission window, below a process's file limit."""

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


@dataclass(frozen=True, slots=True)
class Relayed:
    """An answer passed through: status, headers (hop-by-hop ones left out) and body as it comes."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: AsyncIterator[bytes]


HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length"),
    }
)


def engine_http() -> httpx.AsyncClient:
    """The connection pool for all engines of one process. Never uses a proxy: engines are local."""
    return httpx.AsyncClient(
        trust_env=False,
        limits=httpx.Limits(max_connections=MAX_STREAMS, max_keepalive_connections=64),
        timeout=httpx.Timeout(CONTROL_LIMIT_S, connect=CONNECT_LIMIT_S),
    )


class EngineClient:
    """One engine front. `http` is shared (see `engine_http`) and closed by whoever made it."""

    def __init__(self, http: httpx.AsyncClient, base_url: str) -> None:
        self._http = http
        self.base_url = base_url.rstrip("/")

    async def generate_stream(
        self,
        rid: str,
        input_ids: tuple[int, ...],
        sampling: SamplingParams,
        gate_pass: GatePass,
        *,
        priority: int | None = None,
        traceparent: str | None = None,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> AsyncGenerator[Chunk, None]:
        """Cumulative chunks; the last one carries `finish`, and then the iterator ends.

        Iterate inside `contextlib.aclosing`: closing it closes the connection at once, and the engine
        drops the request. No `rid` may be the beginning of another: SGLang aborts by prefix.
        Raises GateClosed, EngineRefused, EngineUnreachable, EngineBroke.
        """
        body: dict[str, Any] = {
            "rid": rid,
            "input_ids": list(input_ids),
            "sampling_params": sampling.body(),
            "stream": True,
        }
        if priority is not None:
            body["priority"] = priority
        headers = gate_pass.headers()
        if traceparent is not None:
            headers["traceparent"] = traceparent
        stream = self._stream("/generate", json.dumps(body).encode(), headers, silence_limit_s)
        async with stream as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, await _read(response))
            events = _Events()
            async with aclosing(_raw(response)) as parts:
                async for part in parts:
                    for event in events.feed(part):
                        chunk = _chunk(event)
                        yield chunk
                        if chunk.finish is not None:
                            return
        raise EngineBroke(f"{self.base_url} ended the stream without a finish reason")

    async def abort(self, rid: str) -> None:
        """Cut a request after the decode step that runs; its stream ends with finish `abort`."""
        await self._call("POST", "/abort_request", {"rid": rid})

    async def ready(self, limit_s: float = CONTROL_LIMIT_S) -> bool:
        """Whether the engine takes requests. False while it starts, and when nobody answers."""
        try:
            response = await self._send("GET", "/ready", None, limit_s)
        except EngineUnreachable:
            return False
        return response.status_code == 200

    async def loads(self) -> EngineLoad:
        """The engine's own count of what it holds."""
        answer = await self._call("GET", "/v1/loads?include=core", None)
        try:
            ranks = json.loads(answer)["loads"]
            if not ranks:
                raise ValueError("no ranks")
            return EngineLoad(
                running=sum(rank["num_running_reqs"] for rank in ranks),
                waiting=sum(rank["num_waiting_reqs"] for rank in ranks),
                used_tokens=sum(rank["num_used_tokens"] for rank in ranks),
                total_tokens=sum(rank["max_total_num_tokens"] for rank in ranks),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EngineBroke(f"{self.base_url}/v1/loads cannot be read: {error!r}") from error

    async def gate(self) -> GateReport:
        """The state of the gate in this engine's front."""
        return _gate_report(await self._call("GET", GATE_PATH, None))

    async def set_gate(
        self,
        plan: str,
        fence: tuple[int, int, int],
        *,
        admitting: bool,
        route_entry: str | None = None,
    ) -> GateReport:
        """Set the gate; a `route_entry` of None keeps the one given before. Loopback only.

        Raises EngineRefused(409) where the gate holds a higher fence or another plan.
        """
        body = {
            "plan": plan,
            "admitting": admitting,
            "fence": list(fence),
            "route_entry": None if route_entry is None else json.loads(route_entry),
        }
        return _gate_report(await self._call("PUT", GATE_PATH, body))

    @asynccontextmanager
    async def relay(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        gate_pass: GatePass,
        *,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> AsyncGenerator[Relayed, None]:
        """POST bytes to one of the engine's own endpoints and hand its answer through unread.

        Any status comes back as it is, save the gate's refusal, which raises GateClosed. Reading the
        body may raise EngineBroke. Leaving the context closes the connection at once.
        """
        passed = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
        # Bytes go through as they are, so the engine must not compress for a client that did not ask.
        passed = {"accept-encoding": "identity", **_lower(passed), **gate_pass.headers()}
        async with self._stream(path, body, passed, silence_limit_s) as response:
            if response.status_code == 409:
                raw = await _read(response)
                refusal = _refusal(409, raw)
                if isinstance(refusal, GateClosed):
                    raise refusal
                yield Relayed(409, _end_to_end(response), _once(raw))
            else:
                yield Relayed(response.status_code, _end_to_end(response), _raw(response))

    # -- one call -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _stream(
        self, path: str, body: bytes, headers: dict[str, str], silence_limit_s: float
    ) -> AsyncGenerator[httpx.Response, None]:
        request = self._http.build_request(
            "POST",
            self.base_url + path,
            content=body,
            headers={"content-type": "application/json", **headers},
            timeout=httpx.Timeout(silence_limit_s, connect=CONNECT_LIMIT_S),
        )
        try:
            response = await self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise EngineUnreachable(f"{self.base_url}: {_named(error)}") from error
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, limit_s: float
    ) -> httpx.Response:
        try:
            return await self._http.request(
                method,
                self.base_url + path,
                json=body,
                timeout=httpx.Timeout(limit_s, connect=min(limit_s, CONNECT_LIMIT_S)),
            )
        except httpx.TransportError as error:
            raise EngineUnreachable(f"{self.base_url}{path}: {_named(error)}") from error

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        response = await self._send(method, path, body, CONTROL_LIMIT_S)
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.content)
        return response.content


# -- reading what came back ---------------------------------------------------------------------


async def _read(response: httpx.Response) -> bytes:
    try:
        return await response.aread()
    except httpx.TransportError as error:
        raise EngineBroke(f"{response.url} broke off: {_named(error)}") from error


async def _raw(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw())) as parts:
            async for part in parts:
                yield part
    except httpx.TransportError as error:
        raise EngineBroke(f"{response.url} broke off: {_named(error)}") from error


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


class _Events:
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


def _chunk(event: bytes) -> Chunk:
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


def _refusal(status: int, body: bytes) -> EngineError:
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


def _gate_report(body: bytes) -> GateReport:
    try:
        value = json.loads(body)
        entry = value["route_entry"]
        value["route_entry"] = None if entry is None else json.dumps(entry, separators=(",", ":"))
        return GateReport.model_validate(value)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineBroke(f"{GATE_PATH} cannot be read: {error!r}") from error


def _end_to_end(response: httpx.Response) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value) for name, value in response.headers.items() if name not in HOP_BY_HOP
    )


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _named(error: httpx.TransportError) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(text: str) -> str:
    line = " ".join(text.split()) or "no message"
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"
