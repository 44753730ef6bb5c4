"""Fixtures that tests of several parts share. They live in `flexpipe.testing`; here they are only named."""

from flexpipe.testing.nats import dial, nats_server

__all__ = ["dial", "nats_server"]
