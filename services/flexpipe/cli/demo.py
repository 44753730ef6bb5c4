"""`flexpipe demo`: serve, keep streams in flight, shift from one device to a pipeline of two and back, and account for
every stream. With emulated engines it tells the story of the fleet instead (`fleetstory`).

Exits 0 only if nothing was lost or doubled and every text is the one of an unshifted run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.status import Status
from rich.text import Text

from flexpipe.bus.connection import Bus, connect
from flexpipe.cli import fleetaccount, fleetstory, looking, ordering
from flexpipe.cli.account import Account, ShiftAccount, show
from flexpipe.cli.context import home
from flexpipe.cli.declare import read_deployment
from flexpipe.cli.embedded import EXAMPLES, Embedded, device_kind, embedded
from flexpipe.cli.fleetaccount import FleetAccount
from flexpipe.cli.journals import keep_journals
from flexpipe.cli.judging import Judge
from flexpipe.cli.layouts import Layout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.traffic import Answer, Question, Traffic, ask
from flexpipe.events import shift as shift_events
from flexpipe.events.message import Message
from flexpipe.kernel.errors import Refused, Unavailable
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Phase, ShiftRecord

STREAMS = 7
"""In flight all the time: one more than what must be shown, so that one may be between two questions."""
FLOWING_LIMIT_S = 60.0
TRAFFIC_LIMIT_S = 180.0
CLOSE_LIMIT_S = 60.0
TARGETS = ("pp2", "tp1")
MODELS = {"sglang": "smollm2", "emulated": "emulated"}
TOKENS = {"sglang": 90, "emulated": 200}
STAGGER = 10
"""Each question asks for some more tokens than the one before: streams that all end at once would meet no shift."""

QUESTIONS = (
    "Explain in detail how a steam engine works.",
    "Write a long story about a lighthouse keeper and the sea.",
    "Describe the water cycle step by step.",
    "What should a small town do to prepare for a flood?",
    "Tell me how bread is made, from the field to the table.",
    "Write a letter from a sailor to a friend at home.",
    "Explain why the seasons change, to a curious child.",
)


@dataclass(slots=True)
class _Show:
    """Progress for people; silent where the answer is for a program."""

    console: Console
    status: Status

    def step(self, text: str) -> None:
        """What is going on now."""
        self.status.update(Text(text))
        self.console.print(Text.assemble(("· ", "dim"), text), highlight=False)

    def tell(self, message: Message) -> None:
        """An event of the shift that is being waited for."""
        match message:
            case shift_events.ShiftPhaseChanged():
                self.status.update(f"shift {message.shift}: {message.phase}")
            case shift_events.ShiftCompleted():
                text = f"shift {message.shift} committed after {message.duration_s:.1f} s"
                self.console.print(Text.assemble(("✓ ", "green"), text), highlight=False)
            case shift_events.ShiftRolledBack() | shift_events.ShiftAbandoned():
                text = f"shift {message.shift}: {message.reason}"
                self.console.print(Text.assemble(("✗ ", "red"), text), highlight=False)
            case _:
                pass


async def run_demo(engine: str, console: Console, *, as_json: bool) -> int:
    """The whole story; the exit code. An interrupt ends it and leaves nothing running."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, lambda: task.cancel() if task else None)
    progress = Console(stderr=True) if as_json else console
    device_kind(engine)  # an engine without an example is refused before anything starts
    account: Account | FleetAccount
    try:
        with progress.status("starting") as status:
            view = _Show(progress, status)
            if engine == "emulated":
                account = await fleetstory.tell_story(view.step)
                account.picture(_picture())
            else:
                account = await _tell_story(engine, view)
    except asyncio.CancelledError:
        progress.print("interrupted; everything is stopped")
        return 130
    if as_json:
        print(json.dumps(account.document(), allow_nan=False))
    elif isinstance(account, FleetAccount):
        fleetaccount.show(account, console, _picture())
    else:
        show(account, console)
    return 0 if account.passed else 1


def _picture() -> Path:
    return home() / "fleet-story.svg"


async def _tell_story(engine: str, view: _Show) -> Account:
    deployment = await _example(engine, view.step)
    layout = Layout(folder=home(), device_kind=device_kind(engine))
    async with embedded(layout, view.step) as instance, _operator(instance) as bus:
        first = await _first_start(bus, deployment, view)
        questions = [
            Question(text, TOKENS[engine] + index * STAGGER) for index, text in enumerate(QUESTIONS)
        ]
        shifts, answers = await _shift_under_load(bus, instance, deployment, questions, view)
        view.step("the unshifted run of the same questions")
        unshifted = await _ask_all(instance.router_url, deployment.model.name, questions)
        view.step("judging every stream")
        (entry,) = [
            each for each in await looking.read_routes(bus) if each.deployment == deployment.name
        ]
        async with httpx.AsyncClient(trust_env=False) as http:
            judgements = await Judge(http, entry).judge(answers, unshifted)
        spans = await looking.read_spans(bus, shifts[0].record.order.trace_id)
        await keep_journals(bus, layout, view.step)
    return Account(engine, first, tuple(shifts), tuple(judgements), spans)


async def deploy_example(engine: str, instance: Embedded, tell: Callable[[str], None]) -> None:
    """Declare the engine's example and see to it that it serves. Raises FlexPipeError."""
    deployment = await _example(engine, tell)
    async with _operator(instance) as bus:
        await ordering.store_deployment(bus, deployment)
        tell(f"deploying {deployment.name} as {deployment.baseline} (the engine starts cold)")
        gear = await ordering.resolve(bus, deployment.name, deployment.baseline)
        try:
            told = await ordering.order_shift(
                bus,
                deployment.name,
                gear,
                "flexpipe up",
                lambda _: None,
                wait_s=_limit_s(deployment),
            )
        except Refused as refused:
            # The loop brings back by itself what an earlier run in this folder had served.
            tell(f"{refused}: waiting until it serves")
            await _until_serves(bus, deployment)
            return
    if not isinstance(told, shift_events.ShiftCompleted):
        raise Unavailable(f"{deployment.name} could not be started: {_reason(told)}")


