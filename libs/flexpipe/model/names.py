"""Names that become bus subjects, bucket keys and command-line words."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""Lower-case letters, digits and inner dashes, 1–63 characters: what NATS, DNS and Kubernetes all accept."""

DeviceId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,95}$")]
"""An opaque device id (a GPU or MIG UUID, or the name of a CPU slot)."""
