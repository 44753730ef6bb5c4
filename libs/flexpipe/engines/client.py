"""The HTTP that every engine of ours speaks: SGLang's own, with the gate in its front.

Routers generate and relay through it, workers poll, warm and set the gate. It never retries: what an
error means for a sequence or a plan is its caller's decision. Every call has a time limit. Errors are
those of `answers`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx

from flexpipe.engines.answers import (
    EngineBroke,
    EngineError,
    EngineRefused,
    EngineUnreachable,
    Events,
    GateClosed,
    read_chunk,
    read_gate,
    read_refusal,
)
from flexpipe.engines.gate import GATE_PATH
from flexpipe.engines.generation import Chunk, EngineLoad, GatePass, GateReport, SamplingParams

__all__ = [
    "EngineBroke",
    "EngineClient",
    "EngineError",
    "EngineRefused",
    "EngineUnreachable",
    "GateClosed",
    "Relayed",
    "engine_http",
]

CONNECT_LIMIT_S: Final = 2.0
"""Engines are on the same machine or one hop away; a connect that takes longer will not come."""

CONTROL_LIMIT_S: Final = 5.0
"""Aborts, loads and gates answer in milliseconds; SGLang's loop may be busy for a second or two."""

SILENCE_LIMIT_S: Final = 120.0
"""Longest wait for the next byte of a generation: a long prompt on a CPU, behind other prompts."""

IDLE_LIMIT_S: Final = 2.0
"""Engines close an idle connection after five seconds; we do well before, so none is used while it is closed."""

MAX_STREAMS: Final = 4096
"""Connections of one client pool: above any admission window, below a process's file limit."""


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
        limits=httpx.Limits(
            max_connections=MAX_STREAMS,
            max_keepalive_connections=64,
            keepalive_expiry=IDLE_LIMIT_S,
        ),
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
                raise read_refusal(response.status_code, await _read(response))
            events = Events()
            async with aclosing(_raw(response)) as parts:
                async for part in parts:
                    for event in events.feed(part):
                        chunk = read_chunk(event)
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
        return read_gate(await self._call("GET", GATE_PATH, None))

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
        return read_gate(await self._call("PUT", GATE_PATH, body))

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
                refusal = read_refusal(409, raw)
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
            raise read_refusal(response.status_code, response.content)
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


def _end_to_end(response: httpx.Response) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value) for name, value in response.headers.items() if name not in HOP_BY_HOP
    )


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _named(error: httpx.TransportError) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