async def _until_serves(bus: Bus, deployment: Deployment) -> None:
    """Some plan of it answers; what its route entry says may be as old as the run before."""

    async def serves() -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            while not await _answers(bus, http, deployment.name):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)

    await ordering.within(
        serves(), _limit_s(deployment), f"{deployment.name} does not serve; see `flexpipe declined`"
    )


async def _answers(bus: Bus, http: httpx.AsyncClient, name: str) -> bool:
    for entry in await looking.read_routes(bus):
        for routed in entry.plans if entry.deployment == name else ():
            if routed.state is PlanState.ACTIVE:
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get(f"{routed.front}/ready")).status_code == httpx.codes.OK
    return False


async def _example(engine: str, tell: Callable[[str], None]) -> Deployment:
    tell(f"model folder for {engine}")
    await ensure_model(MODELS[engine])
    return read_deployment(Path(EXAMPLES[engine]))


@asynccontextmanager
async def _operator(instance: Embedded) -> AsyncIterator[Bus]:
    async with connect(instance.operator, service="operator", name="demo") as bus:
        yield bus


async def _first_start(bus: Bus, deployment: Deployment, view: _Show) -> ShiftRecord:
    view.step(
        f"deploying {deployment.name} as one {deployment.baseline} plan (the engine starts cold)"
    )
    await ordering.store_deployment(bus, deployment)
    gear = await ordering.resolve(bus, deployment.name, deployment.baseline)
    told = await ordering.order_shift(
        bus, deployment.name, gear, "first start", view.tell, wait_s=_limit_s(deployment)
    )
    if not isinstance(told, shift_events.ShiftCompleted):
        raise Unavailable(f"{deployment.name} could not be started: {_reason(told)}")
    return await _closed_record(bus, deployment.name, told.shift)


async def _shift_under_load(
    bus: Bus, instance: Embedded, deployment: Deployment, questions: list[Question], view: _Show
) -> tuple[list[ShiftAccount], list[Answer]]:
    traffic = Traffic(instance.router_url, deployment.model.name, questions, STREAMS)
    shifts = []
    await traffic.start()
    try:
        for words in TARGETS:
            await _until_flowing(traffic, view)
            view.step(f"shifting to {words} under {traffic.in_flight} running streams")
            gear = await ordering.resolve(bus, deployment.name, words)
            in_flight = 0

            def tell(message: Message) -> None:
                nonlocal in_flight
                if (
                    isinstance(message, shift_events.ShiftPhaseChanged)
                    and message.phase is Phase.COMMITTING
                ):
                    in_flight = traffic.in_flight
                view.tell(message)

            told = await ordering.order_shift(
                bus, deployment.name, gear, f"demo: to {words}", tell, wait_s=_limit_s(deployment)
            )
            if not isinstance(told, shift_events.ShiftCompleted):
                raise Unavailable(
                    f"the shift to {words} ended as {type(told).__name__}: {_reason(told)}"
                )
            view.step(f"waiting until the old plan of shift {told.shift} has gone")
            record = await _closed_record(bus, deployment.name, told.shift)
            shifts.append(ShiftAccount(record, in_flight))
        view.step("letting the last streams end")
        return shifts, await traffic.finish(TRAFFIC_LIMIT_S)
    except TimeoutError as error:
        await traffic.abort()
        raise Unavailable(f"streams did not end within {TRAFFIC_LIMIT_S:g} s") from error
    except BaseException:
        await traffic.abort()
        raise


async def _until_flowing(traffic: Traffic, view: _Show) -> None:
    """Every stream has brought tokens: what is shifted now is generation, not waiting."""
    view.step(f"{STREAMS} chat streams: waiting until all bring tokens")

    async def all_flow() -> None:
        while traffic.flowing < STREAMS:  # noqa: ASYNC110 - a handful of looks a second, at most a minute
            await asyncio.sleep(0.05)

    await ordering.within(
        all_flow(), FLOWING_LIMIT_S, f"not all streams brought tokens within {FLOWING_LIMIT_S:g} s"
    )


async def _ask_all(url: str, model: str, questions: list[Question]) -> dict[Question, Answer]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answers = await asyncio.gather(*(ask(client, model, question) for question in questions))
    broken = next((answer.error for answer in answers if not answer.whole), None)
    if broken is not None:
        raise Unavailable(f"the unshifted run itself broke: {broken}")
    return {answer.question: answer for answer in answers}


async def _closed_record(bus: Bus, deployment: str, number: int) -> ShiftRecord:
    """The record once it is closed: old engines gone, memory seen free, reservations released."""
    limit_s = CLOSE_LIMIT_S + TRAFFIC_LIMIT_S

    async def closed() -> ShiftRecord:
        while True:
            record = await looking.read_shift(bus, number, deployment)
            if record.phase is Phase.CLOSED:
                return record
            await asyncio.sleep(0.1)

    return await ordering.within(
        closed(), limit_s, f"shift {number} was not closed within {limit_s:g} s"
    )


def _limit_s(deployment: Deployment) -> float:
    policy = deployment.policy
    return policy.engine_start_limit_s * 2 + policy.hand_over_limit_s * 3 + CLOSE_LIMIT_S


def _reason(told: Message) -> str:
    return str(getattr(told, "reason", "no reason given"))
