"""The exception tree.

    FlexPipeError
    ├── InvalidInput        somebody gave us something wrong; names field, value and fix
    ├── Refused             a true answer to a well-formed request; nothing was changed
    ├── Unavailable         a peer or a store did not answer within its limit
    └── BrokenInvariant     our own state contradicts itself; the process must not go on

Refusal between services is an event with a reason, never an exception; these are for one process.
"""

from __future__ import annotations


class FlexPipeError(Exception):
    """Root of all errors raised on purpose. `str(error)` is one line fit for a terminal."""


class InvalidInput(FlexPipeError):
    """Bad input. The message names the field, the value and what would be accepted."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = value
        self.fix = fix
        super().__init__(f"{field}: {_short(value)} is not accepted: {fix}")


class Refused(FlexPipeError):
    """A well-formed request that the present state does not allow."""


class Unavailable(FlexPipeError):
    """Something outside this process did not answer in time."""


class BrokenInvariant(FlexPipeError):
    """State that must never be. The process stops and starts again from what was persisted."""


def _short(value: object, limit: int = 80) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
