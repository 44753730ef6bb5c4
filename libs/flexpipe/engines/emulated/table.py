"""What the emulated engine costs in time and memory: a TOML file, read once at the start.

    start_s = 20.0                     # from launch to ready
    prefill_tokens_per_s = 8000.0
    kv_bytes_per_token = 131072        # over all ranks
    weights_bytes = 13_500_000_000     # over all ranks
    max_running = 64                   # sequences decoded in one step
    max_queued = 256                   # sequences waiting; one more is refused with 503
    max_total_tokens = 120_000         # KV capacity; --max-total-tokens overrides it
    mean_output_tokens = 200.0         # optional: EOS comes by itself; absent: never

    [decode_step_ms.tp1]               # by layout: tp<T>, pp<P>, tp<T>pp<P>, or "default"
    base = 22.0
    per_sequence = 0.25

Seconds and milliseconds are virtual: ``--time-scale`` virtual seconds pass in one real second.
"""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class StepTime(BaseModel):
    """Milliseconds of one decode step: ``base + per_sequence x batch``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: NotNegative
    per_sequence: NotNegative = 0.0


class PerformanceTable(BaseModel):
    """One engine's figures; see the module's text for units."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_s: NotNegative = 0.2
    prefill_tokens_per_s: Positive = 20_000.0
    kv_bytes_per_token: Count = 131_072
    weights_bytes: Count = 500_000_000
    max_running: Count = 64
    max_queued: Count = 256
    max_total_tokens: Annotated[int, Field(ge=16)] = 65_536
    mean_output_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    decode_step_ms: dict[str, StepTime] = {
        "default": StepTime(base=4.0, per_sequence=0.05),
    }

    def step_time(self, layout: str) -> StepTime:
        """The decode step of a layout. Raises ValueError when the table knows neither it nor a
        default."""
        found = self.decode_step_ms.get(layout) or self.decode_step_ms.get("default")
        if found is None:
            known = ", ".join(sorted(self.decode_step_ms)) or "none"
            raise ValueError(f"the performance table has no decode_step_ms.{layout} (has: {known})")
        return found

    def prefill_s(self, tokens: int) -> float:
        """Virtual seconds to read ``tokens`` prompt tokens."""
        return tokens / self.prefill_tokens_per_s


def layout_name(tp: int, pp: int) -> str:
    """``tp2`` for a tensor-parallel layout, ``pp2`` for a pipeline, ``tp2pp2`` for both."""
    if pp == 1:
        return f"tp{tp}"
    return f"pp{pp}" if tp == 1 else f"tp{tp}pp{pp}"


def read_table(path: Path | None) -> PerformanceTable:
    """The table in ``path``, or the small fast default. Raises ValueError, one line, if unreadable."""
    if path is None:
        return PerformanceTable()
    try:
        return PerformanceTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"performance table {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"performance table {path}: {where}: {first['msg']}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"performance table {path}: {error}") from None
