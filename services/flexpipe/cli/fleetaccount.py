"""The account at the end of the fleet story: every stream, every shift, the picture. Reads nothing itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexpipe.cli import views
from flexpipe.cli.fleetview import NOTHING
from flexpipe.cli.picture import Mark, Occupancy, Series, draw
from flexpipe.cli.traffic import Answer, Question
from flexpipe.engines.emulated.checkpoint import FIRST_WORD_ID
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.events.planning import ShiftDeclined
from flexpipe.kernel.machine import Span
from flexpipe.model.deployment import Deployment
from flexpipe.model.shift import Outcome, ShiftRecord

PERCENTILES = (50, 95)


@dataclass(frozen=True, slots=True)
class Episode:
    """Something happened, and a shift followed: `at_s` what was done, `seen_s` when the fleet showed it."""

    what: str
    deployment: str
    at_s: float
    seen_s: float | None
    record: ShiftRecord

    def document(self) -> dict[str, Any]:
        """For programs; seconds are real ones of the run."""
        record = self.record
        pauses = sorted(
            each.pause_ms for each in views.moved_only(record.moved) if each.pause_ms is not None
        )
        committed_s = record.committed_at_s
        return {
            "what": self.what,
            "deployment": self.deployment,
            "from": record.source.label,
            "to": record.order.target.label,
            "by": record.order.by,
            "outcome": record.outcome,
            "class": record.start_class,
            "detected_after_s": None if self.seen_s is None else round(self.seen_s - self.at_s, 3),
            "ordered_after_s": round(record.order.ordered_at_s - self.at_s, 3),
            "committed_after_s": None if committed_s is None else round(committed_s - self.at_s, 3),
            "moved": len(views.moved_only(record.moved)),
            "pause_p50_ms": round(pauses[len(pauses) // 2], 1) if pauses else None,
            "pause_max_ms": round(pauses[-1], 1) if pauses else None,
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """The streams of one deployment: those that broke, with the reason, and those with other tokens."""

    answers: tuple[Answer, ...]
    broken: tuple[str, ...]
    other: tuple[str, ...]  # sequences whose tokens are not the oracle's: lost, doubled or swapped

    def ttft_ms(self, percentile: int, scale: float) -> float | None:
        """Over all streams, emulated milliseconds."""
        seen = sorted(each.ttft_ms for each in self.answers if each.ttft_ms is not None)
        if not seen:
            return None
        return round(seen[min(len(seen) - 1, len(seen) * percentile // 100)] * scale, 1)


@dataclass(frozen=True, slots=True)
class FleetAccount:
    """Everything the story has to say for itself."""

    time_scale: float
    seconds: float
    deployments: tuple[Deployment, ...]
    judged: Mapping[str, Judged]
    episodes: tuple[Episode, ...]
    declines: tuple[ShiftDeclined, ...]
    moments: tuple[Occupancy, ...]
    marks: tuple[Mark, ...]
    spans: tuple[Span, ...]
    streams_needed: int

    @property
    def streams(self) -> int:
        """In all."""
        return sum(len(each.answers) for each in self.judged.values())

    @property
    def passed(self) -> bool:
        """Enough streams, none broken, every token the oracle's, every shift completed."""
        return (
            self.streams >= self.streams_needed
            and not any(each.broken or each.other for each in self.judged.values())
            and all(each.record.outcome is Outcome.COMPLETED for each in self.episodes)
        )

    def document(self) -> dict[str, Any]:
        """For programs: one JSON object."""
        return {
            "engine": "emulated",
            "figures": "emulated",
            "time_scale": self.time_scale,
            "seconds": round(self.seconds, 1),
            "passed": self.passed,
            "streams": self.streams,
            "tokens": sum(len(a.token_ids) for each in self.judged.values() for a in each.answers),
            "broken": [reason for each in self.judged.values() for reason in each.broken],
            "lost_or_doubled": [one for each in self.judged.values() for one in each.other],
            "episodes": [each.document() for each in self.episodes],
            "declined": [each.reason for each in self.declines],
            "deployments": {
                name: {
                    "streams": len(each.answers),
                    **{f"ttft_p{p}_ms": each.ttft_ms(p, self.time_scale) for p in PERCENTILES},
                }
                for name, each in self.judged.items()
            },
        }

    def picture(self, path: Path) -> None:
        """Write it as SVG."""
        scale = self.time_scale
        series = [
            Series(
                deployment.name,
                tuple(
                    (answer.asked_s, answer.ttft_ms * scale)
                    for answer in self.judged[deployment.name].answers
                    if answer.ttft_ms is not None
                ),
                deployment.slo.ttft_ms * scale,
            )
            for deployment in self.deployments
        ]
        note = (
            f"emulated engines, time scale {scale:g}: emulated milliseconds over real seconds; "
            f"{self.streams} streams, dotted: objective"
        )
        draw(path, self.moments, series, self.marks, note)


