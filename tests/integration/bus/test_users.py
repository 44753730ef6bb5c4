"""Permissions, on a real server: what each service's user may and may not do."""

from __future__ import annotations

import pytest

from flexpipe.bus import BusSettings, Hearing, MachineShell, connect
from flexpipe.bus.users import DECIDERS, SERVICES, Instance
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import EngineReady, FenceWorker
from flexpipe.events.shift import ShiftRefused
from flexpipe.kernel.errors import Refused, Unavailable
from flexpipe.kernel.machine import Put
from flexpipe.model.fence import Fence
from flexpipe.testing.nats import Dial, temporary_nats, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Tally, an_order

pytestmark = pytest.mark.processes

FENCE = Fence(deployment="toy", term=1, shift=1, step=1)
REFUSAL = publish(ShiftRefused(deployment="toy", order_id="o", reason="a test"), "test")
READY = publish(EngineReady(node="node-a", plan="p-1", fence=FENCE, start_s=1, ready_s=2), "test")


def a_route(write_id: str = "w") -> Put:
    return Put(write_id=write_id, bucket="routes", key="toy", value="{}", expected=0)


async def test_a_worker_cannot_say_what_only_the_executor_says(dial: Dial) -> None:
    worker = await dial("worker", "node-a")
    with pytest.raises(Refused, match="'worker' has no permission"):
        await worker.publish(REFUSAL)
    await worker.publish(READY)


async def test_a_worker_cannot_write_routes_but_reads_them(dial: Dial) -> None:
    worker, executor = await dial("worker", "node-a"), await dial("executor")
    with pytest.raises(Refused):
        await worker.put(a_route())
    assert (await executor.put(a_route())).outcome == "written"
    assert (await worker.read("routes", "toy")).value == "{}"


async def test_a_worker_cannot_read_transaction_records(dial: Dial) -> None:
    worker = await dial("worker", "node-a")
    with pytest.raises(Refused):
        await worker.read("shifts", "toy.1")


async def test_an_operator_orders_shifts_but_does_not_command_workers(dial: Dial) -> None:
    operator = await dial("operator", "cli")
    await operator.publish(an_order("o-1"))
    with pytest.raises(Refused):
        await operator.publish(publish(FenceWorker(node="node-a", fence=FENCE), "test"))


async def test_nobody_listens_to_answers_of_another_user(dial: Dial) -> None:
    worker = await dial("worker", "node-a")
    await worker.main.client.subscribe("_INBOX_executor.>")
    await until(lambda: "permissions violation" in str(worker.main.client.last_error))


async def test_every_service_can_run_a_shell_with_all_that_it_hears_and_watches(dial: Dial) -> None:
    from flexpipe.events import catalog  # noqa: PLC0415

    for service in DECIDERS:
        bus = await dial(service, "one")
        shell = MachineShell(
            bus,
            machine=Recorder(),
            service=service,
            name="one",
            hears=tuple(
                Hearing(said.message, "one" if service in ("agent", "router", "worker") else "*")
                for said in catalog.MESSAGES
                if service in said.hears
            ),
            watches=tuple(b.name for b in catalog.BUCKETS if service in b.readers),
            journaled=True,
        )
        async with shell:
            assert await bus.echo() < 1


async def test_a_user_of_one_instance_hears_and_writes_for_that_instance_alone() -> None:
    instances = (
        Instance(service="worker", name="node-a"),
        Instance(service="worker", name="node-b"),
    )
    async with (
        temporary_nats(instances) as server,
        connect(server.settings("executor"), service="executor", name="main") as executor,
        connect(server.settings("worker-node-a"), service="worker", name="node-a") as a,
    ):
        machine = Recorder()
        shell = MachineShell(
            a,
            machine=machine,
            service="worker",
            name="node-a",
            hears=[
                Hearing(said, "node-a") for said in (FenceWorker, *_other_commands(FenceWorker))
            ],
            watches=("routes",),
            journaled=True,
        )
        async with shell:
            await executor.publish(publish(FenceWorker(node="node-b", fence=FENCE), "for b"))
            await executor.publish(publish(FenceWorker(node="node-a", fence=FENCE), "for a"))
            await until(lambda: machine.delivered)
            assert [event.type for event in machine.delivered] == ["FenceWorker"]
            assert '"node":"node-a"' in machine.delivered[0].message
            own = Put(write_id="a", bucket="hosts", key="node-a", value="{}", expected=0)
            assert (await a.put(own)).outcome == "written"
            with pytest.raises(Refused):
                await a.put(own.model_copy(update={"key": "node-b"}))
            for verb in ("INFO", "MSG.NEXT"):
                with pytest.raises(Refused):
                    await a.main.request(f"$JS.API.CONSUMER.{verb}.FLEXPIPE_CMD.worker-node-b", b"")
            with pytest.raises(Refused):
                await a.main.request("$JS.API.CONSUMER.CREATE.FLEXPIPE_CMD.mine", b"")


async def test_no_service_can_change_or_remove_a_stream(dial: Dial) -> None:
    for service in SERVICES:
        bus = await dial(service, "one")
        for verb in ("CREATE", "UPDATE", "DELETE", "PURGE"):
            with pytest.raises(Refused):
                await bus.main.request(f"$JS.API.STREAM.{verb}.FLEXPIPE_EVT", b"")


async def test_a_wrong_password_is_one_line(dial: Dial) -> None:
    right = (await dial("worker")).main._settings
    wrong = BusSettings(url=right.url, user="worker", password="no", connect_limit_s=2)
    with pytest.raises(Unavailable, match="turns user 'worker' away") as caught:
        async with connect(wrong, service="worker", name="node-a"):
            pass
    assert "\n" not in str(caught.value)


async def test_a_hearing_outside_the_permissions_ends_the_start_of_a_shell(dial: Dial) -> None:
    bus = await dial("worker", "node-a")
    shell = MachineShell(bus, machine=Tally(), service="worker", name="node-a", watches=("shifts",))
    with pytest.raises(Refused):
        async with shell:
            pass


def _other_commands(one: type) -> tuple[type, ...]:
    from flexpipe.events import catalog  # noqa: PLC0415

    return tuple(
        said.message
        for said in catalog.MESSAGES
        if said.lane == "cmd" and "worker" in said.hears and said.message is not one
    )
