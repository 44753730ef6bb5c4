"""The hand-over: `MoveSequences` from its fence to its last report.

Called by the machine. The command waits until the route entry it names is in force here, then the tokens are counted,
each sequence gets its verdict, and batches of bounded size are cut and dispatched anew. A sequence is handed over when
its first token under the new epoch came, or when it waits, cut, for a plan. The undo is the same path the other way.
"""

from __future__ import annotations

from typing import Final

from flexpipe.events.plan import CommandSuperseded
from flexpipe.events.route import BatchHandedOver, MoveSequences
from flexpipe.kernel.machine import Measure
from flexpipe.model.route import PlanState
from flexpipe.model.sequence import Verdict
from flexpipe.routing import admission, verdicts
from flexpipe.routing.effects import CountTokens, Cut, EndWithError
from flexpipe.routing.handed import REPORT_EVERY_S, handed_over, report_if_due, trace
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.reports import COUNT_LIMIT_S
from flexpipe.routing.state import (
    DeploymentState,
    HandOver,
    HandOverPhase,
    Judged,
    Move,
    SequenceState,
    Stage,
    Turn,
)

CUT_LIMIT_S: Final = 3.0
"""An engine lets go at the end of a decode step, well under a second; one that does not is left behind: its late tokens
are of an old epoch and are dropped."""


HELD_LOOK_S: Final = 0.25
"""How often a hand-over that waits for a plan to take its sequences looks again."""


def command(turn: Turn, order: MoveSequences, message_id: str, traceparent: str | None) -> str:
    """Accept a command, repeat its answer, or say that it is superseded. Gives the deployment's name.

    The command that an earlier life of this router accepted and did not finish is accepted anew: its sequences went
    with that life, so the answer comes at once instead of after the executor's limit.
    """
    deployment = turn.deployment(order.fence.deployment)
    highest = deployment.highest
    if highest is not None and order.fence.order < highest.order:
        superseded = CommandSuperseded(
            target=turn.state.router,
            command="MoveSequences",
            fence=order.fence,
            highest=highest,
        )
        turn.say(superseded, message_id)
    elif deployment.hand_over is not None and order.fence == deployment.hand_over.fence:
        _repeat_answer(turn, deployment.hand_over)
    else:
        _accept(turn, deployment, order, traceparent)
    return deployment.name


def advance(turn: Turn, deployment: DeploymentState) -> None:
    """Go on with the hand-over of a deployment, as far as it can."""
    hand_over = deployment.hand_over
    if hand_over is None:
        return
    if (
        hand_over.phase is HandOverPhase.AWAITING_ROUTE
        and deployment.revision >= hand_over.route_revision
    ):
        _count(turn, deployment, hand_over)
    if hand_over.phase is HandOverPhase.COUNTING and turn.now_s >= hand_over.counting_until_s:
        _judge(turn, deployment, hand_over)
    if hand_over.phase is HandOverPhase.MOVING:
        _move(turn, deployment, hand_over)
    judged = hand_over.phase in (HandOverPhase.MOVING, HandOverPhase.DONE)
    waiting = 0 if judged else len(_concerned(turn, deployment, hand_over))
    report_if_due(turn, deployment, hand_over, hand_over.remaining + waiting)


def counted(turn: Turn) -> None:
    """The tokens were counted: every hand-over that waited for it gets its verdicts."""
    for name in sorted(turn.state.deployments):
        hand_over = turn.state.deployments[name].hand_over
        if hand_over is not None and hand_over.phase is HandOverPhase.COUNTING:
            hand_over.counting_until_s = turn.now_s


def cut_timeouts(turn: Turn, deployment: DeploymentState) -> None:
    """Go on without engines that did not let go within the limit."""
    due_s = deployment.cuts_due_s
    if due_s is None or turn.now_s < due_s:
        return
    deployment.cuts_due_s = None
    for sequence in turn.places.of(deployment.name, Stage.CUTTING):
        if sequence.cut_at_s is None:
            continue
        limit_s = sequence.cut_at_s + CUT_LIMIT_S
        if turn.now_s >= limit_s:
            admission.park(turn, sequence, MoveCause.DEADLINE)
        else:
            _look_at_cuts(deployment, limit_s)


def let_go(turn: Turn, sequence: SequenceState) -> None:
    """The engine let go of a sequence that was being cut."""
    cause = MoveCause.CHOSEN if sequence.move is None else sequence.move.cause
    if sequence.move is not None:
        sequence.move.tokens = sequence.tokens
    admission.park(turn, sequence, cause)


def slipped_away(turn: Turn, sequence: SequenceState) -> None:
    """A sequence that a hand-over still had on its list lost its engine: it counts as cut."""
    hand_over = turn.deployment(sequence.deployment).hand_over
    if hand_over is None or sequence.id not in hand_over.queue or sequence.plan is None:
        return
    hand_over.queue.remove(sequence.id)
    hand_over.batch[sequence.id] = None
    sequence.move = _begin(turn, hand_over, sequence, hand_over.verdicts[sequence.id])


