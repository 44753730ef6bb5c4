"""The bus: the only place that speaks NATS. Shell, streams, buckets, journal, embedded server.

Services import from here: `connect`, `Bus`, `BusSettings`, `MachineShell`, `Hearing`. Brains never do; they say things
with `flexpipe.events.outgoing.publish` and write with `Put`.
"""

from flexpipe.bus.clock import Clock, WallClock
from flexpipe.bus.connection import Bus, connect
from flexpipe.bus.hearing import Hearing
from flexpipe.bus.settings import BusSettings
from flexpipe.bus.shell import MachineShell

__all__ = ["Bus", "BusSettings", "Clock", "Hearing", "MachineShell", "WallClock", "connect"]
