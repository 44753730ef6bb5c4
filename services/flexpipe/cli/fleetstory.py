"""`flexpipe demo --engine emulated`: a fleet of 27 GPUs loses cards, and the service shifts by itself.

Everything that happens is said through the same commands and messages that operators use; nobody orders a shift but the
loop, until the operator pulls the hatch. Exits 0 only if no stream was broken, lost or doubled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flexpipe.bus.connection import Bus, connect
from flexpipe.cli import altering, looking, ordering
from flexpipe.cli.arrivals import Arrivals
from flexpipe.cli.chronicle import Chronicle, chronicling
from flexpipe.cli.context import home
from flexpipe.cli.declare import read_deployment
from flexpipe.cli.embedded import Embedded, embedded
from flexpipe.cli.fleetaccount import Episode, FleetAccount, judge
from flexpipe.cli.journals import keep_journals
from flexpipe.cli.layouts import Layout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.picture import Mark, Occupancy
from flexpipe.cli.traffic import Question
from flexpipe.events import hatch, planning
from flexpipe.events import shift as shift_events
from flexpipe.events.fleet import FleetChanged
from flexpipe.events.outgoing import publish
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.ids import derived_id
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Outcome, ShiftRecord

FLEET = Path("ops/examples/fleets/twenty-seven.toml")
LARGE, SMALL = "llama-70b", "llama-7b"
FILES = {name: Path(f"ops/examples/{name}.toml") for name in (LARGE, SMALL)}
FIRST_GEARS = {
    LARGE: "tp4@a1/g0,a1/g1,a1/g2,a1/g3 + tp4@a2/g0,a2/g1,a2/g2,a2/g3",
    SMALL: "tp1@b3/g0",
}
BUSY_PER_S = {LARGE: 1.5, SMALL: 1.5}
"""Requests in an emulated second: more than one four-way plan of the large model answers within its objective."""
CALM_PER_S = {LARGE: 0.5, SMALL: 0.7}
PROMPT_WORDS = {LARGE: 8000, SMALL: 60}
OUTPUT_TOKENS = {LARGE: 16, SMALL: 40}
QUESTIONS = 12
NOTICE_S = 90.0
"""Between notice and preemption of the small model's card, emulated seconds: spot markets give 30 s to two minutes."""
WARM_UP_S, QUIET_S = 60.0, 20.0
"""Emulated seconds: until the load window shows nothing but this load; and in which nothing happens."""
SHIFT_LIMIT_S = 45.0
END_LIMIT_S = 30.0
STREAMS_NEEDED = 200

Step = Callable[[str], None]


async def tell_story(step: Step) -> FleetAccount:
    """The whole story; what came of it. Raises FlexPipeError where it cannot be told to its end."""
    step("model folders (shapes only, no weights)")
    for name in (LARGE, SMALL):
        await ensure_model(f"{name}-emulated")
    deployments = {name: read_deployment(file) for name, file in FILES.items()}
    scale = deployments[LARGE].engine.time_scale
    env = {"FLEXPIPE_ROUTER_LOAD_EVERY_S": f"{5.0 / scale:.3f}"}
    layout = Layout(folder=home(), fleet_file=FLEET, device_kind="emulated", loop=True, env=env)
    began_s = time.time()
    async with (
        embedded(layout, step) as instance,
        connect(instance.operator, service="operator", name="demo") as bus,
        chronicling(bus) as chronicle,
    ):
        story = _Story(bus, instance, chronicle, deployments, scale, step)
        await story.start_both()
        async with story.traffic():
            await story.lose_block_a()
            await story.calm_down()
            await story.pull_the_hatch()
        account = await story.account(began_s)
        await keep_journals(bus, layout, step)
    return account


