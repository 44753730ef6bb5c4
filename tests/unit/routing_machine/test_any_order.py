"""Whatever happens in whatever order, the laws of the routing machine hold."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexpipe.kernel.machine import Effect
from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState, RoutedPlan
from flexpipe.routing.effects import CountTokens, Cut, Dispatch, EndWithError, Probe, Refuse
from flexpipe.routing.inputs import ClientGone, FailureKind, ProbeAnswered
from unit.routing_machine.driver import NEW, OLD, Driver, handed, routed

POLICY = Policy(
    move_batch_tokens=60,
    park_limit_s=20,
    park_slots=4,
    finish_within_tokens=3,
    moves_limit=2,
)
KINDS = list(FailureKind)


@dataclass
class Life:
    """A router service of paper: what runs where, by the machine's own orders."""

    driver: Driver = field(default_factory=Driver)
    at: dict[str, Dispatch] = field(default_factory=dict)  # newest order of each open sequence
    open: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    begun: set[tuple[str, int]] = field(default_factory=set)
    cutting: dict[str, int] = field(default_factory=dict)
    plans: tuple[RoutedPlan, ...] = ()
    shift: int = 1
    step: int = 0
    remaining: dict[str, int] = field(default_factory=dict)  # fence -> what it last said

    def start(self) -> None:
        self.plans = (routed(OLD),)
        self.obey(self.driver.start(*self.plans, policy=POLICY))

    def obey(self, do: tuple[Effect, ...]) -> None:
        """Do what is asked, checking the laws; answers that come at once are fed back at once."""
        for report in handed(do):
            assert report.remaining >= 0
            self.remaining[str(report.fence)] = report.remaining
        for effect in do:
            match effect:
                case Dispatch():
                    self._dispatch(effect)
                case Cut():
                    order = self.at[effect.sequence]
                    assert (order.plan, order.epoch) == (effect.plan, effect.epoch)
                    assert effect.sequence in self.open
                    self.cutting[effect.sequence] = effect.epoch
                case Refuse() | EndWithError():
                    assert effect.sequence in self.open
                    if isinstance(effect, Refuse):
                        assert not [each for each in self.begun if each[0] == effect.sequence]
                    self._close(effect.sequence, "refused")
                case CountTokens(sequences=sequences):
                    known = {key: self.tokens[key] for key in sequences if key in self.open}
                    self.obey(self.driver.count(known))
                case Probe(plan=plan):
                    self.obey(self.driver.feed(ProbeAnswered(plan=plan, alive=True)))
                case _:
                    pass

    def _dispatch(self, order: Dispatch) -> None:
        assert order.sequence in self.open
        plan = next(each for each in self.plans if each.plan.id == order.plan)
        assert plan.admit > 0
        assert plan.state in (PlanState.CANARY, PlanState.ACTIVE)
        assert order.epoch == self.epochs.get(order.sequence, 0) + 1
        self.epochs[order.sequence] = order.epoch
        self.at[order.sequence] = order
        self.cutting.pop(order.sequence, None)

    def _close(self, key: str, finish: str) -> None:
        self.open.discard(key)
        self.cutting.pop(key, None)
        self.obey(self.driver.end(key, finish, self.tokens[key]))

    def arrive(self, pick: int) -> None:
        key = f"s{self.driver.arrivals:03d}"
        self.open.add(key)
        self.tokens[key] = 0
        _, do = self.driver.arrive(
            key,
            priority=pick % 3,
            resumable=pick % 4 != 0,
            prompt=10 + pick % 40,
            max_tokens=30,
        )
        self.obey(do)

    def chosen(self, pick: int) -> str | None:
        keys = sorted(key for key in self.open if key in self.at)
        return keys[pick % len(keys)] if keys else None

    def act(self, action: str, pick: int) -> None:
        """One thing happens."""
        match action:
            case "arrive":
                self.arrive(pick)
            case "time":
                self.obey(self.driver.pass_time([0.01, 0.3, 1.1, 4.0][pick % 4]))
            case "freeze":
                self._route(PlanState.FROZEN, 0, PlanState.ACTIVE, 1, new_shift=True)
                self._move([OLD], [NEW])
            case "undo":
                self._route(PlanState.ACTIVE, 1, PlanState.RETIRING, 0)
                self._move([NEW], [OLD])
            case "lost":
                self.shift += 1
                self.plans = (routed(NEW),)
                self._show()
                self._move([], [NEW], lost=[OLD])
            case "empty":
                self.shift += 1
                self.plans = ()
                self._show()
            case "deadline":
                self._route(PlanState.RETIRING, 0, PlanState.ACTIVE, 1)
                self._move([OLD], [NEW], forced=True)
            case _:
                self._to_one(action, pick)

    def _to_one(self, action: str, pick: int) -> None:
        key = self.chosen(pick)
        if key is None:
            return
        epoch = self.at[key].epoch
        match action:
            case "token":
                self.tokens[key] += 1 + pick % 3
                if (key, epoch) not in self.begun:
                    self.begun.add((key, epoch))
                    self.obey(self.driver.token(key, epoch, self.tokens[key], 5.0))
            case "let go":
                if self.cutting.get(key) == epoch:
                    del self.cutting[key]
                    self.obey(self.driver.cut(key, epoch, self.tokens[key]))
            case "fail":
                kind = KINDS[pick % len(KINDS)]
                self.obey(self.driver.fail(key, epoch, kind, self.tokens[key]))
            case "end":
                self._close(key, "stop")
            case "gone":
                self.open.discard(key)
                self.cutting.pop(key, None)
                self.obey(self.driver.feed(ClientGone(sequence=key, tokens=self.tokens[key])))

    def _route(
        self, old: PlanState, old_admit: float, new: PlanState, new_admit: float, **fields: bool
    ) -> None:
        self.shift += bool(fields.get("new_shift"))
        self.plans = (routed(OLD, old, old_admit), routed(NEW, new, new_admit))
        self._show()

    def _show(self) -> None:
        self.obey(self.driver.route(*self.plans, shift=self.shift, policy=POLICY))

    def _move(self, old: list, new: list, **fields: object) -> None:  # type: ignore[type-arg]
        self.step += 1
        self.obey(self.driver.move(self.step, old=old, new=new, **fields))  # type: ignore[arg-type]

    def calm(self) -> None:
        """No more faults: every engine answers, and time passes."""
        self.plans = (routed(OLD), routed(NEW))
        self.shift += 1
        self._show()
        for _ in range(60):
            for key in sorted(self.open):
                if key not in self.at:
                    continue
                epoch = self.at[key].epoch
                if self.cutting.get(key) == epoch:
                    self.act_on("let go", key)
                elif (key, epoch) not in self.begun:
                    self.act_on("token", key)
            self.obey(self.driver.pass_time(0.6))

    def act_on(self, action: str, key: str) -> None:
        keys = sorted(each for each in self.open if each in self.at)
        self._to_one(action, keys.index(key))


