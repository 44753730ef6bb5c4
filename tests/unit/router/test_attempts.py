"""A running sequence told to go on elsewhere at the worst moments: what its client gets, what the machine is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from flexpipe.kernel.machine import Input
from flexpipe.router.http import SequenceResponse
from flexpipe.router.relaying import Relaying, RelayRequest
from flexpipe.router.resuming import Generation, Resuming
from flexpipe.router.running import House, Running
from flexpipe.routing.effects import Cut, Dispatch
from flexpipe.routing.inputs import AttemptFailed, ClientGone, SequenceCut, SequenceEnded
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.openai.paths import Resumable, Sampling
from flexpipe.routing.openai.responses import Answer, Endpoint
from flexpipe.routing.text.tokenizer import TextTokenizer
from flexpipe.telemetry.meters import Meters
from unit.routing.tiny_model import write_model_folder

OUTPUT = (40, 41, 42, 43)
SAMPLING = Sampling(temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0, seed=None, logit_bias={})


class Paper(httpx.AsyncBaseTransport):
    """Engines of paper: `silent` hosts answer nothing, `slow` ones give one piece and no more."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.slow: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.first = asyncio.Event()  # somebody asked

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host, path = request.url.host, request.url.path
        self.asked.append((host, path))
        self.first.set()
        if path == "/abort_request":
            return httpx.Response(200)
        if host in self.silent:
            await asyncio.Event().wait()
        pieces = self._tokens(request) if path == "/generate" else self._bytes(host)
        return httpx.Response(200, stream=Body(pieces), headers={"content-type": "text/plain"})

    async def _tokens(self, request: httpx.Request) -> AsyncIterator[bytes]:
        body = json.loads(request.content)
        count = body["sampling_params"]["max_new_tokens"]
        for end in range(1, count + 1):
            finish = {"type": "length"} if end == count else None
            chunk = {"output_ids": OUTPUT[:end], "meta_info": {"finish_reason": finish}}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            await asyncio.sleep(0)

    async def _bytes(self, host: str) -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        if host in self.slow:
            await asyncio.Event().wait()
        yield b"data: last\n\n"


