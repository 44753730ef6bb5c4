"""The account at the end of the demo: every stream, every phase, the trace."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexpipe.cli import views
from flexpipe.cli.fleetview import NOTHING
from flexpipe.cli.judging import Judgement
from flexpipe.kernel.machine import Span
from flexpipe.model.sequence import MovedSequence
from flexpipe.model.shift import Outcome, ShiftRecord

NEEDED_IN_FLIGHT = 6


@dataclass(frozen=True, slots=True)
class ShiftAccount:
    """One shift of the demo and how many streams were open when it committed."""

    record: ShiftRecord
    in_flight: int

    @property
    def pauses_ms(self) -> list[float]:
        """Pauses of the sequences that moved, sorted."""
        return sorted(
            each.pause_ms
            for each in views.moved_only(self.record.moved)
            if each.pause_ms is not None
        )


@dataclass(frozen=True, slots=True)
class Account:
    """Everything the demo has to say for itself."""

    engine: str
    first: ShiftRecord
    shifts: tuple[ShiftAccount, ...]
    judgements: tuple[Judgement, ...]
    spans: tuple[Span, ...]

    @property
    def broken(self) -> list[Judgement]:
        """Streams that did not come through."""
        return [each for each in self.judgements if not each.passed]

    @property
    def passed(self) -> bool:
        """Nothing lost, nothing doubled, every text the unshifted one, enough streams at each commit."""
        return (
            bool(self.judgements)
            and not self.broken
            and all(each.record.outcome is Outcome.COMPLETED for each in self.shifts)
            and all(each.in_flight >= NEEDED_IN_FLIGHT for each in self.shifts)
        )

    def document(self) -> dict[str, Any]:
        """For programs: one JSON object."""
        return {
            "engine": self.engine,
            "passed": self.passed,
            "streams": len(self.judgements),
            "tokens": sum(len(each.answer.token_ids) for each in self.judgements),
            "identical": sum(each.identical is True for each in self.judgements),
            "teacher_forced": sum(each.forced for each in self.judgements),
            "broken": [each.reason or "another text" for each in self.broken],
            "shifts": [_shift_document(each) for each in self.shifts],
        }


def _shift_document(each: ShiftAccount) -> dict[str, Any]:
    record, pauses = each.record, each.pauses_ms
    return {
        "shift": record.shift,
        "from": record.source.label,
        "to": record.order.target.label,
        "outcome": record.outcome,
        "class": record.start_class,
        "in_flight_at_commit": each.in_flight,
        "moved": len(views.moved_only(record.moved)),
        "pause_p50_ms": round(median(pauses), 1) if pauses else None,
        "pause_max_ms": round(pauses[-1], 1) if pauses else None,
        "phases_s": {
            timing.phase: round(timing.end_s - timing.start_s, 3)
            for timing in record.timings
            if timing.end_s is not None
        },
    }


def show(account: Account, console: Console) -> None:
    """For people."""
    console.rule(f"first start: {account.first.order.target.label}")
    console.print(views.phases_table(account.first.timings, account.first.start_class))
    for each in account.shifts:
        record = each.record
        title = f"shift {record.shift}: {record.source.label} → {record.order.target.label}"
        console.rule(f"{title}, {each.in_flight} streams in flight at commit")
        console.print(_streams_table(account, record))
        console.print(views.phases_table(record.timings, record.start_class))
    stayed = _stayed(account)
    console.print(f"{stayed} further streams ran without being touched by a shift", highlight=False)
    console.rule(f"the trace of shift {account.shifts[0].record.shift}")
    console.print(views.trace_view(account.spans))
    console.rule("account")
    console.print(_summary(account), highlight=False)


def _streams_table(account: Account, record: ShiftRecord) -> Table:
    by_sequence = {each.answer.sequence: each for each in account.judgements}
    table = Table(title="streams that met the shift", title_justify="left")
    for column in (
        "stream",
        "tokens",
        "at",
        "verdict",
        "pause ms",
        "identical to the unshifted run",
    ):
        table.add_column(
            column, justify="right" if column in ("tokens", "at", "pause ms") else "left"
        )
    for moved in sorted(record.moved, key=lambda each: each.sequence):
        table.add_row(*_stream_row(moved, by_sequence.get(moved.sequence)))
    return table


def _stream_row(moved: MovedSequence, judged: Judgement | None) -> tuple[str | Text, ...]:
    pause = NOTHING if moved.pause_ms is None else f"{moved.pause_ms:.0f}"
    tokens = NOTHING if judged is None else str(len(judged.answer.token_ids))
    return (
        moved.sequence[-12:],
        tokens,
        str(moved.tokens),
        moved.verdict,
        pause,
        _identity(judged),
    )


def _identity(judged: Judgement | None) -> Text:
    if judged is None:
        return Text("no such stream of ours", style="yellow")
    if judged.identical:
        return Text("yes", style="green")
    if judged.passed:
        return Text(
            f"near-tie; every token top choice within {judged.worst_behind:.1e}", style="green"
        )
    return Text(f"NO: {judged.reason or 'another text'}", style="red")


def _stayed(account: Account) -> int:
    met = {moved.sequence for each in account.shifts for moved in each.record.moved}
    return sum(1 for each in account.judgements if each.answer.sequence not in met)


def _summary(account: Account) -> Text:
    document = account.document()
    text = Text()
    text.append(
        f"{document['streams']} streams, {document['tokens']} tokens, engine {account.engine}: "
    )
    text.append(
        f"{document['identical']} identical, {document['teacher_forced']} judged by teacher forcing, "
    )
    text.append(f"{len(account.broken)} broken\n", style="red" if account.broken else "green")
    for shift in document["shifts"]:
        text.append(
            f"shift {shift['shift']} {shift['from']} → {shift['to']} ({shift['class']}): {shift['moved']} moved, "
            f"pause p50 {shift['pause_p50_ms']} ms, max {shift['pause_max_ms']} ms\n"
        )
    for each in account.broken[:10]:
        text.append(f"broken: {each.answer.sequence} {each.reason}\n", style="red")
    if account.passed:
        text.append("nothing lost, nothing doubled", style="bold green")
    else:
        text.append("NOT what was promised", style="bold red")
    return text
