"""A gear: the set of plans that serve one deployment, with their routing weights."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from flexpipe.kernel.frozen import Frozen, digest
from flexpipe.model.plan import Plan

WEIGHT_LIMIT = 1000
"""More than a thousand to one is a plan that gets nothing: leave it out of the gear instead."""


class PlanShare(Frozen):
    """A plan and its weight among the plans of a gear."""

    plan: Plan
    weight: Annotated[float, Field(gt=0, le=WEIGHT_LIMIT)] = 1.0


class Gear(Frozen):
    """Plans sorted by id. The empty gear serves nothing: what a deployment starts from and stops to."""

    shares: tuple[PlanShare, ...] = ()

    @model_validator(mode="after")
    def _plans_differ(self) -> Gear:
        ids = [share.plan.id for share in self.shares]
        if len(set(ids)) != len(ids):
            raise ValueError("shares: a plan appears twice; give it one weight instead")
        return self

    @cached_property
    def id(self) -> str:
        """Content address. The empty gear is `g-empty`."""
        return "g-" + digest(self.canonical_json()) if self.shares else "g-empty"

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Its plans, sorted by id."""
        return tuple(sorted((share.plan for share in self.shares), key=lambda plan: plan.id))

    def weight(self, plan_id: str) -> float:
        """The weight of one plan; 0.0 where it is not part of this gear."""
        return next((share.weight for share in self.shares if share.plan.id == plan_id), 0.0)

    @property
    def label(self) -> str:
        """Its shapes in short: `tp1`, `tp2 + pp2`, or `empty`."""
        return " + ".join(share.plan.shape for share in self.shares) or "empty"


EMPTY_GEAR = Gear()
