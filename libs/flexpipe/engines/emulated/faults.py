"""Start and run failures on demand, asked for by ``FLEXPIPE_EMULATED_FAULT`` (tests, chaos)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FAULT_VARIABLE = "FLEXPIPE_EMULATED_FAULT"

Kind = Literal["none", "start_fails", "never_ready", "engine_error", "crash_after_tokens"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong; ``tokens`` counts for ``crash_after_tokens`` alone."""

    kind: Kind = "none"
    tokens: int = 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Fault":
        """Read the variable. Raises ValueError for a fault that is not known."""
        text = (os.environ if environ is None else environ).get(FAULT_VARIABLE, "")
        match text.partition("="):
            case ("", "", ""):
                return cls()
            case ("start_fails" | "never_ready" | "engine_error" as kind, "", ""):
                return cls(kind)
            case ("crash_after_tokens", "=", count) if count.isascii() and count.isdigit():
                return cls("crash_after_tokens", int(count))
        raise ValueError(
            f"{FAULT_VARIABLE}={text[:64]!r} is not start_fails, never_ready, engine_error or "
            "crash_after_tokens=N"
        )