def arrived(turn: Turn, sequence: SequenceState, pause_ms: float | None) -> None:
    """The first token under the new epoch came: a moving sequence is handed over."""
    move, plan = sequence.move, sequence.plan
    if move is None or plan is None:
        return
    sequence.move = None
    labels = {"deployment": sequence.deployment, "verdict": str(move.verdict)}
    if pause_ms is not None:
        turn.ask(
            Measure(
                name="flexpipe_router_hand_over_pause_seconds", value=pause_ms / 1e3, labels=labels
            )
        )
    trace(turn, sequence, move, plan, pause_ms)
    handed_over(turn, sequence, move, plan, pause_ms)


def left(turn: Turn, sequence: SequenceState, finish: str) -> None:
    """A sequence ended: no hand-over waits for it any longer."""
    hand_over = turn.deployment(sequence.deployment).hand_over
    if hand_over is None:
        return
    if sequence.id in hand_over.staying:
        hand_over.staying.remove(sequence.id)
    if sequence.id in hand_over.queue:
        hand_over.queue.remove(sequence.id)
    hand_over.batch.pop(sequence.id, None)
    if sequence.move is not None:
        move, sequence.move = sequence.move, None
        move.reason = f"{move.reason}; ended ({finish}) before it had moved"
        handed_over(turn, sequence, move, None, None)


def wake_at_s(turn: Turn, deployment: DeploymentState) -> list[float]:
    """When the hand-over wants to be looked at again."""
    hand_over = deployment.hand_over
    times: list[float] = []
    if hand_over is not None:
        if hand_over.phase is HandOverPhase.MOVING and hand_over.queue and not hand_over.batch:
            times.append(turn.now_s + HELD_LOOK_S)
        if hand_over.phase is HandOverPhase.COUNTING:
            times.append(hand_over.counting_until_s)
        if hand_over.unreported_since_s is not None:
            times.append(hand_over.unreported_since_s + REPORT_EVERY_S)
    if deployment.cuts_due_s is not None:
        times.append(deployment.cuts_due_s)
    return times


def _accept(
    turn: Turn, deployment: DeploymentState, order: MoveSequences, traceparent: str | None
) -> None:
    before = deployment.hand_over
    deployment.highest = order.fence
    deployment.hand_over = HandOver(
        fence=order.fence,
        from_plans=tuple(sorted(order.from_plans)),
        to_plans=tuple(sorted(order.to_plans)),
        lost_plans=tuple(sorted(order.lost_plans)),
        finish_all=order.finish_all,
        forced=order.forced,
        route_revision=order.route_revision,
        traceparent=traceparent,
    )
    if before is not None and before.unreported:
        # What moved under the command before is told under this one.
        deployment.hand_over.unreported = before.unreported
        deployment.hand_over.unreported_since_s = before.unreported_since_s


def _repeat_answer(turn: Turn, hand_over: HandOver) -> None:
    if hand_over.answer is None:
        return  # still at it: the answer will come
    hand_over.repeats += 1
    answer = BatchHandedOver.model_validate_json(hand_over.answer)
    turn.say(answer, str(hand_over.fence), answer.batch, "repeat", hand_over.repeats)


def _count(turn: Turn, deployment: DeploymentState, hand_over: HandOver) -> None:
    hand_over.phase = HandOverPhase.COUNTING
    hand_over.counting_until_s = turn.now_s + COUNT_LIMIT_S
    concerned = _concerned(turn, deployment, hand_over)
    streaming = tuple(each.id for each in concerned if each.tokens > 0)
    if streaming:
        turn.ask(CountTokens(sequences=streaming))
    else:
        hand_over.counting_until_s = turn.now_s


def _concerned(
    turn: Turn, deployment: DeploymentState, hand_over: HandOver
) -> tuple[SequenceState, ...]:
    sources = hand_over.source_plans
    return tuple(
        each for each in turn.state.of(deployment.name) if each.plan in sources and each.runs
    )


def _judge(turn: Turn, deployment: DeploymentState, hand_over: HandOver) -> None:
    """Give every sequence of the sources its verdict, and those that move their place in the queue."""
    hand_over.phase = HandOverPhase.MOVING
    by_id = {each.id: each for each in _concerned(turn, deployment, hand_over)}
    standings = tuple(_standing(each) for each in by_id.values())
    for standing in verdicts.in_order(standings):
        sequence = by_id[standing.sequence]
        assert sequence.plan is not None
        cause = _cause(deployment, hand_over, sequence.plan)
        judgement = verdicts.judge(standing, cause, deployment.policy)
        lost = cause is MoveCause.LOST_PLAN
        if hand_over.finish_all and not lost and not hand_over.forced:
            judgement = verdicts.Judgement(Verdict.FINISH, verdicts.FINISH_ALL)
        if judgement.ends:
            turn.place(sequence, Stage.ENDING)
            message = f"{sequence.id}: {judgement.reason}"
            turn.ask(EndWithError(sequence=sequence.id, message=message))
        if judgement.verdict is Verdict.FINISH and sequence.stage is Stage.CUTTING:
            judgement = verdicts.Judgement(Verdict.REPLAY, "it was being cut already")
        if judgement.verdict is Verdict.FINISH:
            if not judgement.ends:
                hand_over.staying.append(sequence.id)
            stays = _begin(turn, hand_over, sequence, (Verdict.FINISH, judgement.reason, cause))
            handed_over(turn, sequence, stays, None, None)
        else:
            hand_over.verdicts[sequence.id] = (judgement.verdict, judgement.reason, cause)
            hand_over.queue.append(sequence.id)