def judge(deployment: Deployment, answers: Sequence[Answer]) -> Judged:
    """Hold every stream against the rule by which an emulated engine speaks."""
    facts = deployment.model.facts
    assert facts is not None
    config = json.loads((Path(deployment.model.path) / "generation_config.json").read_text())
    oracle = Oracle(
        vocab_size=facts.vocab,
        first_id=FIRST_WORD_ID,
        eos_id=int(config["eos_token_id"]),
    )
    expected: dict[Question, list[int]] = {}
    broken, other = [], []
    for answer in answers:
        if not answer.whole:
            broken.append(f"{answer.sequence or deployment.name}: {answer.error or 'incomplete'}")
            continue
        if answer.question not in expected:
            count = answer.question.max_tokens
            expected[answer.question] = oracle.continuation(answer.prompt_ids, count)
        if answer.token_ids != expected[answer.question]:
            other.append(answer.sequence)
    return Judged(tuple(answers), tuple(broken), tuple(other))


def show(account: FleetAccount, console: Console, picture: Path) -> None:
    """For people."""
    console.rule("the trace of the first shift, from the loss of the cards to its end")
    console.print(views.trace_view(account.spans))
    console.rule("what happened, and what the system did about it")
    console.print(_episodes_table(account))
    for declined in account.declines:
        console.print(Text(f"declined by {declined.guard}: {declined.reason}", style="yellow"))
    console.rule("account (emulated figures)")
    console.print(_streams_table(account))
    console.print(_verdict(account), highlight=False)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)


def _episodes_table(account: FleetAccount) -> Table:
    table = Table()
    for column in ("what", "deployment", "gears", "by"):
        table.add_column(column)
    for column in ("detected s", "ordered s", "committed s", "moved", "pause p50/max ms"):
        table.add_column(column, justify="right")
    for each in account.episodes:
        told = each.document()
        table.add_row(
            each.what,
            each.deployment,
            f"{told['from']} → {told['to']}",
            told["by"],
            *(_number(told[name]) for name in ("detected_after_s", "ordered_after_s")),
            _number(told["committed_after_s"]),
            str(told["moved"]),
            f"{_number(told['pause_p50_ms'])}/{_number(told['pause_max_ms'])}",
        )
    return table


def _streams_table(account: FleetAccount) -> Table:
    table = Table()
    table.add_column("deployment")
    for column in ("streams", "broken", "lost or doubled", "TTFT p50 ms", "TTFT p95 ms"):
        table.add_column(column, justify="right")
    for name, each in account.judged.items():
        table.add_row(
            name,
            str(len(each.answers)),
            str(len(each.broken)),
            str(len(each.other)),
            *(_number(each.ttft_ms(p, account.time_scale)) for p in PERCENTILES),
        )
    return table


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"


def _verdict(account: FleetAccount) -> Text:
    text = Text(
        f"{account.streams} streams at time scale {account.time_scale:g} in {account.seconds:.0f} s: "
    )
    for reason in [r for each in account.judged.values() for r in (*each.broken, *each.other)][:10]:
        text.append(f"\nbroken: {reason}", style="red")
    if account.passed:
        text.append("nothing broken, lost or doubled", style="bold green")
    else:
        text.append("\nNOT what was promised", style="bold red")
    return text
