"""The shell on a real server: order, outcomes, timers, repeats, dead letters, crashes, the urgent lane."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from flexpipe.bus import Bus, Hearing, MachineShell
from flexpipe.bus.deadletters import read_dead_letters
from flexpipe.bus.ears import Ear
from flexpipe.events import catalog
from flexpipe.events.catalog import Lane, Said
from flexpipe.events.message import Command
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.errors import BrokenInvariant, FlexPipeError, Unavailable
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Input,
    Measure,
    Publish,
    Put,
    Span,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.testing.nats import Dial, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Nudged, Ring, Tally, an_order

pytestmark = pytest.mark.processes

ORDERS = (Hearing(OrderShift),)
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
async def executor(dial: Dial) -> Bus:
    return await dial("executor")


@pytest.fixture
async def operator(dial: Dial) -> Bus:
    return await dial("operator", "cli")


def a_shell(bus: Bus, machine: object, **options: object) -> MachineShell:
    return MachineShell(
        bus,
        machine=machine,  # type: ignore[arg-type]
        service=bus.service,
        name=bus.name,
        **options,  # type: ignore[arg-type]
    )


async def rings(effect: Effect) -> None:
    assert isinstance(effect, Ring)


async def test_messages_come_in_the_order_they_were_said(executor: Bus, operator: Bus) -> None:
    machine = Recorder()
    async with a_shell(executor, machine, hears=ORDERS):
        for i in range(50):
            await operator.publish(an_order(f"o-{i}"))
        await until(lambda: len(machine.delivered) == 50)
    said = [catalog.parse(each.type, each.message) for each in machine.delivered]
    assert [each.order_id for each in said if isinstance(each, OrderShift)] == [
        f"o-{i}" for i in range(50)
    ]


async def test_started_comes_first_with_every_key_of_every_watched_bucket(executor: Bus) -> None:
    for bucket, key in (("routes", "b"), ("routes", "a"), ("shifts", "a.1")):
        await executor.put(Put(write_id=key, bucket=bucket, key=key, value="{}", expected=0))
    machine = Recorder()
    async with a_shell(executor, machine, watches=("routes", "shifts")):
        pass
    started = machine.fed[0]
    assert isinstance(started, Started)
    assert [(e.bucket, e.key) for e in started.entries] == [
        ("routes", "a"),
        ("routes", "b"),
        ("shifts", "a.1"),
    ]


async def test_the_outcome_of_a_write_comes_before_any_other_input(executor: Bus) -> None:
    put = Put(write_id="w", bucket="routes", key="toy", value="{}", expected=0)
    machine = Recorder(lambda _, e: Effects(do=(put,)) if isinstance(e, Nudged) else Effects())
    async with a_shell(executor, machine) as shell:
        await asyncio.gather(*(shell.feed(Nudged(text=str(i))) for i in range(20)))
    kinds = [type(event) for event in machine.fed]
    assert kinds == [Started] + [Nudged, Stored] * 20


async def test_after_a_conflict_the_rest_of_the_list_is_not_performed(executor: Bus) -> None:
    taken = Put(write_id="t", bucket="routes", key="toy", value='"theirs"', expected=0)
    await executor.put(taken)
    rung: list[str] = []

    async def perform(effect: Effect) -> None:
        assert isinstance(effect, Ring)
        rung.append(effect.text)

    effects = (
        Ring(text="before"),
        taken.model_copy(update={"write_id": "mine", "value": '"mine"'}),
        Ring(text="after"),
        Put(write_id="next", bucket="routes", key="other", value="{}", expected=0),
    )
    machine = Recorder(lambda _, e: Effects(do=effects) if isinstance(e, Nudged) else Effects())
    async with a_shell(executor, machine, perform=perform) as shell:
        await shell.feed(Nudged(text="go"))
    assert rung == ["before"]
    (stored,) = machine.of(Stored)
    assert isinstance(stored, Stored)
    assert (stored.outcome, stored.entries[0].value) == ("conflict", '"theirs"')
    assert (await executor.read("routes", "other")).value is None


async def test_effects_of_an_outcome_are_performed_too(executor: Bus) -> None:
    def answer(_: float, event: Input) -> Effects:
        match event:
            case Nudged():
                return Effects(do=(a_route_put("first", 0),))
            case Stored(write_id="first", entries=entries):
                return Effects(do=(a_route_put("second", entries[0].revision),))
        return Effects()

    def a_route_put(write: str, expected: int) -> Put:
        return Put(
            write_id=write, bucket="routes", key="toy", value=f'"{write}"', expected=expected
        )

    async with a_shell(executor, Recorder(answer)) as shell:
        await shell.feed(Nudged(text="go"))
        assert (await executor.read("routes", "toy")).value == '"second"'


async def test_what_is_said_before_a_write_is_on_the_bus_before_it(executor: Bus) -> None:
    machine = Tally()
    order: list[str] = []
    publish_, put_ = executor.publish, executor.put

    async def publish(message: Publish) -> None:
        await asyncio.sleep(0.05)
        await publish_(message)
        order.append("said")

    async def put(put: Put) -> Stored:
        order.append("writing")
        return await put_(put)

    executor.publish = publish  # type: ignore[method-assign,assignment]
    executor.put = put  # type: ignore[method-assign,assignment]
    say = an_order("o").model_copy(update={"type": "ShiftRefused", "message": "{}"})
    effects = (say, Put(write_id="w", bucket="routes", key="toy", value="{}", expected=0))
    recorder = Recorder(lambda _, e: Effects(do=effects) if isinstance(e, Nudged) else Effects())
    async with a_shell(executor, recorder) as shell:
        await shell.feed(Nudged(text="go"))
    assert order == ["said", "writing"]
    assert machine.state.orders == ()


async def test_the_last_stated_wake_up_wins_and_comes_once(executor: Bus) -> None:
    wishes = iter((30.0, 0.3, 0.1))

    def answer(now_s: float, event: Input) -> Effects:
        if isinstance(event, Nudged):
            return Effects(wake_at_s=now_s + next(wishes))
        return Effects()  # no wish: the one that was stated stays

    machine = Recorder(answer)
    async with a_shell(executor, machine) as shell:
        for text in "abc":
            await shell.feed(Nudged(text=text))
        asked_s = machine.at_s[-1]
        await until(lambda: machine.of(Woken))
        woken_s = machine.at_s[machine.fed.index(Woken())]
        assert 0.1 <= woken_s - asked_s < 0.3
        await shell.feed(Started(entries=()))
        with pytest.raises(AssertionError):
            await until(lambda: len(machine.of(Woken)) > 1, 0.5)


async def test_time_never_runs_backwards_for_a_machine(executor: Bus) -> None:
    class Jumping:
        times = iter((100.0, 101.0, 50.0, 102.0))

        def now_s(self) -> float:
            return next(self.times)

        async def sleep_until(self, at_s: float) -> None:
            raise AssertionError("nobody wished")

    machine = Recorder()
    async with a_shell(executor, machine, clock=Jumping()) as shell:
        await shell.feed(Nudged(text="a"))
        await shell.feed(Nudged(text="b"))
    assert machine.at_s == [101.0, 101.0, 102.0]


async def test_a_message_said_twice_is_taken_once(executor: Bus, operator: Bus) -> None:
    machine = Recorder()
    async with a_shell(executor, machine, hears=ORDERS):
        order = an_order("o-1")
        await operator.publish(order)
        await operator.publish(order)
        # Past the server's own memory of ids: the same id under another header.
        subject, headers = "flexpipe.cmd.shift.order.toy", {"ce-id": order.message_id}
        headers |= {"ce-type": "flexpipe.shift.order", "Nats-Msg-Id": "other"}
        await operator.store(subject, order.message.encode(), headers)
        await operator.publish(an_order("o-2"))
        await until(lambda: len(machine.delivered) >= 2)
    assert [each.message_id for each in machine.delivered] == [
        order.message_id,
        an_order("o-2").message_id,
    ]


async def test_a_message_that_a_process_did_not_live_to_handle_comes_again(
    executor: Bus, operator: Bus
) -> None:
    async def die(_: Effect) -> None:
        raise BrokenInvariant("power cut")

    dying = Recorder(
        lambda _, e: Effects(do=(Ring(text="x"),)) if isinstance(e, Delivered) else Effects()
    )
    with pytest.raises(BrokenInvariant, match="power cut"):  # noqa: PT012
        async with a_shell(executor, dying, hears=ORDERS, perform=die):
            await operator.publish(an_order("o-1"))
            await asyncio.Event().wait()
    machine = Recorder()
    async with a_shell(executor, machine, hears=ORDERS):
        await until(lambda: machine.delivered, 5)


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"ce-type": "flexpipe.shift.order"}, b"{not json", "Invalid JSON"),
        ({"ce-type": "flexpipe.shift.order"}, b'{"order_id":"x"}', "order: Field required"),
        ({"ce-type": "flexpipe.shift.order"}, b"\xff\xfe", "UTF-8"),
        ({"ce-type": "flexpipe.nobody.knows"}, b"{}", "use a type of the catalogue"),
        ({}, b"{}", "ce-type"),
    ],
)
async def test_what_cannot_be_read_is_a_dead_letter_with_its_reason(
    executor: Bus, operator: Bus, headers: dict[str, str], body: bytes, reason: str
) -> None:
    machine = Recorder()
    async with a_shell(executor, machine, hears=ORDERS):
        await operator.store("flexpipe.cmd.shift.order.toy", body, headers)
        await operator.publish(an_order("after"))
        await until(lambda: machine.delivered)
    (letter,) = await read_dead_letters(operator)
    assert (letter.service, letter.name) == ("executor", "main")
    assert reason in letter.reason
    assert letter.subject == "flexpipe.cmd.shift.order.toy"
    assert letter.body == body.decode(errors="backslashreplace")


async def test_the_third_crash_on_one_message_is_a_dead_letter_and_the_machine_is_as_before(
    executor: Bus, operator: Bus
) -> None:
    machine = Tally()
    async with a_shell(executor, machine, hears=ORDERS, journaled=True, perform=rings):
        for order_id in ("before", "crash", "after"):
            await operator.publish(an_order(order_id))
        await until(lambda: "after" in machine.state.orders)
    assert machine.state.orders == ("before", "after")
    (letter,) = await read_dead_letters(operator)
    assert letter.reason == "crashed 3 times"


async def test_crashes_are_counted_across_processes(executor: Bus, operator: Bus) -> None:
    await operator.publish(an_order("broken"))
    for _ in range(3):
        with pytest.raises(BrokenInvariant, match="ordered to be broken"):
            async with a_shell(executor, Tally(), hears=ORDERS, journaled=True):
                await asyncio.wait_for(asyncio.Event().wait(), 10)
    machine = Tally()
    async with a_shell(executor, machine, hears=ORDERS, journaled=True):
        await operator.publish(an_order("after"))
        await until(lambda: machine.state.orders)
    assert machine.state.orders == ("after",)
    assert len(await read_dead_letters(operator)) == 1


async def test_a_crash_on_anything_but_a_message_ends_the_shell(executor: Bus) -> None:
    def answer(_: float, event: Input) -> Effects:
        if isinstance(event, Nudged):
            raise ValueError("no such luck")
        return Effects()

    with pytest.raises(BrokenInvariant, match="Nudged: ValueError"):  # noqa: PT012
        async with a_shell(executor, Recorder(answer)) as shell:
            with pytest.raises((Unavailable, asyncio.CancelledError)):
                await shell.feed(Nudged(text="x"))
            await asyncio.Event().wait()


async def test_a_cancellation_that_a_library_swallows_at_the_start_still_ends_it(
    executor: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, open_ = asyncio.Event(), Ear.open

    async def swallow(ear: Ear) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` up to Python 3.11 can
            await asyncio.Event().wait()
        await open_(ear)

    async def serve() -> None:
        async with a_shell(executor, Recorder(), hears=ORDERS):
            await asyncio.Event().wait()

    monkeypatch.setattr(Ear, "open", swallow)
    serving = asyncio.create_task(serve())
    await begun.wait()
    serving.cancel()
    await asyncio.wait([serving], timeout=10)
    assert serving.cancelled()


async def test_an_error_of_the_block_passes_through(executor: Bus) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with a_shell(executor, Recorder()):
            raise KeyError("mine")


async def test_feed_waits_for_room_and_then_for_being_handled(executor: Bus) -> None:
    machine = Recorder()
    async with a_shell(executor, machine) as shell:
        await asyncio.gather(*(shell.feed(Nudged(text=str(i))) for i in range(3000)))
        assert len(machine.of(Nudged)) == 3000


async def test_feeding_a_shell_that_has_stopped_is_unavailable(executor: Bus) -> None:
    async with a_shell(executor, Recorder()) as shell:
        pass
    with pytest.raises(Unavailable):
        await shell.feed(Nudged(text="late"))


async def test_perform_that_waits_for_feed_is_told_rather_than_stuck(executor: Bus) -> None:
    async def perform(_: Effect) -> None:
        await shell.feed(Nudged(text="inner"))

    machine = Recorder(
        lambda _, e: Effects(do=(Ring(text="x"),)) if isinstance(e, Nudged) else Effects()
    )
    shell = a_shell(executor, machine, perform=perform)
    with pytest.raises(FlexPipeError, match="perform awaited feed"):
        async with shell:
            await shell.feed(Nudged(text="outer"))


async def test_spans_and_measures_are_handed_over(executor: Bus) -> None:
    span = Span(trace_id="a" * 32, span_id="b" * 16, name="n", start_s=1, end_s=2)
    measure = Measure(name="m", value=1)
    machine = Recorder(
        lambda _, e: Effects(do=(span, measure)) if isinstance(e, Nudged) else Effects()
    )
    spans: list[Span] = []
    measures: list[Measure] = []
    async with a_shell(executor, machine, spans=spans.append, measure=measures.append) as shell:
        await shell.feed(Nudged(text="go"))
    assert (spans, measures) == ([span], [measure])


async def test_the_trace_context_goes_through(executor: Bus, operator: Bus) -> None:
    machine = Tally()
    async with (
        operator.listen((Hearing(ShiftRefused),)) as answers,
        a_shell(executor, machine, hears=ORDERS),
    ):
        await operator.publish(an_order("o-1", traceparent=TRACE))
        answer = await asyncio.wait_for(anext(answers), 10)
    assert answer.traceparent == TRACE


async def test_a_change_of_a_watched_key_is_fed_and_never_an_older_one_after_a_newer(
    executor: Bus, operator: Bus
) -> None:
    machine = Tally()
    async with a_shell(executor, machine, hears=ORDERS, watches=("routes",)):
        for i in range(50):
            await operator.publish(an_order(f"o-{i}"))
        await until(lambda: len(machine.state.orders) == 50)
    assert machine.state.conflicts == 0
    assert (await executor.read("routes", "toy")).value == '{"orders":50}'


class UnpinToy(Command):
    """An urgent command that only this test knows."""

    deployment: str

    def bus_key(self) -> str:
        return self.deployment


@pytest.fixture
def urgent_toy(monkeypatch: pytest.MonkeyPatch) -> Said:
    said = Said(message=UnpinToy, lane=Lane.URGENT, says=("operator",), hears=("executor",))
    monkeypatch.setitem(catalog.BY_NAME, "UnpinToy", said)
    monkeypatch.setitem(catalog.BY_TYPE, said.ce_type, said)
    return said


async def test_the_urgent_lane_has_its_own_connection_and_goes_first(
    dial: Dial, urgent_toy: Said
) -> None:
    bus = await dial("executor", user="admin")
    assert bus.link(urgent_toy.lane) is not bus.main
    ids = {link.client.client_id for link in (bus.main, bus.urgent)}
    assert len(ids) == 2
    waiting = asyncio.Event()

    async def hold(_: Effect) -> None:
        await waiting.wait()

    machine = Recorder(
        lambda _, e: (
            Effects(do=(Ring(text="x"),))
            if isinstance(e, Nudged) and e.text == "first"
            else Effects()
        )
    )
    hears = (Hearing(OrderShift), Hearing(UnpinToy))
    async with a_shell(bus, machine, hears=hears, perform=hold) as shell:
        feeding = [asyncio.create_task(shell.feed(Nudged(text=t))) for t in ("first", "second")]
        await until(lambda: machine.of(Nudged))
        await bus.publish(an_order("usual"))
        body = UnpinToy(deployment="toy")
        await bus.publish(
            Publish(type="UnpinToy", key="toy", message=body.canonical_json(), message_id="urgent")
        )
        await until(lambda: shell._intake._urgent)
        waiting.set()
        await asyncio.gather(*feeding)
        await until(lambda: len(machine.delivered) == 2)
    after = machine.fed[machine.fed.index(Nudged(text="first")) + 1]
    assert isinstance(after, Delivered)
    assert after.type == "UnpinToy"


async def test_watched_entries_of_one_key_grow(executor: Bus) -> None:
    machine = Recorder()
    async with a_shell(executor, machine, watches=("routes",)):
        revision = 0
        for i in range(20):
            put = Put(write_id=f"w{i}", bucket="routes", key="a", value=str(i), expected=revision)
            revision = (await executor.put(put)).entries[0].revision
        await until(lambda: machine.entries.get(("routes", "a")) is not None)
        await until(lambda: machine.entries["routes", "a"].revision == revision)
    revisions = [e.entry.revision for e in machine.of(Watched) if isinstance(e, Watched)]
    assert revisions == sorted(set(revisions))
