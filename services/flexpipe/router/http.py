"""The router's HTTP: the OpenAI endpoints, models, health, readiness, metrics. Decides nothing about plans.

Called by `app`. A response is a running sequence's outbox on its way to the client; a client that hangs up ends the
sequence at once, in whatever state it is.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flexpipe.router.desk import Desk
from flexpipe.router.outbox import Outbox
from flexpipe.router.relaying import Relaying, RelayRequest
from flexpipe.router.resuming import Generation, Resuming
from flexpipe.router.running import SEQUENCE_HEADER, Running
from flexpipe.router.texts import encoded, now
from flexpipe.routing.effects import ServedModel
from flexpipe.routing.inputs import RequestArrived
from flexpipe.routing.openai import frames, reading, responses
from flexpipe.routing.openai.errors import ErrorBody, ErrorDetail, RequestRefused
from flexpipe.routing.openai.paths import Relayed, Resumable, classify
from flexpipe.routing.openai.prompts import check_length, prompt_ids
from flexpipe.routing.openai.requests import ChatRequest
from flexpipe.routing.openai.requests import Request as OpenAiRequest
from flexpipe.routing.openai.responses import Answer, Endpoint
from flexpipe.routing.text.tokenizer import TextTokenizer

CONTEXT_UNKNOWN: Final = 1 << 20
"""Where neither the model nor the deployment says how long a context may be, the engine does."""

BYTES_A_TOKEN: Final = 4
"""A relayed prompt is not tokenized here; its length is only used to order and to bound."""

Readiness = Callable[[], Awaitable[None]]


class Front:
    """The ASGI app's endpoints over one desk."""

    def __init__(
        self, desk: Desk, ready: Readiness, *, body_limit_bytes: int, keepalive_s: float | None
    ) -> None:
        self._desk = desk
        self._ready = ready
        self._body_limit = body_limit_bytes
        self._keepalive_s = keepalive_s
        self._since = int(time.time())

    def app(self) -> Starlette:
        """The ASGI app."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completion, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
                Route("/ready", self.readiness),
                Route("/metrics", self.metrics),
            ],
            exception_handlers={404: _unknown_path, 405: _wrong_method, 500: _our_fault},
        )

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._generate(request, Endpoint.CHAT)

    async def completion(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._generate(request, Endpoint.COMPLETION)

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`: what can be asked for now."""
        listed = responses.models(self._desk.texts.served, created=self._since)
        return Response(listed.json_bytes(), media_type="application/json")

    async def health(self, _: Request) -> Response:
        """The event loop runs."""
        return JSONResponse({"status": "alive"})

    async def readiness(self, _: Request) -> Response:
        """Requests can be taken."""
        try:
            await self._ready()
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the answer is "not ready"
            return JSONResponse({"status": "not ready", "reason": str(error)}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        """Prometheus. Gauges show what is there now, so that what is gone leaves no series."""
        meters = self._desk.meters
        meters.forget("flexpipe_router_in_flight")
        meters.forget("flexpipe_router_parked")
        counts: dict[tuple[str, str | None], int] = {}
        for each in self._desk.sequences():
            key = (each.deployment, each.plan)
            counts[key] = counts.get(key, 0) + 1
        for (deployment, plan), count in counts.items():
            if plan is None:
                meters.take("flexpipe_router_parked", count, deployment=deployment)
            else:
                meters.take("flexpipe_router_in_flight", count, deployment=deployment, plan=plan)
        return Response(meters.page(), media_type=CONTENT_TYPE_LATEST)

    # -- one request --------------------------------------------------------------------------

    async def _generate(self, request: Request, endpoint: Endpoint) -> Response:
        try:
            raw = await self._body(request)
            self._desk.check_room()
            wanted = _read(endpoint, raw)
            model = self._desk.texts.find(wanted.model)
            text = await self._desk.texts.tokenizer(model)
            sequence = uuid.uuid4().hex
            match classify(wanted, text.sampling_defaults):
                case Resumable() as asked:
                    running, arrived = await self._resumed(sequence, model, wanted, asked, text)
                case Relayed(reason=reason):
                    running, arrived = self._relayed(sequence, model, wanted, str(reason), request)
        except RequestRefused as refusal:
            return refused(refusal)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        self._desk.begin(running, arrived)
        return SequenceResponse(running, self._keepalive_s)

    async def _resumed(
        self,
        sequence: str,
        model: ServedModel,
        wanted: OpenAiRequest,
        asked: Resumable,
        text: TextTokenizer,
    ) -> tuple[Running, RequestArrived]:
        chars = _chars(wanted)
        prompt = await encoded(lambda: prompt_ids(wanted, text, now=now()), chars)
        chat = isinstance(wanted, ChatRequest)
        context = model.context_tokens or text.context_tokens or CONTEXT_UNKNOWN
        param = "messages" if chat else "prompt"
        max_tokens = check_length(len(prompt), asked.max_tokens, context, param=param)
        prefix = "chatcmpl" if chat else "cmpl"
        generation = Generation(
            prompt=prompt,
            max_tokens=max_tokens,
            asked=asked,
            answer=Answer(
                endpoint=Endpoint.CHAT if chat else Endpoint.COMPLETION,
                id=f"{prefix}-{sequence}",
                created=int(time.time()),
                model=wanted.model,
            ),
            stream=bool(wanted.stream),
            include_usage=wanted.include_usage,
            return_token_ids=bool(wanted.return_token_ids),
        )
        running = Resuming(self._desk.house, sequence, model.deployment, generation, text)
        self._desk.meters.take(
            "flexpipe_router_prompt_tokens_total", len(prompt), deployment=model.deployment
        )
        return running, RequestArrived(
            sequence=sequence,
            deployment=model.deployment,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            resumable=True,
            priority=wanted.priority or 0,
        )

    def _relayed(
        self,
        sequence: str,
        model: ServedModel,
        wanted: OpenAiRequest,
        reason: str,
        request: Request,
    ) -> tuple[Running, RequestArrived]:
        raw: bytes = request.state.raw
        relay = RelayRequest(
            path=request.url.path,
            body=raw,
            headers=tuple(request.headers.items()),
            stream=bool(wanted.stream),
        )
        running = Relaying(self._desk.house, sequence, model.deployment, relay)
        context = model.context_tokens or CONTEXT_UNKNOWN
        return running, RequestArrived(
            sequence=sequence,
            deployment=model.deployment,
            prompt_tokens=len(raw) // BYTES_A_TOKEN,
            max_tokens=wanted.limit or context,
            resumable=False,
            reason=reason,
            priority=wanted.priority or 0,
        )

    async def _body(self, request: Request) -> bytes:
        """The body, bounded. Raises RequestRefused (413, 415)."""
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            message = f"content-type: {kind[:80]!r} is not read here; send application/json"
            raise _refusal(415, message, "unsupported_media_type")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._body_limit:
                message = f"the body exceeds {self._body_limit} bytes; shorten the request"
                raise _refusal(413, message, "request_too_large")
        request.state.raw = bytes(body)
        return request.state.raw  # type: ignore[no-any-return]


class SequenceResponse(Response):
    """A running sequence's outbox, sent as it comes. Returns when it is over or its client has gone."""

    def __init__(self, running: Running, keepalive_s: float | None) -> None:
        super().__init__()
        self._running = running
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        listening = asyncio.create_task(_until_disconnect(receive))
        over = asyncio.create_task(self._running.over.wait())
        try:
            await asyncio.wait({sending, listening, over}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and not listening.done():
                # All is said. Who does not read it keeps its connection no longer than an engine may be silent.
                await asyncio.wait(
                    {sending, listening},
                    timeout=self._running.house.silence_limit_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not sending.done():
                self._running.client_gone()
        finally:
            # Also where the server takes this task away: nothing may run on for nobody.
            self._running.client_gone()
            for task in (sending, listening, over):
                task.cancel()
            await asyncio.wait({sending, listening, over})
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        outbox = self._running.outbox
        await self._opened(outbox)
        opening = await outbox.opening()
        headers = [(name.encode(), value.encode("latin-1")) for name, value in opening.headers]
        try:
            await send(
                {"type": "http.response.start", "status": opening.status, "headers": headers}
            )
            async for part in outbox.parts(self._ping_s(opening.status), frames.PING):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except OSError:
            return  # the client has gone while it was written to

    async def _opened(self, outbox: Outbox) -> None:
        """With a keep-alive, a stream that has nothing to say for that long is opened with a comment."""
        if self._keepalive_s is None or not isinstance(self._running, Resuming):
            return
        try:
            async with asyncio.timeout(self._keepalive_s):
                await outbox.opening()
        except TimeoutError:
            self._running.open_early()
            if outbox.opened:
                outbox.write(frames.PING)

    def _ping_s(self, status: int) -> float | None:
        """Only streams are kept alive: a comment in a JSON body would be none."""
        streams = isinstance(self._running, Resuming) and self._running.streams
        return self._keepalive_s if streams and status == 200 else None


def refused(refusal: RequestRefused) -> Response:
    """A refusal in OpenAI's shape; a 503 says when to come again."""
    headers = {"retry-after": "5"} if refusal.status == 503 else {}
    return Response(
        refusal.body.model_dump_json(),
        status_code=refusal.status,
        media_type="application/json",
        headers=headers,
    )


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _read(endpoint: Endpoint, raw: bytes) -> OpenAiRequest:
    match endpoint:
        case Endpoint.CHAT:
            return reading.read_chat(raw)
        case Endpoint.COMPLETION:
            return reading.read_completion(raw)


def _chars(wanted: OpenAiRequest) -> int:
    if isinstance(wanted, ChatRequest):
        return sum(len(str(message.content)) for message in wanted.messages)
    return len(wanted.prompt) if isinstance(wanted.prompt, str) else len(str(wanted.prompt))


def _refusal(status: int, message: str, code: str) -> RequestRefused:
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = ErrorDetail(message=message, type=kind, param=None, code=code)
    return RequestRefused(status, detail)


async def _unknown_path(request: Request, _: Exception) -> Response:
    message = f"{request.method} {request.url.path[:200]} is not served here"
    return refused(_refusal(404, message, "unknown_url"))


async def _wrong_method(request: Request, _: Exception) -> Response:
    message = f"{request.url.path[:200]} does not answer to {request.method}"
    return refused(_refusal(405, message, "method_not_allowed"))


async def _our_fault(_: Request, __: Exception) -> Response:
    body = ErrorBody(
        error=ErrorDetail(
            message="the router failed on this request",
            type="server_error",
            param=None,
            code="internal_error",
        )
    )
    return Response(body.model_dump_json(), status_code=500, media_type="application/json")


__all__ = ["SEQUENCE_HEADER", "Front", "SequenceResponse", "refused"]
