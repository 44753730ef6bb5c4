"""The executor's service on a real bus while somebody types at it: a hand-written message, a restart in the middle."""

from __future__ import annotations

import asyncio

import pytest

from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.planning import Baseline
from flexpipe.kernel.machine import Put
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.nats import LOOK_EVERY_S, Dial
from simulation.scenes import ONE, TP1, TWO
from simulation.test_executor_on_the_bus import Scene, a_scene

LOOKS = 1000
"""Of a hundredth of a second and a read each."""

pytestmark = pytest.mark.processes


async def resolve(dial: Dial) -> None:
    """The planner has resolved the baseline, and is gone."""
    planner = await dial("planner", "planner")
    value = Baseline(deployment="toy", notation="tp1", gear=ONE, fleet_revision=1)
    put = Put(
        write_id="baseline",
        bucket="baselines",
        key="toy",
        value=value.canonical_json(),
        expected=0,
    )
    await planner.put(put)


async def typed(scene: Scene, verb: str, body: bytes = b"{}") -> None:
    """`nats pub flexpipe.urgent.<verb>.toy '{}'`."""
    await scene.bus.main.client.publish(f"flexpipe.urgent.{verb}.toy", body)


async def test_a_message_typed_by_hand_forces_the_baseline_and_unpin_lets_go(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    async with a_scene(nats_server, dial) as scene:
        await scene.start()
        await scene.order(TWO, "order-1")
        await scene.reached(1)
        await resolve(dial)
        await typed(scene, "downshift", b'{"by": "anna", "reason": "trouble"}')
        record = await scene.reached(2)
        assert record.outcome is Outcome.COMPLETED
        entry = await scene.entry()
        assert [routed.plan.id for routed in entry.plans] == [TP1.id]
        assert entry.pin is not None
        assert (entry.pin.by, entry.pin.reason) == ("anna", "trouble")
        await typed(scene, "unpin")
        await until_unpinned(scene)


async def test_an_executor_killed_after_the_pin_is_followed_by_one_that_finishes_the_downshift(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    async with a_scene(nats_server, dial) as scene:
        await scene.start()
        await scene.order(TWO, "order-1")
        await scene.reached(1)
        await resolve(dial)
        await typed(scene, "downshift")
        await scene.reached(2, Phase.PREPARING)
        scene.kill()
        await scene.gone()
        await scene.start()
        assert (await scene.reached(2)).outcome is Outcome.COMPLETED
        entry = await scene.entry()
        assert entry.pin is not None
        assert entry.term == 2


async def until_unpinned(scene: Scene) -> None:
    """Wait for the pin to go."""
    for _ in range(LOOKS):
        if (await scene.entry()).pin is None:
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise AssertionError("the pin did not go")
