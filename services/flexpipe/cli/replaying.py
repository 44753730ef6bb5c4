"""`flexpipe replay FILE`: a journal fed to a fresh machine of the same kind."""

from __future__ import annotations
