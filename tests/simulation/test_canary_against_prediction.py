"""An order that carries a prediction: the canary passes only where what it sees is near enough to it."""

from __future__ import annotations

from flexpipe.events.route import CanaryObserved
from flexpipe.model.outlook import GearOutlook, PlanOutlook
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import an_order_to
from flexpipe.testing.harness import ShiftWorld
from simulation.hands import notice
from simulation.scenes import PP2, TP1, TWO, a_serving_scene, phases

PREDICTED = GearOutlook(
    plans=(
        PlanOutlook(
            plan=PP2.id,
            ttft_p50_ms=200.0,
            itl_p50_ms=20.0,
            tokens_per_s=100.0,
            good_requests_per_s=1.0,
            capacity_tokens=1000,
            bound_by="weights",
        ),
    )
)


def in_the_canary(outlook: GearOutlook | None = PREDICTED) -> tuple[ShiftWorld, str]:
    """The canary waits for requests that only the test reports."""
    scene = a_serving_scene()
    for router in scene.routers.values():
        router.canary_rate = 0
    order = an_order_to(TWO, "predicted", at_s=scene.world.now_s)
    carried = order.order.model_copy(update={"outlook": outlook})
    scene.world.say(order.model_copy(update={"order": carried}))
    scene.reach("predicted", Phase.CANARY)
    return scene, "predicted"


def observed(
    scene: ShiftWorld,
    requests: int,
    ttft_ms: float | None,
    itl_ms: float | None,
    router: str = "router-0",
) -> None:
    """What a router has seen of the canary so far."""
    scene.world.say(
        CanaryObserved(
            router=router,
            deployment="toy",
            plan=PP2.id,
            shift=2,
            requests=requests,
            errors=0,
            ttft_p50_ms=ttft_ms,
            itl_p50_ms=itl_ms,
        )
    )


def test_a_canary_as_fast_as_half_again_the_prediction_passes() -> None:
    scene, order_id = in_the_canary()
    observed(scene, 4, 300.0, 30.0)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED


def test_a_canary_with_a_slow_first_token_is_undone_with_the_numbers() -> None:
    scene, order_id = in_the_canary()
    observed(scene, 4, 301.0, 20.0)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.ROLLED_BACK
    assert record.reason == (
        f"the canary of {PP2.id} is slow: TTFT p50 301.0 ms over 4 requests, predicted 200.0 ms, at most 300.0 ms"
    )
    scene.settle()
    assert scene.states() == {TP1.id: "active"}


def test_a_canary_with_slow_tokens_is_undone_with_the_numbers() -> None:
    scene, order_id = in_the_canary()
    observed(scene, 6, 200.0, 31.5)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.ROLLED_BACK
    assert "ITL p50 31.5 ms over 6 requests, predicted 20.0 ms, at most 30.0 ms" in str(
        record.reason
    )


def test_medians_of_several_routers_weigh_by_their_requests() -> None:
    scene, order_id = in_the_canary()
    observed(scene, 1, 900.0, None, "router-0")
    scene.world.run_for(0.1)
    assert scene.phase(order_id) is Phase.CANARY, "one request proves nothing"
    observed(scene, 9, 210.0, 20.0, "router-1")
    assert scene.closed(order_id).outcome is Outcome.COMPLETED, "279 ms in the mean"


def test_figures_that_no_router_reports_are_not_held_against_it() -> None:
    scene, order_id = in_the_canary()
    observed(scene, 8, None, None)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED


def test_an_order_without_a_prediction_passes_at_any_speed() -> None:
    scene, order_id = in_the_canary(None)
    observed(scene, 8, 9000.0, 900.0)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED


def test_slow_is_better_than_a_source_that_is_going() -> None:
    scene, order_id = in_the_canary()
    notice(scene, "node-a", "cpu0")
    observed(scene, 8, 9000.0, 900.0)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.COMPLETED
    assert "freezing" in phases(record)
