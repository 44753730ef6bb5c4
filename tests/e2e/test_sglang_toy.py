"""A toy Llama on real SGLang from one device to tp2, then to a pipeline over two nodes, under running streams.

Played once for all tests here, because engine starts are what costs. The toy's text is mostly broken UTF-8, so what is
compared are token ids, and the text with them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.stage import Stage, staged, until
from flexpipe.cli import views
from flexpipe.cli.judging import Judge, Judgement
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.traffic import SEQUENCE_HEADER, Answer, Question
from flexpipe.engines.client import EngineClient
from flexpipe.engines.generation import EngineLoad
from flexpipe.events import shift as shift_events
from flexpipe.events.message import Message
from flexpipe.model.sequence import MovedSequence, Verdict
from flexpipe.model.shift import Outcome, Phase, ShiftRecord
from flexpipe.routing.text.tokenizer import TextTokenizer

pytestmark = [pytest.mark.processes, pytest.mark.sglang, pytest.mark.timeout(900)]

LAYOUT = (
    NodeLayout("node-a", slots=2),
    # Two SGLang nodes on one machine open the same ports: each needs an address of its own.
    NodeLayout("node-b", slots=1, address="127.0.0.2"),
)
TP2 = "tp2@node-a/cpu0,node-a/cpu1"
PP2 = "pp2@node-a/cpu0,node-b/cpu0"

TOKENS = 600
"""Twice what a stream has when the hand-over finds it. The top choice is ahead by 5e-4 at each of these tokens, far
more than float32 sums differ by, so texts come out the same whatever runs beside them."""
QUESTIONS = [Question(f"Count the ships in harbour {number}.", TOKENS) for number in range(7)]
LONG = [Question(f"Name every star of figure {number}.", 7000) for number in range(4)]
"""For clients that leave: would run on for minutes if anybody let them."""

STOP_STARTS = 4
STOP_CHARS = 512
"""The longest stop string that the router takes: while it may still match, text waits in the router. One that starts
with a stream asked during the canary has its middle wherever the hand-over then finds the stream."""

CANARY_S = 2.0
"""Streams that begin with the canary bring tokens long before synthetic prompts fill it up and the freeze comes."""
CANARY_SHARE = 0.01
"""None of a dozen requests: which of those that come at once would be the canary's is a matter of milliseconds, and
that one would not be moved. Synthetic prompts try the canary here; real requests do in the demo."""
SHIFT_LIMIT_S = 420.0
STREAMS_LIMIT_S = 120.0
EMPTY_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class StoppedQuestion(Question):
    """A question whose answer ends before a string."""

    stop: str

    def body(self, model: str) -> dict[str, Any]:
        return {**Question.body(self, model), "stop": [self.stop]}


@dataclass(frozen=True)
class Told:
    """What the engine's own endpoint answered through the relay path."""

    status: int
    sequence: str
    answers: list[dict[str, Any]]  # one whole answer, or the chunks of a stream


@dataclass(frozen=True)
class Act:
    """One shift under running streams, and how they came through."""

    record: ShiftRecord
    flowing_at_freeze: int
    in_flight_at_commit: int
    judgements: list[Judgement]
    right: list[Judgement]  # of rightful tokens, by teacher forcing
    forged: list[Judgement]  # of the same with one token changed

    @property
    def moved(self) -> dict[str, MovedSequence]:
        return {each.sequence: each for each in views.moved_only(self.record.moved)}


@dataclass(frozen=True)
class Play:
    """All that happened."""

    tokenizer: TextTokenizer
    unshifted: dict[Question, Answer]
    tp2: Act
    pp2: Act
    stopped: list[Answer]
    relayed: list[Told]  # while a plan gave way
    relayed_by_pipeline: Told
    load_left: EngineLoad
    metrics: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def play(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Play]:
    await ensure_model("toy")
    folder = tmp_path_factory.mktemp("toy") / "instance"
    async with staged(Layout(folder=folder, nodes=LAYOUT)) as stage:
        await stage.apply(
            Path("ops/examples/toy.toml"),
            canary_synthetic_after_s=CANARY_S,
            canary_share=CANARY_SHARE,
        )
        yield await performed(stage)


