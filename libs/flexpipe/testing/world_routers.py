"""A router without clients: streams are names on plans, moved as `MoveSequences` says and the route entry allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from flexpipe.bus.hearing import Hearing
from flexpipe.events.catalog import parse
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import CommandSuperseded
from flexpipe.events.route import (
    BatchHandedOver,
    CanaryObserved,
    MoveSequences,
    RouteApplied,
    RouterSeat,
)
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Publish,
    Put,
    Started,
    Watched,
    Woken,
)
from flexpipe.model.fence import Fence
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.sequence import MovedSequence, Verdict

RouterFault = Literal["apply-silent", "move-silent", "canary-errors"]
CANARY_EVERY_S: Final = 0.2


@dataclass
class FakeRouter:
    """One router. `streams` maps a stream to its plan ("" while it waits for one)."""

    name: str
    faults: set[RouterFault] = field(default_factory=set)
    streams_wanted: int = 4
    canary_rate: int = (
        1  # requests on a canary each CANARY_EVERY_S; 0 leaves it to synthetic prompts
    )
    apply_s: float = 0.01
    move_s: float = 0.2
    entries: dict[str, RouteEntry] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    streams: dict[str, tuple[str, str]] = field(default_factory=dict)  # → (deployment, plan)
    ended: list[str] = field(default_factory=list)
    highest: dict[str, Fence] = field(default_factory=dict)
    _canaries: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _moves: list[tuple[float, str, MoveSequences]] = field(default_factory=list)
    _applies: list[tuple[float, Entry]] = field(default_factory=list)
    _canary_at_s: float | None = None
    _epochs: int = 0
    _effects: list[Effect] = field(default_factory=list)

    WATCHES = ("routes", "roster")

    def hears(self) -> tuple[Hearing, ...]:
        """What it is mounted with."""
        return (Hearing(MoveSequences, key=self.name),)

    def handle(self, now_s: float, event: Input) -> Effects:
        """One input."""
        self._effects = []
        match event:
            case Started(entries=entries):
                self._register(now_s, entries)
                for entry in entries:
                    self._show(now_s, entry)
            case Watched(entry=entry):
                self._show(now_s, entry)
            case Delivered():
                self._order(now_s, event)
            case _:
                assert isinstance(event, Woken) or event is not None
        self._due(now_s)
        wishes = [at_s for at_s, _ in self._applies]
        wishes += [at_s for at_s, _, _ in self._moves if at_s > now_s]
        wishes += [] if self._canary_at_s is None else [self._canary_at_s]
        return Effects(do=tuple(self._effects), wake_at_s=min(wishes, default=None))

    def snapshot(self) -> str:
        """Fakes are not restarted from snapshots."""
        raise NotImplementedError

    def restore(self, snapshot: str) -> None:
        """Fakes are not restarted from snapshots."""
        raise NotImplementedError

    def on_plan(self, deployment: str, plan: str) -> list[str]:
        """Streams that run on a plan."""
        return sorted(s for s, at in self.streams.items() if at == (deployment, plan))

    def _register(self, now_s: float, entries: tuple[Entry, ...]) -> None:
        seat = RouterSeat(router=self.name, url=f"http://127.0.0.1/{self.name}", since_s=now_s)
        known = [e.revision for e in entries if (e.bucket, e.key) == ("roster", self.name)]
        self._effects.append(
            Put(
                write_id=f"{self.name} {now_s}",
                bucket="roster",
                key=self.name,
                value=seat.canonical_json(),
                expected=max(known, default=0),
            )
        )

    def _show(self, now_s: float, entry: Entry) -> None:
        if entry.bucket == "routes" and entry.value is not None:
            self._applies.append((now_s + self.apply_s, entry))

    def _order(self, now_s: float, delivered: Delivered) -> None:
        order = parse(delivered.type, delivered.message)
        assert isinstance(order, MoveSequences)
        highest = self.highest.get(order.fence.deployment)
        if highest is not None and order.fence.order < highest.order:
            superseded = CommandSuperseded(
                target=self.name, command="MoveSequences", fence=order.fence, highest=highest
            )
            self._effects.append(publish(superseded, delivered.message_id))
            return
        self.highest[order.fence.deployment] = order.fence
        if "move-silent" not in self.faults:
            self._moves.append((now_s + self.move_s, delivered.message_id, order))

    def _due(self, now_s: float) -> None:
        for due in [each for each in self._applies if each[0] <= now_s]:
            self._applies.remove(due)
            self._apply(now_s, due[1])
        for move in [each for each in self._moves if each[0] <= now_s]:
            order = move[2]
            if self.revisions.get(order.fence.deployment, 0) < order.route_revision:
                continue  # the entry it acts on has not arrived yet
            self._moves.remove(move)
            self._effects.append(self._move(order, move[1]))
        if self._canary_at_s is not None and now_s >= self._canary_at_s:
            self._watch_canaries(now_s)

    def _apply(self, now_s: float, entry: Entry) -> None:
        routed = RouteEntry.model_validate_json(entry.value or "")
        name = routed.deployment
        if "apply-silent" in self.faults or entry.revision <= self.revisions.get(name, 0):
            return
        self.entries[name], self.revisions[name] = routed, entry.revision
        there = {each.plan.id for each in routed.plans}
        for stream, (deployment, plan) in sorted(self.streams.items()):
            if deployment == name and plan not in there:
                self.streams[stream] = (name, "")  # its engine is gone: the connection broke
        self._dispatch(routed)
        applied = RouteApplied(
            router=self.name,
            deployment=name,
            revision=entry.revision,
            term=routed.term,
            shift=routed.shift,
        )
        self._effects.append(publish(applied, entry.revision))
        if routed.in_state(PlanState.CANARY) and self._canary_at_s is None:
            self._canary_at_s = now_s + CANARY_EVERY_S

    def _dispatch(self, entry: RouteEntry) -> None:
        """New streams, up to the number wanted, go where the entry says; waiting ones too."""
        name = entry.deployment
        open_plans = sorted(r.plan.id for r in entry.plans if r.admit > 0)
        if not open_plans:
            return
        mine = [s for s, at in self.streams.items() if at[0] == name]
        for number in range(len(mine), self.streams_wanted):
            self.streams[f"{self.name}-{name}-{number}"] = (name, "")
        for index, stream in enumerate(sorted(s for s, at in self.streams.items() if at[1] == "")):
            if self.streams[stream][0] == name:
                self.streams[stream] = (name, open_plans[index % len(open_plans)])

    def _move(self, order: MoveSequences, cause: str) -> Publish:
        name = order.fence.deployment
        sources = {*order.from_plans, *order.lost_plans}
        leaving = sources if not order.finish_all else set(order.lost_plans)
        moved, staying = [], 0
        for stream in sorted(self.streams):
            at = self.streams[stream]
            if at[0] != name or at[1] not in sources:
                continue
            if at[1] not in leaving:
                staying += 1
                continue
            self._epochs += 1
            to = order.to_plans[self._epochs % len(order.to_plans)] if order.to_plans else ""
            self.streams[stream] = (name, to)
            moved.append(
                MovedSequence(
                    sequence=stream,
                    verdict=Verdict.REPLAY,
                    reason="the route entry says so",
                    from_plan=at[1],
                    to_plan=to or None,
                    tokens=7,
                    epoch=self._epochs,
                    pause_ms=12.5,
                )
            )
        answer = BatchHandedOver(
            router=self.name,
            deployment=name,
            fence=order.fence,
            batch=1,
            moved=tuple(moved),
            remaining=0,
            staying=staying,
        )
        return publish(answer, cause)

    def _watch_canaries(self, now_s: float) -> None:
        self._canary_at_s = None
        for name in sorted(self.entries):
            entry = self.entries[name]
            for routed in entry.in_state(PlanState.CANARY):
                self._canary_at_s = now_s + CANARY_EVERY_S
                key = (name, routed.plan.id, entry.shift)
                self._canaries[key] = self._canaries.get(key, 0) + self.canary_rate
                if routed.admit == 0 or not self.canary_rate:
                    continue
                failed = "canary-errors" in self.faults
                seen = CanaryObserved(
                    router=self.name,
                    deployment=name,
                    plan=routed.plan.id,
                    shift=entry.shift,
                    requests=self._canaries[key],
                    errors=1 if failed else 0,
                    reason="HTTP 500 from the engine" if failed else None,
                )
                self._effects.append(publish(seen, now_s))
