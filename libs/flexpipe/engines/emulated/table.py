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

An engine that stands for hardware is given curves in place of these lines: times at some sizes, straight between
them, so that it behaves as the performance model says (`flexpipe.performance`). Flags set them, never a file:
``--decode-curve-ms 1:13.9,64:17.2`` (by sequences in the step, without their KV), ``--decode-kv-token-ms``
(for every token of KV that the step reads) and ``--prefill-curve-ms 1:12.0,2048:150.0`` (by prompt tokens).
"""

import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Curve(BaseModel):
    """Milliseconds at some sizes, ascending: straight between them, flat before, straight on after the last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: Annotated[tuple[tuple[Positive, NotNegative], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _sizes_grow(self) -> "Curve":
        sizes = [size for size, _ in self.points]
        if sizes != sorted(set(sizes)):
            raise ValueError("sizes must grow from point to point")
        return self

    @classmethod
    def read(cls, text: str) -> "Curve":
        """From ``1:13.9,64:17.2``. Raises ValueError, one line."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return cls(points=tuple((float(size), float(ms)) for size, ms in pairs))
        except ValueError:
            raise ValueError(f"a curve must read like 1:13.9,64:17.2, got {text!r}") from None

    def ms(self, size: float) -> float:
        """The time at that size."""
        at = [point[0] for point in self.points]
        right = min(max(bisect_left(at, size), 1), len(at) - 1)
        if len(at) == 1 or size <= at[0]:
            return self.points[0][1]
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)


class StepTime(BaseModel):
    """Milliseconds of one decode step: ``base + per_sequence x batch``, or a curve and what reading KV adds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: NotNegative
    per_sequence: NotNegative = 0.0
    curve: Curve | None = None
    kv_token_ms: NotNegative = 0.0

    def ms(self, batch: int, kv_tokens: int) -> float:
        """A step of ``batch`` sequences that hold ``kv_tokens`` tokens together."""
        if self.curve is None:
            return self.base + self.per_sequence * batch
        return self.curve.ms(batch) + self.kv_token_ms * kv_tokens


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
    prefill_curve: Curve | None = None

    def changed(self, told: Mapping[str, object]) -> "PerformanceTable":
        """This table with some figures replaced by what flags say. Raises ValueError, one line."""
        try:
            return PerformanceTable.model_validate({**dict(self), **told})
        except ValidationError as error:
            raise ValueError(_first_fault(error)) from None

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
        if self.prefill_curve is not None:
            return self.prefill_curve.ms(tokens) / 1e3
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
        raise ValueError(f"performance table {path}: {_first_fault(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"performance table {path}: {error}") from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
