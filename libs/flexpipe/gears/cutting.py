"""How layers are cut into the stages of a pipeline: as given, evenly, or by what the stages' devices can do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelFacts
from flexpipe.model.plan import LayerRange

SPEED_UNITS: Final = 1000
"""Speeds are compared as whole thousandths, so that a cut never hangs on the last digit of a float."""


def cut_layers(facts: ModelFacts, pp: int, counts: Sequence[int] | None) -> tuple[LayerRange, ...]:
    """Layer ranges of the stages: as given, or as even as can be (SGLang's own rule: the last ones take the rest)."""
    if counts is None:
        counts = cut_layers_by_speed(facts, [1.0] * pp)
    if len(counts) != pp:
        raise InvalidInput("layers", tuple(counts), f"name one count for each of the {pp} stages")
    if sum(counts) != facts.layers or min(counts) <= 0:
        raise InvalidInput(
            "layers",
            tuple(counts),
            f"positive counts must add up to the model's {facts.layers} layers",
        )
    ends = list(accumulate(counts))
    return tuple(
        LayerRange(first=end - count, end=end) for end, count in zip(ends, counts, strict=True)
    )


def cut_layers_by_speed(
    facts: ModelFacts, speeds: Sequence[float], most: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers a stage in proportion to the stages' speeds, at least one each and at most `most` (what memory holds).

    `speeds` in any unit: memory bandwidth, since reading weights and KV is what a decode step does. Ties give the layer
    to the later stage. Raises InvalidInput where the stages cannot hold the model together.
    """
    limits = list(most) if most is not None else [facts.layers] * len(speeds)
    if sum(limits) < facts.layers or min(limits) < 1 or len(speeds) > facts.layers:
        raise InvalidInput(
            "layers",
            tuple(limits),
            f"the stages must hold the model's {facts.layers} layers together, at least one each",
        )
    shares = [max(1, round(speed * SPEED_UNITS)) for speed in speeds]
    total = sum(shares)
    counts = [
        min(limit, max(1, facts.layers * share // total))
        for share, limit in zip(shares, limits, strict=True)
    ]

    def lacks(stage: int) -> tuple[int, int]:
        """How far a stage is below its proportion, in parts of `total`; then its place."""
        return facts.layers * shares[stage] - counts[stage] * total, stage

    while sum(counts) < facts.layers:
        open_ = [stage for stage, count in enumerate(counts) if count < limits[stage]]
        counts[max(open_, key=lacks)] += 1
    while sum(counts) > facts.layers:  # where the least of one layer took more than was due
        wide = [stage for stage, count in enumerate(counts) if count > 1]
        counts[min(wide, key=lacks)] -= 1
    return tuple(counts)