class Body(httpx.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece


class Scene:
    """One sequence, engines of paper, and what the machine is told."""

    def __init__(self, *, unread_frames: int = 16, silence_limit_s: float = 5.0) -> None:
        self.engines = Paper()
        self.told: list[Input] = []
        http = httpx.AsyncClient(transport=self.engines)
        meters = Meters("flexpipe_router_")
        self.house = House(http, self.told.append, meters, unread_frames, silence_limit_s)

    def of(self, kind: type[Input]) -> list[Input]:
        return [each for each in self.told if isinstance(each, kind)]


def a_resumed(scene: Scene, folder: Path, *, stream: bool = False) -> Resuming:
    asked = Resumable(
        sampling=SAMPLING,
        max_tokens=len(OUTPUT),
        min_tokens=0,
        stops=(),
        stop_token_ids=frozenset(),
        ignore_eos=True,
        priority=None,
    )
    wanted = Generation(
        prompt=(10, 11, 12),
        max_tokens=len(OUTPUT),
        asked=asked,
        answer=Answer(endpoint=Endpoint.COMPLETION, id="cmpl-1", created=1, model="toy"),
        stream=stream,
        include_usage=False,
        return_token_ids=True,
    )
    return Resuming(scene.house, "s1", "toy", wanted, TextTokenizer.load(folder))


def a_relayed(scene: Scene) -> Relaying:
    wanted = RelayRequest(path="/v1/completions", body=b"{}", headers=(), stream=True)
    return Relaying(scene.house, "s1", "toy", wanted)


def to(plan: str, epoch: int, cause: MoveCause = MoveCause.CHOSEN) -> Dispatch:
    return Dispatch(
        sequence="s1", plan=plan, front=f"http://{plan}", epoch=epoch, fence="1.1.0", cause=cause
    )


async def read(running: Running) -> bytes:
    """The whole body."""
    async with asyncio.timeout(5):
        await running.outbox.opening()
        return b"".join([part async for part in running.outbox.parts(None, b"")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("before", [1, 2, 3])
async def test_attempts_that_were_replaced_before_they_began_cost_no_token(
    folder: Path, before: int
) -> None:
    """The machine may order several attempts before any of them has run a single step."""
    scene = Scene()
    running = a_resumed(scene, folder)
    for epoch in range(1, before + 2):
        running.dispatch(to(f"p{epoch}", epoch))
    body = json.loads(await read(running))
    assert body["choices"][0]["token_ids"] == list(OUTPUT)
    assert scene.of(SequenceEnded) == [
        SequenceEnded(
            sequence="s1",
            epoch=before + 1,
            finish="length",
            tokens=len(OUTPUT),
            segments=((before + 1, f"p{before + 1}", 0, len(OUTPUT)),),
        )
    ]


async def test_an_attempt_replaced_while_its_predecessor_closes_costs_no_token(
    folder: Path,
) -> None:
    scene = Scene()
    scene.engines.silent.add("p1")
    running = a_resumed(scene, folder)
    running.dispatch(to("p1", 1))
    async with asyncio.timeout(5):
        await scene.engines.first.wait()
    running.dispatch(to("p2", 2))
    await asyncio.sleep(0)  # it waits for the first one's end
    running.cut(Cut(sequence="s1", plan="p2", epoch=2))
    running.dispatch(to("p3", 3))
    body = json.loads(await read(running))
    assert body["choices"][0]["token_ids"] == list(OUTPUT)
    assert [each.epoch for each in scene.told if isinstance(each, SequenceCut)] == [2]
    ended = scene.of(SequenceEnded)[0]
    assert isinstance(ended, SequenceEnded)
    assert ended.finish == "length"


@pytest.mark.parametrize("order", ["cut", "dispatch"])
async def test_a_relayed_stream_whose_client_has_content_is_never_begun_anew(order: str) -> None:
    """The machine may not have heard of the first byte yet when it wants the sequence elsewhere."""
    scene = Scene()
    scene.engines.slow.add("p1")
    running = a_relayed(scene)
    running.dispatch(to("p1", 1))
    async with asyncio.timeout(5):
        await running.outbox.opening()
    if order == "cut":
        running.cut(Cut(sequence="s1", plan="p1", epoch=1))
    running.dispatch(to("p2", 2, MoveCause.DEADLINE))
    body = await read(running)
    assert body.count(b"first") == 1
    assert b"engine_failed" in body
    assert [each.finish for each in scene.told if isinstance(each, SequenceEnded)] == ["error"]
    assert not scene.of(AttemptFailed)
    assert ("p2", "/v1/completions") not in scene.engines.asked


async def test_a_relayed_request_without_content_is_begun_anew_elsewhere() -> None:
    scene = Scene()
    scene.engines.silent.add("p1")
    running = a_relayed(scene)
    running.dispatch(to("p1", 1))
    async with asyncio.timeout(5):
        await scene.engines.first.wait()
    running.cut(Cut(sequence="s1", plan="p1", epoch=1))
    running.dispatch(to("p2", 2))
    assert await read(running) == b"data: first\n\ndata: last\n\n"
    assert [each.finish for each in scene.told if isinstance(each, SequenceEnded)] == ["stop"]


@pytest.mark.parametrize("path", ["resume", "relay"])
async def test_a_client_that_does_not_read_counts_as_gone_after_a_while(
    folder: Path, path: str
) -> None:
    scene = Scene(unread_frames=1, silence_limit_s=0.05)
    running = a_relayed(scene) if path == "relay" else a_resumed(scene, folder, stream=True)
    running.dispatch(to("p1", 1))
    async with asyncio.timeout(5):
        await running.over.wait()
    assert isinstance(scene.told[-1], ClientGone)
    assert not scene.of(AttemptFailed)


async def test_a_client_that_does_not_read_the_end_loses_its_connection(folder: Path) -> None:
    scene = Scene(silence_limit_s=0.05)
    running = a_resumed(scene, folder)
    response = SequenceResponse(running, None)
    running.dispatch(to("p1", 1))

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        await response({"type": "http"}, never, never)  # type: ignore[arg-type]
    assert [each.finish for each in scene.told if isinstance(each, SequenceEnded)] == ["length"]
