"""Names that become bus subjects, bucket keys and command-line words."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import StringConstraints

_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_DEVICE_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,95}$"
_IN_WORDS: Final = {
    _NAME: "lower-case letters, digits and inner dashes, at most 63",
    _DEVICE_ID: "letters, digits, dashes and underscores, at most 96, a letter or digit first",
}

Name = Annotated[str, StringConstraints(pattern=_NAME)]
"""Lower-case letters, digits and inner dashes, 1–63 characters: what NATS, DNS and Kubernetes all accept."""

DeviceId = Annotated[str, StringConstraints(pattern=_DEVICE_ID)]
"""An opaque device id (a GPU or MIG UUID, or the name of a CPU slot)."""


def in_words(pattern: str) -> str:
    """What a pattern accepts, for people; one without words of ours is shown as it is."""
    return _IN_WORDS.get(pattern, f"must match {pattern}")
