"""Every step, by its stage."""

from __future__ import annotations

from typing import Final

from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Step
from flexpipe.transitions.steps_forward import (
    CommitStep,
    FillStep,
    FreezeStep,
    MoveStep,
    ObserveStep,
    OpenStep,
    ReserveStep,
    StartStep,
)
from flexpipe.transitions.steps_retire import DrainStep, ForceStep, FreeStep, StopStep, StrikeStep
from flexpipe.transitions.steps_undo import ReopenStep, RestoreStep, ReturnStep

STEPS: Final[dict[Stage, Step]] = {
    step.stage: step
    for step in (
        ReserveStep(),
        StartStep(),
        OpenStep(),
        ObserveStep(),
        FillStep(),
        FreezeStep(),
        MoveStep(),
        CommitStep(),
        DrainStep(),
        ForceStep(),
        StopStep(),
        FreeStep(),
        StrikeStep(),
        ReopenStep(),
        RestoreStep(),
        ReturnStep(),
    )
}