ACTIONS = ["arrive", "token", "let go", "fail", "end", "gone", "time"]
SHIFTS = ["freeze", "undo", "lost", "empty", "deadline"]
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS * 4 + SHIFTS), st.integers(0, 997)),
    min_size=1,
    max_size=80,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 9), STEPS)
def test_orders_are_lawful_and_in_calm_every_hand_over_and_every_sequence_comes_to_its_end(
    running: int, steps: list[tuple[str, int]]
) -> None:
    life = Life()
    life.start()
    for index in range(running):
        life.arrive(index * 7 + 1)
        life.act("token", index)
    for action, pick in steps:
        life.act(action, pick)
        machine = life.driver.machine
        assert machine._places.picture(machine._state.sequences.values()), "moved past the index"
    life.calm()
    newest = f"chat:1.2.{life.step}"
    assert life.remaining.get(newest, 0) == 0
    assert life.step == 0 or newest in life.remaining
    waiting = {key for key in life.open if key not in life.at or not _served(life, key)}
    assert waiting == set()
    for key in sorted(life.open):
        life._close(key, "stop")
    assert '"sequences":{}' in life.driver.machine.snapshot()


def _served(life: Life, key: str) -> bool:
    return (key, life.at[key].epoch) in life.begun


def test_two_hash_seeds_give_the_same_effects_byte_for_byte() -> None:
    here = Path(__file__)
    digests = {
        subprocess.run(
            [sys.executable, "-m", "unit.routing_machine.test_any_order"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(here.parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop()) > 60


def a_busy_life() -> str:
    """The digest of everything a machine says over a few hundred events."""
    life = Life()
    life.start()
    mix = [*ACTIONS * 3, *SHIFTS]
    for index in range(600):
        life.act("arrive" if index % 3 == 0 else mix[index * 7 % len(mix)], index * 31)
    said = "".join(effects.canonical_json() for effects in life.driver.said)
    return hashlib.sha256((said + life.driver.machine.snapshot()).encode()).hexdigest()


if __name__ == "__main__":
    print(a_busy_life())
