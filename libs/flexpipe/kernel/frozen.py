"""The base of every noun, message and effect: a frozen value with one canonical JSON form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value. Unknown fields are refused; NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def canonical_json(self) -> str:
        """The one text this value is written as: keys sorted, no blanks. Equal values, equal text."""
        return canonical_json(self.model_dump(mode="json"))


def canonical_json(value: Any) -> str:
    """Deterministic JSON of plain data. Raises ValueError on NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str, length: int = 12) -> str:
    """The first `length` hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