@dataclass(slots=True)
class _Story:
    bus: Bus
    instance: Embedded
    chronicle: Chronicle
    deployments: dict[str, Deployment]
    scale: float
    step: Step
    arrivals: dict[str, Arrivals] = field(default_factory=dict)
    moments: list[Occupancy] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    declines: list[planning.ShiftDeclined] = field(default_factory=list)

    # -- acts -----------------------------------------------------------------------------------

    async def start_both(self) -> None:
        """Both deployments on their first gears, side by side."""
        for deployment in self.deployments.values():
            await ordering.store_deployment(self.bus, deployment)
        self.step(f"starting {LARGE} on two four-way plans of block a, {SMALL} on one A100")
        await asyncio.gather(*(self._first_start(name) for name in self.deployments))

    async def lose_block_a(self) -> None:
        """Four cards of block a are taken at once; the small model's card gets its notice."""
        await asyncio.sleep(WARM_UP_S / self.scale)
        await self._look("two plans of the large model on block a")
        since = self.chronicle.mark
        self.step("block a loses four cards: `flexpipe fleet preempt a2`")
        lost_s = await self._alter("a2", altering.Alteration(change="preempt"), "a2 preempted")
        taken_out = await self._outcome(LARGE, since, by="executor")
        self.episodes.append(Episode("its plan taken out at once", LARGE, lost_s, None, taken_out))
        large = asyncio.create_task(
            self._shifted_by_itself(LARGE, "four cards of block a preempted", lost_s, since)
        )
        try:
            small = await self._leave_the_small_card()
            await large
        finally:
            large.cancel()
        for record, at_s in ((large.result(), lost_s), small):
            name = record.deployment
            self.step(f"{name} shifted by itself, now on {_places(record)}: {_after(record, at_s)}")
        await self._look("after both shifts")

    async def _leave_the_small_card(self) -> tuple[ShiftRecord, float]:
        since = self.chronicle.mark
        self.step(
            f"the small model's card gets notice: `flexpipe fleet notice b3 --in {NOTICE_S:g}`"
        )
        noticed = altering.Alteration(change="notice", leaves_in_s=NOTICE_S / self.scale)
        told_s = await self._alter("b3", noticed, "b3: notice")
        record = await self._shifted_by_itself(SMALL, "notice for the only card", told_s, since)
        return record, told_s

    async def calm_down(self) -> None:
        """Load falls and the cards come back: nothing is worth a shift, and the system says why."""
        self.step("load falls; the cards are given back: `flexpipe fleet restore a2`")
        for name, arrivals in self.arrivals.items():
            arrivals.rate_per_s = CALM_PER_S[name] * self.scale
        since = self.chronicle.mark
        await self._alter("a2", altering.Alteration(change="restore"), "a2 given back")
        declined = await self.chronicle.until(
            planning.ShiftDeclined,
            lambda each: each.deployment == LARGE,
            f"a proposal for {LARGE} is declined",
            limit_s=SHIFT_LIMIT_S,
            since=since,
        )
        self.declines.append(declined)
        self.step(f"no shift for it: {declined.reason}")
        await asyncio.sleep(QUIET_S / self.scale)

    async def pull_the_hatch(self) -> None:
        """The operator forces the baseline; automation is silent until it is unpinned."""
        since = self.chronicle.mark
        self.step(f"the operator pulls the hatch: `flexpipe downshift {LARGE}`")
        pulled_s = time.time()
        order = hatch.DownshiftDeployment(deployment=LARGE, by="the operator", reason="demo")
        await self.bus.publish(publish(order, derived_id("demo", pulled_s)))
        self.marks.append(Mark(pulled_s, "hatch"))
        record = await self._outcome(LARGE, since)
        self.episodes.append(Episode("hatch", LARGE, pulled_s, None, record))
        self.marks.append(Mark(record.committed_at_s or pulled_s, "baseline in force"))
        entry = await self._entry(LARGE)
        if entry.pin is None:
            raise Unavailable(f"{LARGE} is not pinned after the downshift")
        self.step(
            f"baseline {record.order.target.label} in force and pinned: {_after(record, pulled_s)}"
        )
        await asyncio.sleep(QUIET_S / self.scale)
        await self._look("after the hatch")

    # -- parts ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Requests for both deployments, evenly spaced; at the end all of them are waited for."""
        url = self.instance.router_url
        for name, deployment in self.deployments.items():
            rate = BUSY_PER_S[name] * self.scale
            arrivals = Arrivals(url, deployment.model.name, _questions(name), rate)
            arrivals.start()
            self.arrivals[name] = arrivals
        try:
            yield
            self.step("letting the last streams end")
            for arrivals in self.arrivals.values():
                await arrivals.finish(END_LIMIT_S)
        except TimeoutError as error:
            raise Unavailable(f"streams did not end within {END_LIMIT_S:g} s") from error
        finally:
            for arrivals in self.arrivals.values():
                await arrivals.abort()

    async def account(self, began_s: float) -> FleetAccount:
        """Everything that can be said about the run."""
        self.step("judging every stream against the oracle")
        judged = {
            name: judge(self.deployments[name], self.arrivals[name].answers)
            for name in self.deployments
        }
        told = next(each for each in self.episodes if each.seen_s is not None)
        spans = await looking.read_spans(self.bus, told.record.order.trace_id)
        return FleetAccount(
            time_scale=self.scale,
            seconds=time.time() - began_s,
            deployments=tuple(self.deployments.values()),
            judged=judged,
            episodes=tuple(self.episodes),
            declines=tuple(self.declines),
            moments=tuple(self.moments),
            marks=tuple(self.marks),
            spans=spans,
            streams_needed=STREAMS_NEEDED,
        )

    async def _first_start(self, name: str) -> None:
        gear = await ordering.resolve(self.bus, name, FIRST_GEARS[name])
        told = await ordering.order_shift(
            self.bus, name, gear, "first start", lambda _: None, wait_s=SHIFT_LIMIT_S
        )
        if not isinstance(told, shift_events.ShiftCompleted):
            reason = getattr(told, "reason", "no reason given")
            raise Unavailable(f"{name} could not be started: {reason}")

    async def _alter(self, target: str, wanted: altering.Alteration, mark: str) -> float:
        at_s = time.time()
        await altering.alter(
            self.bus, (target,), wanted, lambda changed: self.step(changed.sentence)
        )
        self.marks.append(Mark(at_s, mark))
        return at_s

    async def _shifted_by_itself(
        self, name: str, what: str, at_s: float, since: int
    ) -> ShiftRecord:
        """The estimator's shift that follows, once it is decided."""
        record = await self._outcome(name, since, by="estimator")
        changed = next(
            (
                each
                for each in self.chronicle.since(since, FleetChanged)
                if each.trace_id == record.order.trace_id
            ),
            None,
        )
        seen_s = None if changed is None else changed.at_s
        self.episodes.append(Episode(what, name, at_s, seen_s, record))
        self.marks.append(Mark(record.order.ordered_at_s, f"{name}: ordered"))
        self.marks.append(Mark(record.committed_at_s or at_s, f"{name}: committed"))
        return record

    async def _outcome(self, name: str, since: int, by: str | None = None) -> ShiftRecord:
        """The record of the first shift after `since` that completed (of that orderer, where one is named)."""
        seen: dict[int, ShiftRecord] = {}

        async def completed() -> ShiftRecord:
            mark = since
            while True:
                done = await self.chronicle.until(
                    shift_events.ShiftCompleted,
                    lambda each: each.deployment == name and each.shift not in seen,
                    f"a shift of {name} completes",
                    limit_s=SHIFT_LIMIT_S,
                    since=mark,
                )
                record = await looking.read_shift(self.bus, done.shift, name)
                seen[done.shift] = record
                if record.outcome is Outcome.COMPLETED and by in (None, record.order.by):
                    return record

        return await ordering.within(
            completed(), SHIFT_LIMIT_S, f"{name} did not shift within {SHIFT_LIMIT_S:g} s"
        )

    async def _look(self, title: str) -> None:
        fleet = await looking.read_fleet(self.bus)
        self.moments.append(Occupancy(title, fleet, await looking.read_routes(self.bus)))

    async def _entry(self, name: str) -> RouteEntry:
        routes = await looking.read_routes(self.bus)
        return next(entry for entry in routes if entry.deployment == name)


def _questions(name: str) -> list[Question]:
    """Prompts of one length, different from their first word on: no answer is another's prefix."""
    words = [f"{a}{b}" for a in "bdgklmnprst" for b in ("a", "e", "i", "o", "u")]
    return [
        Question(
            " ".join(
                words[(index * 7 + place) % len(words)] for place in range(PROMPT_WORDS[name])
            ),
            OUTPUT_TOKENS[name] + index,
        )
        for index in range(QUESTIONS)
    ]


def _after(record: ShiftRecord, since_s: float) -> str:
    committed_s = (record.committed_at_s or since_s) - since_s
    return f"ordered after {record.order.ordered_at_s - since_s:.2f} s, committed after {committed_s:.1f} s"


def _places(record: ShiftRecord) -> str:
    return ", ".join(
        sorted({str(ref) for plan in record.order.target.plans for ref in plan.devices})
    )