async def performed(stage: Stage) -> Play:
    """The whole play, from a served tp1 on."""
    answers = await asyncio.gather(*(stage.ask(question) for question in QUESTIONS))
    unshifted = {answer.question: answer for answer in answers}
    stops = [
        StoppedQuestion(each.text, TOKENS, unshifted[each].text[STOP_STARTS:][:STOP_CHARS])
        for each in QUESTIONS[:2]
    ]
    companions: list[asyncio.Task[Any]] = []

    async def join() -> None:
        companions.extend(asyncio.create_task(stage.ask(each)) for each in stops)
        companions.append(asyncio.create_task(relay(stage, QUESTIONS[2], logprobs=True)))
        companions.append(asyncio.create_task(relay(stage, QUESTIONS[3], n=2, stream=True)))

    tp2 = await act(stage, TP2, unshifted, {Phase.CANARY: join})
    joined = await asyncio.gather(*companions)

    leaving = [stage.traffic(LONG[:2], 2), stage.traffic(LONG[2:], 2)]

    async def open_long() -> None:
        for each in leaving:
            await each.start()

    cues = {
        Phase.CANARY: open_long,
        Phase.FREEZING: leaving[0].abort,
        Phase.HANDING_OVER: leaving[1].abort,
    }
    pp2 = await act(stage, PP2, unshifted, cues)
    (routed,) = (await stage.entry()).plans
    engine = EngineClient(stage.http, routed.front)

    async def is_empty() -> bool:
        return (await engine.loads()).is_empty

    await until(is_empty, "the engine holds no request", EMPTY_LIMIT_S)
    load_left = await engine.loads()
    assert stage.deployment is not None
    return Play(
        tokenizer=TextTokenizer.load(Path(stage.deployment.model.path)),
        unshifted=unshifted,
        tp2=tp2,
        pp2=pp2,
        stopped=joined[:2],
        relayed=joined[2:],
        relayed_by_pipeline=await relay(stage, replace(QUESTIONS[0], max_tokens=8), logprobs=True),
        load_left=load_left,
        metrics=(await stage.http.get("/metrics")).text,
    )


async def act(
    stage: Stage,
    gear: str,
    unshifted: dict[Question, Answer],
    cues: Mapping[Phase, Callable[[], Awaitable[None]]],
) -> Act:
    """Shift under running streams, cues given as the shift enters phases; then judge every stream.

    The streams begin with the canary: two cores start an engine twice as fast while nothing else runs.
    """
    traffic = stage.traffic(QUESTIONS, len(QUESTIONS))
    given: dict[Phase, asyncio.Task[None]] = {}
    seen: dict[Phase, tuple[int, int]] = {}

    async def cue(phase: Phase) -> None:
        if phase in cues:
            await cues[phase]()
        if phase is Phase.CANARY:
            await traffic.start()

    def tell(message: Message) -> None:
        if isinstance(message, shift_events.ShiftPhaseChanged):
            seen[message.phase] = (traffic.in_flight, traffic.flowing)
            given[message.phase] = asyncio.create_task(cue(message.phase))

    outcome = await stage.shift(gear, tell, SHIFT_LIMIT_S)
    assert isinstance(outcome, shift_events.ShiftCompleted), outcome
    await asyncio.gather(*given.values())
    assert given.keys() >= cues.keys()
    answers = await traffic.finish(STREAMS_LIMIT_S)
    record = await stage.closed(outcome.shift)
    async with httpx.AsyncClient(trust_env=False) as http:
        judge = Judge(http, await stage.entry())
        right = [replace(unshifted[each], text="told otherwise") for each in QUESTIONS[:2]]
        return Act(
            record=record,
            flowing_at_freeze=seen[Phase.FREEZING][1],
            in_flight_at_commit=seen[Phase.COMMITTING][0],
            judgements=await judge.judge(answers, unshifted),
            right=await judge.judge(right, unshifted),
            forged=await judge.judge([forged(unshifted[QUESTIONS[0]])], unshifted),
        )


def forged(answer: Answer) -> Answer:
    """The same with one token in the middle changed for its neighbour."""
    middle = len(answer.token_ids) // 2
    tokens = [*answer.token_ids]
    tokens[middle] = tokens[middle] - 1 if tokens[middle] > 128 else tokens[middle] + 1
    return replace(answer, token_ids=tokens)


async def relay(stage: Stage, question: Question, **asked: Any) -> Told:
    """The question with something that only the engine's own endpoint can do."""
    body = {**question.body(stage.model), "stream": False, **asked}
    if not body["stream"]:
        del body["stream_options"]
    del body["return_token_ids"]
    answer = await stage.http.post("/v1/chat/completions", json=body, timeout=STREAMS_LIMIT_S)
    if body["stream"]:
        lines = [line.removeprefix("data: ") for line in answer.content.decode().split("\n\n")]
        assert lines[-2:] == ["[DONE]", ""], lines[-2:]
        parts = [json.loads(line) for line in lines[:-2]]
    else:
        parts = [answer.json()]
    return Told(answer.status_code, answer.headers[SEQUENCE_HEADER], parts)


# -- what must hold ------------------------------------------------------------------------------


@pytest.fixture(params=["tp2", "pp2"])
def shifted(play: Play, request: pytest.FixtureRequest) -> Act:
    return play.tp2 if request.param == "tp2" else play.pp2


