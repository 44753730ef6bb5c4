"""The executor's brain: a shift as a persisted state machine over the route entry, reservations and commands."""

from flexpipe.transitions.machine import Executor

__all__ = ["Executor"]
