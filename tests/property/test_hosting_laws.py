"""Laws of the worker's brain that hold whatever it is told, in whatever order, however often."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.events.plan import EngineFailed, EngineReady, PlanStopped
from flexpipe.hosting import effects, inputs
from flexpipe.hosting.memory import Stage
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.machine import Effects, Input
from unit.hosting.bench import GB, Bench, asked, fence, plan, said

PLANS = (
    *(plan("a0"), plan("a1"), plan("a0+a1"), plan("a0+a1", rank_bytes=GB)),
    *(plan("a1", "b0"), plan("b0+a0"), plan("a0+a1+b0+b1")),
)
COMMANDS = ("start", "stop", "gate", "warm", "drain")
REPORTS = ("up", "ready", "silent", "exited", "gone", "linger", "gate", "drained")
MOVES = st.one_of(
    st.tuples(st.sampled_from(COMMANDS), st.sampled_from(PLANS), st.integers(1, 9)),
    st.tuples(st.sampled_from(REPORTS), st.integers(0, 5), st.integers(1, 9)),
    st.tuples(
        st.sampled_from(("withdraw", "kill", "return")), st.sampled_from(("slot-0", "slot-1"))
    ),
    st.tuples(st.just("wait"), st.integers(1, 40)),
)


class Watched(Bench):
    """A bench that keeps every input beside its time, and checks the laws after each."""

    def feed(self, event: Input):  # type: ignore[no-untyped-def]
        self.__dict__.setdefault("seen", []).append((self.now_s, event))
        gathered = super().feed(event)
        hosted = self.worker.hosted
        assert sum(each.stage is Stage.STARTING for each in hosted) <= 1
        for slot in ("slot-0", "slot-1"):
            held = sum(each.claim(slot) for each in hosted if each.holds_memory)
            assert held <= 4 * GB, "a device never holds more than it has"
        groups = [each.group for each in hosted]
        assert len(set(groups)) == len(groups)
        kinds = [type(each) for each in gathered]
        if effects.LaunchRanks in kinds:
            assert kinds.index(effects.Keep) < kinds.index(effects.LaunchRanks)
        return gathered


def play(bench: Watched, move: tuple) -> None:  # type: ignore[type-arg]
    match move:
        case ("start", wanted, step):
            bench.start(wanted, fence(step), front_port=31_000 + 8 * PLANS.index(wanted))
        case ("stop", wanted, step):
            bench.stop(wanted, fence(step))
        case ("gate", wanted, step) if not isinstance(wanted, int):
            bench.gate(wanted, fence(step), admitting=step % 2 == 0)
        case ("warm", wanted, step):
            bench.warm(wanted, fence(step))
        case ("drain", wanted, step):
            bench.drain(wanted, fence(step))
        case ("withdraw" | "kill" | "return" as verb, device):
            bench.withdraw(device, present=verb == "return", at_once=verb == "kill")
        case ("wait", seconds):
            bench.pass_time(seconds)
        case (report, index, step):
            groups = [each.group for each in bench.worker.hosted] or ["p-none.1.1.1"]
            bench.feed(heard(report, groups[index % len(groups)], step))
        case _:
            raise AssertionError(move)


def heard(report: str, group: str, step: int) -> Input:
    return {
        "up": inputs.RanksUp(group=group, pid=7),
        "ready": inputs.FrontReady(group=group),
        "silent": inputs.FrontSilent(group=group, waited_s=1.0, log_tail=""),
        "exited": inputs.RanksExited(group=group, reason="exit code 1", log_tail=""),
        "gone": inputs.RanksGone(group=group),
        "linger": inputs.RanksLinger(group=group, pids=(7,)),
        "gate": inputs.GateSet(group=group, fence=fence(step)),
        "drained": inputs.Drained(group=group, fence=fence(step)),
    }[report]


@given(st.lists(MOVES, max_size=40))
@settings(max_examples=150, deadline=None)
def test_devices_never_hold_too_much_and_starts_never_overlap(moves: list) -> None:  # type: ignore[type-arg]
    bench = Watched()
    bench.open()
    for move in moves:
        play(bench, move)
    fresh = Worker()
    told: list[Effects] = [fresh.handle(now_s, event) for now_s, event in bench.__dict__["seen"]]
    assert [each for one in told for each in one.do] == bench.done, "a replay does the same"


@given(st.lists(MOVES, max_size=40), st.sampled_from(PLANS[:4]))
@settings(max_examples=100, deadline=None)
def test_a_plan_can_always_be_stopped_and_started_once_its_devices_are_there(moves, wanted) -> None:  # type: ignore[no-untyped-def]
    bench = Watched()
    bench.open()
    for move in moves:
        play(bench, move)
    for slot in ("slot-0", "slot-1"):
        bench.withdraw(slot, present=True)
    bench.pass_time(60)
    for index, each in enumerate(PLANS):
        told = bench.stop(each, fence(100 + index))
        while bench.worker._memory.hosted and not said(told, PlanStopped):
            told += bench.feed(inputs.RanksGone(group=bench.worker.hosted[0].group))
    assert bench.worker.hosted == ()
    told = bench.start(wanted, fence(200))
    assert said(told, EngineFailed) == []
    group = asked(told, effects.LaunchRanks)[0].group
    bench.feed(inputs.RanksUp(group=group, pid=9))
    told = bench.feed(inputs.FrontReady(group=group))
    assert said(told, EngineReady)[0].fence == fence(200)
