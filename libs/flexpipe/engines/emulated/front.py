"""The emulated engine's HTTP: SGLang's own paths, as FlexPipe uses them, behind the gate."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Lifespan, Receive, Scope, Send

from flexpipe.engines.emulated.arguments import EngineArguments
from flexpipe.engines.emulated.asgi import (
    bounded_body,
    call_when_gone,
    close_events,
    open_events,
    send_text,
)
from flexpipe.engines.emulated.scheduler import RequestRefused, Scheduler
from flexpipe.engines.emulated.sequences import Sequence
from flexpipe.engines.emulated.wire import (
    VERSION,
    WEIGHT_VERSION,
    AbortRequest,
    GenerateRequest,
    Malformed,
    OutputChunks,
    Unsupported,
    bad_request_body,
    output_body,
    read_body,
    stream_error_body,
)
from flexpipe.engines.gate import Gate, GateMiddleware

if TYPE_CHECKING:
    from flexpipe.engines.emulated.openai_front import OpenAiFront

Phase = Literal["starting", "up", "stopping"]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class EngineState:
    """What the process tells its front; the process changes it, the front only reads.

    ``fails_requests`` is a fault asked for at the start: every generation answers 500.
    """

    phase: Phase = "starting"
    rank_pids: tuple[int, ...] = ()
    fails_requests: bool = False
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class EventStream(Response):
    """Server-sent events of one sequence; a client that leaves frees its slot at once."""

    def __init__(self, scheduler: Scheduler, sequence: Sequence) -> None:
        self._sequence = sequence
        self._drop = partial(scheduler.drop, sequence)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await open_events(send)
        watch = asyncio.create_task(call_when_gone(receive, self._drop))
        try:
            chunks = OutputChunks(self._sequence)
            finished = False
            while not finished:
                await self._sequence.changed.wait()
                self._sequence.changed.clear()
                finished = self._sequence.finish is not None
                await send_text(send, chunks.next())
            await close_events(send)
        finally:
            watch.cancel()
            self._drop()


class Front:
    """The handlers; one object an engine process."""

    def __init__(self, arguments: EngineArguments, scheduler: Scheduler, state: EngineState):
        self._arguments = arguments
        self._scheduler = scheduler
        self._state = state

    def app(self, gate: Gate, lifespan: Lifespan[Starlette]) -> GateMiddleware:
        """The ASGI application with the gate in front of it."""
        app = Starlette(
            routes=[
                Route("/ready", self.ready),
                Route("/health", self.ready),
                Route("/health_generate", self.ready),
                Route("/generate", self._guarded(self.generate), methods=["POST", "PUT"]),
                Route("/abort_request", self._guarded(self.abort), methods=["POST"]),
                Route("/v1/loads", self.loads),
                Route("/server_info", self.server_info),
                Route("/model_info", self.model_info),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
                Route("/v1/completions", self._guarded(self.completions), methods=["POST"]),
            ],
            lifespan=lifespan,
        )
        return GateMiddleware(app, gate)

    # -- generating --------------------------------------------------------------------------

    async def generate(self, request: Request) -> Response:
        wanted = read_body(GenerateRequest, await bounded_body(request))
        try:
            prompt = wanted.prompt()
            wanted.sampling_params.check_total(len(prompt), self._scheduler.context_tokens)
            sequence = self._scheduler.submit(
                rid=wanted.rid or uuid.uuid4().hex,
                prompt=prompt,
                limits=wanted.sampling_params.limits(),
                priority=wanted.priority or 0,
                logprobs=wanted.logprobs(len(prompt)),
            )
        except (RequestRefused, Unsupported) as error:
            if not wanted.stream:
                raise
            return _refused_stream(str(error))
        if wanted.stream:
            return EventStream(self._scheduler, sequence)
        return await self._whole(request, sequence)

    async def _whole(self, request: Request, sequence: Sequence) -> Response:
        drop = partial(self._scheduler.drop, sequence)
        watch = asyncio.create_task(call_when_gone(request.receive, drop))
        try:
            while sequence.finish is None:
                await sequence.changed.wait()
                sequence.changed.clear()
        finally:
            watch.cancel()
            drop()
        code = sequence.finish.status_code
        if code is None:
            return JSONResponse(output_body(sequence))
        message = sequence.finish.message
        return JSONResponse(bad_request_body(message, code, str(code)), status_code=code)

    async def abort(self, request: Request) -> Response:
        wanted = read_body(AbortRequest, await bounded_body(request))
        if wanted.abort_all:
            self._scheduler.abort_all()
        else:
            self._scheduler.abort(wanted.rid)
        return Response(status_code=200)

    def _guarded(self, handler: Handler) -> Handler:
        """Turn what a handler refuses into SGLang's answers."""

        async def guarded(request: Request) -> Response:
            if self._state.phase != "up":
                text = f"the engine is {self._state.phase}"
                return JSONResponse(bad_request_body(text, 503, "503"), status_code=503)
            if self._state.fails_requests and request.url.path != "/abort_request":
                text = "engine error (asked for by FLEXPIPE_EMULATED_FAULT)"
                return JSONResponse(bad_request_body(text, 500, "500"), status_code=500)
            try:
                return await handler(request)
            except Malformed as error:
                return JSONResponse(bad_request_body(str(error)), status_code=400)
            except (RequestRefused, Unsupported) as error:
                return JSONResponse({"error": {"message": str(error)}}, status_code=400)

        return guarded

    # -- OpenAI's paths -----------------------------------------------------------------------

    @cached_property
    def _openai(self) -> "OpenAiFront":
        # Few engines are ever asked on these paths: their models are built at the first request.
        from flexpipe.engines.emulated.openai_front import OpenAiFront  # noqa: PLC0415

        arguments = self._arguments
        return OpenAiFront(arguments.model_path, arguments.served_model_name, self._scheduler)

    async def models(self, request: Request) -> Response:
        return await self._openai.models(request)

    async def chat(self, request: Request) -> Response:
        return await self._openai.chat(request)

    async def completions(self, request: Request) -> Response:
        return await self._openai.completions(request)

    # -- looking in --------------------------------------------------------------------------

    async def ready(self, _: Request) -> Response:
        return Response(status_code=200 if self._state.phase == "up" else 503)

    async def loads(self, request: Request) -> Response:
        scheduler = self._scheduler
        ranks = self._arguments.tp * self._arguments.pp
        now = datetime.now(UTC)
        table = scheduler.table
        used = scheduler.used_tokens
        load: dict[str, Any] = {
            "timestamp": now.timestamp(),
            "dp_rank": 0,
            "num_running_reqs": scheduler.running,
            "num_waiting_reqs": scheduler.waiting,
            "num_waiting_uncached_tokens": scheduler.waiting_tokens,
            "num_used_tokens": used,
            "num_total_tokens": used + scheduler.waiting_tokens,
            "num_active_tokens": used + scheduler.waiting_tokens,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": scheduler.capacity_tokens,
            "max_running_requests": table.max_running,
            "token_usage": used / scheduler.capacity_tokens,
            "gen_throughput": scheduler.tokens_per_s(),
            "cache_hit_rate": 0.0,
            "utilization": scheduler.running / table.max_running,
            "total_prefill_uncached_tokens": scheduler.prompt_tokens_total,
            "total_prefill_busy_us": 0,
            "decode_moments": None,
        }
        if request.query_params.get("include") != "core":
            load["memory"] = {
                "weight_gb": table.weights_bytes / ranks / 1e9,
                "kv_cache_gb": table.kv_bytes_per_token * table.max_total_tokens / ranks / 1e9,
                "graph_gb": 0.0,
                "token_capacity": table.max_total_tokens,
            }
            others = dict.fromkeys(("grammar", "paused", "retracted", "prealloc_ready"), 0)
            load["queues"] = {"waiting": scheduler.waiting, **others}
        return JSONResponse(
            {
                "timestamp": now.isoformat(),
                "version": VERSION,
                "accelerator": "emulated",
                "num_accelerators": ranks,
                "loads": [load],
            }
        )

    async def server_info(self, _: Request) -> Response:
        arguments = self._arguments
        address = arguments.dist_init_addr
        return JSONResponse(
            {
                "model_path": str(arguments.model_path),
                "served_model_name": arguments.served_model_name,
                "host": arguments.host,
                "port": arguments.port,
                "tp_size": arguments.tp,
                "pp_size": arguments.pp,
                "nnodes": arguments.nnodes,
                "node_rank": arguments.node_rank,
                "dist_init_addr": None if address is None else f"{address[0]}:{address[1]}",
                "disaggregation_mode": "null",
                "max_total_num_tokens": arguments.table.max_total_tokens,
                "max_running_requests": arguments.table.max_running,
                "context_length": arguments.context_tokens,
                "time_scale": arguments.time_scale,
                "rank_pids": list(self._state.rank_pids),
                "startup_time": self._state.started_at.timestamp(),
                "status": "ready" if self._state.phase == "up" else self._state.phase,
                "version": VERSION,
            }
        )

    async def model_info(self, _: Request) -> Response:
        path = str(self._arguments.model_path)
        return JSONResponse(
            {
                "model_path": path,
                "served_model_name": self._arguments.served_model_name,
                "tokenizer_path": path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": WEIGHT_VERSION,
                "load_format": "emulated",
                "disaggregation_mode": "null",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
            }
        )

    async def metrics(self, _: Request) -> Response:
        scheduler = self._scheduler
        gauges = {
            "num_running_reqs": scheduler.running,
            "num_queue_reqs": scheduler.waiting,
            "num_used_tokens": scheduler.used_tokens,
            "max_total_num_tokens": scheduler.capacity_tokens,
            "token_usage": scheduler.used_tokens / scheduler.capacity_tokens,
            "gen_throughput": scheduler.tokens_per_s(),
            "cache_hit_rate": 0.0,
        }
        counters = {
            "prompt_tokens_total": scheduler.prompt_tokens_total,
            "generation_tokens_total": scheduler.generated_tokens_total,
            "num_requests_total": scheduler.requests_total,
            "num_aborted_requests_total": scheduler.aborted_total,
        }
        label = self._arguments.served_model_name.replace("\\", "\\\\").replace('"', '\\"')
        lines = []
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines.append(f"# TYPE sglang:{name} {kind}")
                lines.append(f'sglang:{name}{{model_name="{label}"}} {value}')
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def _refused_stream(message: str) -> Response:
    event = json.dumps(stream_error_body(message), separators=(",", ":"))
    return Response(f"data: {event}\n\ndata: [DONE]\n\n", media_type="text/event-stream")