def test_a_shift_moves_running_streams_and_none_shows_it(shifted: Act) -> None:
    assert shifted.record.outcome is Outcome.COMPLETED
    assert shifted.record.reason is None
    assert shifted.flowing_at_freeze >= 6
    assert shifted.in_flight_at_commit >= 6
    ours = {each.answer.sequence for each in shifted.judgements}
    moved = [each for sequence, each in shifted.moved.items() if sequence in ours]
    assert len(moved) >= 4
    assert all(each.tokens > 0 for each in moved if each.verdict is Verdict.REPLAY)
    assert not [each.reason for each in shifted.judgements if not each.passed]
    print(json.dumps(figures(shifted, moved)))  # for `pytest -rP`


def figures(shifted: Act, moved: list[MovedSequence]) -> dict[str, object]:
    """What a shift took."""
    pauses = sorted(each.pause_ms for each in moved if each.pause_ms is not None)
    return {
        "streams": len(shifted.judgements),
        "identical": sum(each.identical is True for each in shifted.judgements),
        "moved": len(moved),
        "pause_p50_ms": round(median(pauses), 1),
        "pause_max_ms": round(pauses[-1], 1),
        "phases_s": {
            each.phase: round(each.end_s - each.start_s, 2)
            for each in shifted.record.timings
            if each.end_s is not None
        },
        "worst_behind": max(each.worst_behind for each in shifted.right),
    }


def test_the_judge_lets_rightful_texts_pass_and_no_forged_one(shifted: Act) -> None:
    assert all(each.forced and each.passed for each in shifted.right)
    assert [each.passed for each in shifted.forged] == [False]
    assert shifted.forged[0].worst_behind > 0.1


def test_the_pipeline_spans_two_nodes(play: Play) -> None:
    (plan,) = play.pp2.record.order.target.plans
    assert plan.nodes == ("node-a", "node-b")
    assert (plan.tp, plan.pp) == (1, 2)


def test_a_stop_string_across_the_seam_stops(play: Play) -> None:
    for answer in play.stopped:
        assert isinstance(answer.question, StoppedQuestion)
        whole = play.unshifted[Question(answer.question.text, TOKENS)]
        first, last, text = place_of(answer.question.stop, whole, play.tokenizer)
        assert answer.whole
        assert answer.finish == "stop"
        assert answer.text == text
        assert answer.token_ids == whole.token_ids[:last]
        moved = play.tp2.moved[answer.sequence]
        assert first < moved.tokens < last, "the seam lies within the stop string"


def place_of(stop: str, answer: Answer, tokenizer: TextTokenizer) -> tuple[int, int, str]:
    """Tokens before the one that begins a stop string, tokens up to its end, and the text before it."""
    detokenizer = tokenizer.detokenizer()
    seen, lengths = "", [0]
    for token in answer.token_ids:
        seen += detokenizer.feed(token)
        lengths.append(len(seen))
        if stop in seen:
            break
    at = seen.index(stop)
    first = next(index for index, length in enumerate(lengths) if length > at) - 1
    return first, len(lengths) - 1, seen[:at]


def test_clients_that_leave_in_mid_shift_leave_nothing_behind(play: Play) -> None:
    met = [each for each in play.pp2.record.moved if each.verdict is not Verdict.FINISH]
    assert met
    assert play.load_left.is_empty
    assert sum(samples(play.metrics, "flexpipe_router_in_flight")) == 0


def test_what_cannot_be_resumed_ends_where_it_began(play: Play) -> None:
    met = {each.sequence: each.verdict for each in play.tp2.record.moved}
    with_logprobs, of_two = play.relayed
    for each in play.relayed:
        assert each.status == 200
        assert met[each.sequence] is Verdict.FINISH
    assert_likely(with_logprobs, TOKENS)
    assert of_two.answers[-1]["usage"]["completion_tokens"] == 2 * TOKENS
    for index in (0, 1):
        choices = [
            one for part in of_two.answers for one in part["choices"] if one["index"] == index
        ]
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
        assert any(one["delta"].get("content") for one in choices)


def test_the_pipeline_relays_too(play: Play) -> None:
    assert_likely(play.relayed_by_pipeline, 8)


def assert_likely(told: Told, tokens: int) -> None:
    """A greedy answer with the log-probability of each token, each the top choice."""
    assert told.status == 200, told.answers
    (answer,) = told.answers
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == tokens
    content = choice["logprobs"]["content"]
    assert len(content) == tokens
    assert all(each["logprob"] <= 0 for each in content)


def test_no_law_of_the_ledger_was_broken(play: Play) -> None:
    assert sum(samples(play.metrics, "flexpipe_router_ledger_violations_total")) == 0
    assert sum(samples(play.metrics, "flexpipe_router_output_tokens_total")) > 7 * TOKENS


def samples(metrics: str, name: str) -> list[float]:
    """Values of all series of one metric, which must be on the page even where it has none yet."""
    assert f"# TYPE {name.removesuffix('_total')}" in metrics
    lines = [line for line in metrics.splitlines() if line.startswith(name)]
    return [float(line.rpartition(" ")[2]) for line in lines]
