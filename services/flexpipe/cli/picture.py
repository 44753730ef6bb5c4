"""The picture of the fleet story: which GPU served what before and after, and P95 over time with the shifts marked.

Pure but for the file that it writes. Whoever shows it says that the figures are emulated: it does so itself, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.route import RouteEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#3b6fb6", "#e08a2b", "#4f9d69", "#8b5fb0")
FREE, GONE = "#e9edf2", "#ffffff"
WINDOW_S = 3.0
"""Of the sliding percentile, real seconds."""
STEP_S = 0.5
PERCENTILE = 0.95
MARK_ROWS = 5
"""Texts of neighbouring marks stand below one another."""
LEAST = 3
"""Fewer requests than these in a window have no percentile worth a point."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A fleet and what served on it at one moment."""

    title: str
    fleet: Fleet
    routes: tuple[RouteEntry, ...]

    def holders(self) -> dict[DeviceRef, str]:
        """Which deployment has a plan on a device."""
        return {
            ref: entry.deployment
            for entry in self.routes
            for routed in entry.plans
            for ref in routed.plan.devices
        }


@dataclass(frozen=True, slots=True)
class Series:
    """One deployment's requests: (when it was asked, its TTFT in ms), and its objective."""

    deployment: str
    points: tuple[tuple[float, float], ...]
    slo_ms: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment."""

    at_s: float
    text: str


def draw(
    path: Path,
    moments: Sequence[Occupancy],
    series: Sequence[Series],
    marks: Sequence[Mark],
    note: str,
) -> None:
    """Write the picture as SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - takes most of a second to load

    mpl.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    mpl.rcParams.update({"svg.fonttype": "none", "font.size": 9, "font.family": "DejaVu Sans"})
    mpl.rcParams["svg.hashsalt"] = "flexpipe"
    colours = {each.deployment: COLOURS[index % len(COLOURS)] for index, each in enumerate(series)}
    figure = plt.figure(figsize=(9.6, 6.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.25))
    above, below = parts
    for axes, moment in zip(
        above.subplots(1, len(moments), squeeze=False)[0], moments, strict=True
    ):
        _draw_fleet(axes, moment, colours)
    _draw_series(below.subplots(), series, marks, colours)
    figure.supxlabel(note, fontsize=7.5, color="#667")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def percentiles(
    points: Sequence[tuple[float, float]], start_s: float, end_s: float
) -> list[tuple[float, float]]:
    """(time, P95) of a sliding window over what was asked in it."""
    line = []
    steps = int((end_s - start_s) / STEP_S) + 1
    for at_s in (start_s + index * STEP_S for index in range(steps)):
        inside = sorted(value for when_s, value in points if at_s - WINDOW_S < when_s <= at_s)
        if len(inside) >= LEAST:
            line.append((at_s, inside[min(len(inside) - 1, int(len(inside) * PERCENTILE))]))
    return line


def _draw_fleet(axes: Axes, moment: Occupancy, colours: dict[str, str]) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    holders = moment.holders()
    here = set(moment.fleet.refs())
    for row, node in enumerate(moment.fleet.nodes):
        axes.text(-0.35, -row, node.node, ha="right", va="center", fontsize=8)
        model = node.devices[0].model.split("-")[0] if node.devices else ""
        axes.text(len(node.devices) + 0.1, -row, model, va="center", fontsize=7, color="#667")
        for column, device in enumerate(node.devices):
            ref = DeviceRef(node=node.node, device=device.device)
            gone = ref not in here
            face = GONE if gone else colours.get(holders.get(ref, ""), FREE)
            box = Rectangle(
                (column - 0.05, -row - 0.38),
                0.9,
                0.76,
                facecolor=face,
                edgecolor="#b03030" if gone else "#9aa5b1",
                linewidth=0.8,
                hatch="xxx" if gone else None,
            )
            axes.add_patch(box)
    axes.set_xlim(-1.2, 6.0)
    axes.set_ylim(-len(moment.fleet.nodes) + 0.4, 0.7)
    axes.set_title(moment.title, fontsize=9)
    axes.axis("off")


def _draw_series(
    axes: Axes, series: Sequence[Series], marks: Sequence[Mark], colours: dict[str, str]
) -> None:
    times = [when_s for each in series for when_s, _ in each.points]
    if not times:
        return
    start_s, end_s = min(times), max(times)
    for each in series:
        line = percentiles(each.points, start_s, end_s)
        colour = colours[each.deployment]
        axes.plot(
            [at_s - start_s for at_s, _ in line],
            [value for _, value in line],
            color=colour,
            label=f"{each.deployment} TTFT P95",
        )
        axes.axhline(each.slo_ms, color=colour, linewidth=0.7, linestyle=":")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("seconds of the run")
    axes.set_ylabel("TTFT P95, emulated ms")
    for place, mark in enumerate(sorted(marks, key=lambda each: each.at_s)):
        at_s = mark.at_s - start_s
        axes.axvline(at_s, color="#556", linewidth=0.7)
        axes.annotate(
            mark.text,
            (at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, -8 - 10 * (place % MARK_ROWS)),
            textcoords="offset points",
            fontsize=6.5,
            color="#334",
        )
    axes.legend(loc="lower right", fontsize=7.5, frameon=False)
