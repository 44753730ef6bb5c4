"""What the monitor's machine remembers: of each node, and of itself. Frozen; a snapshot is its canonical JSON."""

from __future__ import annotations

from flexpipe.events.fleet import Fabric, FleetChanged
from flexpipe.fragments.silence import Verdict
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import Device, Host, Node
from flexpipe.model.names import Name


class Picture(Frozen):
    """What an agent told, samples and deltas put together."""

    counter: int
    devices: tuple[Device, ...]
    fabrics: tuple[Fabric, ...]
    rack: str = ""


class Seen(Frozen):
    """One node: its picture, signs of life, and what the bucket holds of it."""

    node: Name
    since_s: float  # since when it has had no fresh picture, where it has none
    heard_s: (
        float  # the agent's silence counts from here: its last sign, or when clocks started anew
    )
    sign_s: float | None = None  # its last real sign
    worker_s: float | None = None  # the same of the worker
    answered_s: float | None = None  # when engines here last gave some router tokens
    asked_s: float | None = None  # when the full picture was last asked for
    picture: Picture | None = None
    told: bool = False  # the picture was told to this process, not to the one before
    fresh: bool = False  # nothing was missed since the last full sample
    verdict: Verdict = "observed"
    worker_silent: bool = False
    host: Host | None = None
    stored: Node | None = None  # in the bucket
    bucket_revision: int = 0
    change_s: float | None = None  # last sign of the state before what is still to be written

    @property
    def in_fleet(self) -> bool:
        """Whether it belongs into the bucket: once there, always; new ones with their first picture."""
        return self.stored is not None or (self.picture is not None and self.fresh)

    @property
    def unsettled(self) -> bool:
        """Whether the bucket calls it observed, and nobody has told this process so yet."""
        return self.stored is not None and self.verdict == "observed" and not self.told


class Writing(Frozen):
    """A revision on its way into the bucket, and what is said once it is there."""

    write_id: str
    nodes: tuple[Node, ...]
    said: FleetChanged


class Memory(Frozen):
    """Everything but the nodes is here; `nodes` is filled for a snapshot, by name."""

    nodes: tuple[Seen, ...] = ()
    routes: dict[Name, dict[str, tuple[Name, ...]]] = {}  # deployment → plan → nodes with ranks
    revision: int = 0  # of the fleet
    fed_s: float | None = None  # when signs of life were last fed
    outage: bool = True  # nothing was heard of ourselves: until the first echo nobody is judged
    stale: bool = False  # something changed since the tree was last built
    due_s: float | None = None  # when what changed is written at the latest
    writing: Writing | None = None
    conflicts: int = 0  # in a row
    greets: bool = False  # a new life has not yet said which revision stands