def _cause(deployment: DeploymentState, hand_over: HandOver, plan: str) -> MoveCause:
    """Chosen moves leave a frozen plan; from a retiring one it is the deadline, or an undo."""
    if plan in hand_over.lost_plans:
        return MoveCause.LOST_PLAN
    if hand_over.forced:
        return MoveCause.DEADLINE
    routed = deployment.entry.plan(plan) if deployment.entry is not None else None
    if routed is not None and routed.state is PlanState.RETIRING and not hand_over.finish_all:
        return MoveCause.UNDO
    return MoveCause.CHOSEN


def _standing(sequence: SequenceState) -> verdicts.Standing:
    return verdicts.Standing(
        sequence=sequence.id,
        priority=sequence.priority,
        prompt_tokens=sequence.prompt_tokens,
        tokens=sequence.tokens,
        max_tokens=sequence.max_tokens,
        moves=sequence.moves,
        resumable=sequence.resumable,
        reason=sequence.reason,
        begun=sequence.begun,
    )


def _move(turn: Turn, deployment: DeploymentState, hand_over: HandOver) -> None:
    """Cut the next batches; a batch is over when all of it has been handed over."""
    while True:
        _note_waiting(turn, deployment, hand_over)
        if hand_over.batch or not hand_over.queue:
            return
        if not _may_cut(turn, deployment, hand_over):
            return
        for sequence, judged in _next_batch(turn, deployment, hand_over):
            hand_over.batch[sequence.id] = None
            _cut(turn, hand_over, sequence, judged)
        admission.drain(turn, deployment)


def _may_cut(turn: Turn, deployment: DeploymentState, hand_over: HandOver) -> bool:
    """What still runs is not cut for a move of choice while no plan would take it."""
    cause = hand_over.verdicts[hand_over.queue[0]][2]
    if cause in (MoveCause.LOST_PLAN, MoveCause.DEADLINE):
        return True
    return admission.any_admits(turn, deployment)


def _next_batch(
    turn: Turn, deployment: DeploymentState, hand_over: HandOver
) -> list[tuple[SequenceState, Judged]]:
    room = deployment.policy.move_batch_tokens
    batch: list[tuple[SequenceState, Judged]] = []
    while hand_over.queue:
        sequence = turn.state.sequences[hand_over.queue[0]]
        if not sequence.runs:
            hand_over.queue.pop(0)  # it was refused meanwhile, and the service is closing it
            continue
        context = sequence.prompt_tokens + sequence.tokens
        if batch and context > room:
            break
        room -= context
        hand_over.queue.pop(0)
        batch.append((sequence, hand_over.verdicts[sequence.id]))
    return batch


def _cut(turn: Turn, hand_over: HandOver, sequence: SequenceState, judged: Judged) -> None:
    verdict, reason, cause = judged
    if verdict is Verdict.REQUEUE and sequence.tokens > 0:
        verdict = Verdict.REPLAY  # a token came while it waited for its turn
    sequence.move = _begin(turn, hand_over, sequence, (verdict, reason, cause))
    if sequence.stage is Stage.CUTTING:
        return
    if cause is MoveCause.LOST_PLAN:
        admission.park(turn, sequence, cause)  # nobody is there to cut it
        return
    assert sequence.plan is not None
    turn.place(sequence, Stage.CUTTING)
    sequence.cut_at_s = turn.now_s
    _look_at_cuts(turn.deployment(sequence.deployment), turn.now_s + CUT_LIMIT_S)
    turn.ask(Cut(sequence=sequence.id, plan=sequence.plan, epoch=sequence.epoch))


def _look_at_cuts(deployment: DeploymentState, at_s: float) -> None:
    due_s = deployment.cuts_due_s
    deployment.cuts_due_s = at_s if due_s is None else min(due_s, at_s)


def _begin(turn: Turn, hand_over: HandOver, sequence: SequenceState, judged: Judged) -> Move:
    verdict, reason, cause = judged
    return Move(
        verdict=verdict,
        reason=reason,
        from_plan=sequence.plan or "",
        cause=cause,
        asked_at_s=turn.now_s,
        tokens=sequence.tokens,
        traceparent=hand_over.traceparent,
    )


def _note_waiting(turn: Turn, deployment: DeploymentState, hand_over: HandOver) -> None:
    """Those that wait, cut, in this router's queue are handed over; their pause is told when it ends."""
    if not hand_over.batch:
        return
    for sequence in turn.places.of(deployment.name, Stage.PARKED):
        if sequence.id in hand_over.batch and sequence.move is not None:
            handed_over(turn, sequence, sequence.move, None, None)
