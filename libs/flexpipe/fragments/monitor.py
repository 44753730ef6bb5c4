"""The monitor's machine: samples, hosts and signs of life in, the fleet out. The only writer of the bucket `fleet`.

Fed with the buckets `fleet` (its own), `hosts` and `routes`, with `NodeSampled`, and with `Heard` four times a second.
What changed is gathered for a moment and written as one atomic batch, which is a revision; `FleetChanged` is said once
it is stored. A new life takes over the bucket it finds, asks every agent for its full picture, and writes nothing until
each has told or was judged. It places nothing, and it never removes a node that is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import FleetChanged, NodeSampled, SampleAsked
from flexpipe.events.outgoing import publish
from flexpipe.fragments import silence
from flexpipe.fragments.inputs import NODES_BOUND, Heard
from flexpipe.fragments.memory import Memory, Picture, Seen, Writing
from flexpipe.fragments.pictures import host_of, node_of, plans_of, with_sample
from flexpipe.fragments.revisions import greeting, readings, revision_of, told
from flexpipe.fragments.tree import tree_of
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Put,
    PutAll,
    Started,
    Stored,
    Watched,
)
from flexpipe.model.fleet import Fleet, Node

FLEET: Final = "fleet"
HOSTS: Final = "hosts"
ROUTES: Final = "routes"

GATHER_S: Final = 0.05
"""Changes that come within this time make one revision: a rack that is taken tells so in several samples. Below what
anybody would notice in a shift, above the time that a burst of samples takes."""

ASK_EVERY_S: Final = 1.0
"""An agent is asked for its full picture at most this often: it answers in milliseconds or not at all."""

SETTLE_S: Final = 5.0
"""An agent that beats and yet does not tell what is there leaves its node unobserved after this."""

CONFLICTS_LIMIT: Final = 8
"""The bucket has one writer: one conflict tells of a monitor before us, a row of them of another one beside us."""


class Monitor:
    """See the module."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._nodes: dict[str, Seen] = {}
        self._do: list[Effect] = []

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input."""
        self._do = []
        match event:
            case Started(entries=entries):
                self._begin(now_s, entries)
            case Watched(entry=entry):
                self._learn(now_s, entry)
            case Delivered():
                message = parse(event.type, event.message)
                if isinstance(message, NodeSampled):
                    self._sampled(now_s, message)
            case Heard():
                self._heard(now_s, event)
            case Stored():
                self._stored(now_s, event)
            case _:
                pass  # Woken: what is due is looked at in every turn
        self._write(now_s)
        return Effects(do=tuple(self._do), wake_at_s=self._wake_s())

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        nodes = tuple(self._nodes[name] for name in sorted(self._nodes))
        return self._memory.model_copy(update={"nodes": nodes}).canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        memory = Memory.model_validate_json(snapshot)
        self._nodes = {seen.node: seen for seen in memory.nodes}
        self._memory = memory.model_copy(update={"nodes": ()})

    @property
    def fleet(self) -> Fleet:
        """What the bucket holds."""
        stored = (self._nodes[name].stored for name in sorted(self._nodes))
        return Fleet(nodes=tuple(node for node in stored if node is not None))

    # -- buckets --------------------------------------------------------------------------------

    def _begin(self, now_s: float, entries: Iterable[Entry]) -> None:
        """A new life: pictures of the one before are hints, signs of life are none, the buckets are the truth."""
        kept = {name: seen.picture for name, seen in self._nodes.items()}
        self._memory = Memory()
        self._nodes = {}
        for entry in sorted(entries, key=lambda entry: (entry.bucket, entry.key)):
            self._learn(now_s, entry)
        for name in sorted(self._nodes):
            seen = self._nodes[name]
            state = "observed" if seen.stored is None else seen.stored.state
            self._see(seen, picture=kept.get(name), verdict=state)
            self._ask(now_s, name)
        self._remember(stale=True, due_s=now_s, greets=bool(self.fleet.nodes))

    def _learn(self, now_s: float, entry: Entry) -> None:
        match entry.bucket:
            case "fleet":
                self._own(now_s, entry)
            case "hosts":
                self._host(now_s, entry)
            case "routes":
                plans = plans_of(entry.value)
                routes = {**self._memory.routes, entry.key: plans}
                if not plans:
                    del routes[entry.key]
                self._remember(routes=dict(sorted(routes.items())))
            case _:
                pass

    def _own(self, now_s: float, entry: Entry) -> None:
        """Our bucket says what we wrote, or what the monitor before us did."""
        seen = self._nodes.get(entry.key)
        if seen is not None and entry.revision <= seen.bucket_revision:
            return
        self._take_over(now_s, entry)

    def _take_over(self, now_s: float, entry: Entry) -> None:
        """What is in the bucket is what we write upon, whoever wrote it."""
        seen = self._nodes.get(entry.key)
        stored = node_of(entry.value)
        if seen is None and entry.value is None:
            return
        if seen is not None and entry.value is None and seen.verdict == "lost":
            del self._nodes[entry.key]  # somebody cleared away what is gone
        else:
            seen = seen or self._new(now_s, entry.key)
            self._see(seen, stored=stored, bucket_revision=entry.revision)
        revision = self._memory.revision if stored is None else stored.revision
        self._remember(revision=max(revision, self._memory.revision))
        self._changed(now_s)

    def _host(self, now_s: float, entry: Entry) -> None:
        seen = self._nodes.get(entry.key) or self._new(now_s, entry.key)
        host = host_of(entry.value)
        if host != seen.host:
            self._see(seen, host=host, worker_s=now_s, worker_silent=False)
            self._changed(now_s)

    # -- agents ---------------------------------------------------------------------------------

    def _sampled(self, now_s: float, sample: NodeSampled) -> None:
        if sample.node not in self._nodes and len(self._nodes) >= NODES_BOUND:
            return
        seen = self._nodes.get(sample.node) or self._new(now_s, sample.node)
        before = now_s if seen.verdict == "lost" or seen.sign_s is None else seen.sign_s
        picture, complete = with_sample(seen.picture, sample)
        fresh = picture is not None and (sample.full or (seen.fresh and complete))
        changed = picture != seen.picture and _looks(picture) != _looks(seen.picture)
        verdict = "observed" if fresh else seen.verdict
        if changed or (fresh, verdict) != (seen.fresh, seen.verdict):
            self._changed(now_s)
        self._see(
            seen,
            picture=picture,
            told=seen.told or sample.full,
            fresh=fresh,
            since_s=now_s if seen.fresh else seen.since_s,
            heard_s=now_s,
            sign_s=now_s,
            verdict=verdict,
            change_s=before if changed and seen.change_s is None else seen.change_s,
        )
        if not fresh:
            self._ask(now_s, sample.node)

    def _ask(self, now_s: float, name: str) -> None:
        seen = self._nodes[name]
        if seen.asked_s is None or now_s - seen.asked_s >= ASK_EVERY_S:
            self._see(seen, asked_s=now_s)
            self._do.append(publish(SampleAsked(node=name), now_s))

    # -- signs of life --------------------------------------------------------------------------

    def _heard(self, now_s: float, heard: Heard) -> None:
        for name, (counter, ago_ms) in sorted(heard.beats.items()):
            self._beat(now_s, name, counter, now_s - ago_ms / 1000)
        for name in sorted(set(heard.host_beats) & set(self._nodes)):
            self._see(self._nodes[name], worker_s=now_s)
        for name in sorted(self._answering(heard.answered)):
            self._see(self._nodes[name], answered_s=now_s)
        outage = silence.is_outage(now_s, self._memory.fed_s, heard.echo_at_s)
        was_outage = self._memory.outage
        self._remember(fed_s=now_s, outage=outage)
        if outage:
            return
        if was_outage:
            self._clocks_anew(now_s)
        for name in sorted(self._nodes):
            self._judge(now_s, self._nodes[name])

    def _beat(self, now_s: float, name: str, counter: int, at_s: float) -> None:
        if name not in self._nodes and len(self._nodes) >= NODES_BOUND:
            return
        seen = self._nodes.get(name) or self._new(now_s, name)
        sign_s = at_s if seen.sign_s is None else max(seen.sign_s, at_s)
        missed = seen.picture is None or seen.picture.counter != counter
        self._see(
            seen,
            sign_s=sign_s,
            heard_s=max(seen.heard_s, at_s),
            fresh=seen.fresh and not (missed and seen.verdict != "observed"),
        )
        if missed or not seen.fresh:
            self._ask(now_s, name)

    def _answering(self, plans: Iterable[str]) -> set[str]:
        """Nodes with ranks of these plans."""
        answered = set(plans)
        return {
            node
            for by_plan in self._memory.routes.values()
            for plan, nodes in by_plan.items()
            if plan in answered
            for node in nodes
            if node in self._nodes
        }

    def _clocks_anew(self, now_s: float) -> None:
        for name in sorted(self._nodes):
            seen = self._nodes[name]
            self._see(seen, heard_s=now_s, since_s=now_s, worker_s=now_s)

    def _judge(self, now_s: float, seen: Seen) -> None:
        verdict = seen.verdict
        if silence.is_silent(now_s, seen.heard_s):
            verdict = silence.of_silent(now_s, seen.worker_s, seen.answered_s)
            if verdict == "unobserved" and seen.verdict == "lost":
                verdict = "lost"  # its worker alone does not bring a node back
        elif seen.fresh:
            verdict = "observed"
        elif seen.verdict == "observed" and now_s - seen.since_s >= SETTLE_S:
            verdict = "unobserved"
        worker_silent = seen.worker_s is None or silence.is_silent(now_s, seen.worker_s)
        if (verdict, worker_silent) == (seen.verdict, seen.worker_silent):
            return
        worse = verdict not in ("observed", seen.verdict) and seen.change_s is None
        self._see(
            seen,
            verdict=verdict,
            worker_silent=worker_silent,
            fresh=seen.fresh and verdict != "lost",
            since_s=now_s if verdict == "lost" else seen.since_s,
            change_s=(seen.sign_s or seen.heard_s) if worse else seen.change_s,
        )
        self._remember(stale=True, due_s=now_s)

    # -- writing --------------------------------------------------------------------------------

    def _write(self, now_s: float) -> None:
        memory = self._memory
        if memory.writing is not None or memory.due_s is None or now_s < memory.due_s:
            return
        if any(seen.unsettled for seen in self._nodes.values()):
            return  # looked at again whenever somebody tells, and with every judgement
        wanted = tree_of(self._nodes.values()) if memory.stale else ()
        changed = [node for node in wanted if node != self._nodes[node.node].stored]
        if not changed:
            self._remember(stale=False, due_s=None, greets=False)
            if memory.greets:
                self._do.append(greeting(now_s, self.fleet))
                self._do.extend(readings(self.fleet))
            return
        revision = memory.revision + 1
        nodes = tuple(node.model_copy(update={"revision": revision}) for node in changed)
        signs = (self._nodes[node.node].change_s for node in nodes)
        seen_s = min((sign for sign in signs if sign is not None), default=now_s)
        said = revision_of(self.fleet, nodes, now_s, seen_s)
        self._put_all(nodes, said)

    def _put_all(self, nodes: tuple[Node, ...], said: FleetChanged) -> None:
        write_id = derived_id("fleet", said.revision, said.trace_id)
        puts = tuple(
            Put(
                write_id=derived_id("fleet", said.revision, said.trace_id, node.node),
                bucket=FLEET,
                key=node.node,
                value=node.canonical_json(),
                expected=self._nodes[node.node].bucket_revision,
            )
            for node in nodes
        )
        self._remember(writing=Writing(write_id=write_id, nodes=nodes, said=said))
        self._do.append(PutAll(write_id=write_id, puts=puts))

    def _stored(self, now_s: float, stored: Stored) -> None:
        writing = self._memory.writing
        if writing is None or writing.write_id != stored.write_id:
            return
        self._remember(writing=None)
        if stored.outcome == "conflict":
            self._conflict(now_s, stored)
            return
        revisions = {entry.key: entry.revision for entry in stored.entries}
        for node in writing.nodes:
            seen = self._nodes[node.node]
            revision = revisions.get(node.node, seen.bucket_revision)
            self._see(seen, stored=node, bucket_revision=revision, change_s=None)
        self._remember(
            revision=writing.said.revision, conflicts=0, stale=False, due_s=None, greets=False
        )
        self._do.extend(told(writing.said, now_s))
        self._do.extend(readings(self.fleet))

    def _conflict(self, now_s: float, stored: Stored) -> None:
        """Somebody else wrote: take over what is there, and write what is true again."""
        conflicts = self._memory.conflicts + 1
        if conflicts >= CONFLICTS_LIMIT:
            raise BrokenInvariant(f"another monitor writes the bucket {FLEET}")
        for entry in stored.entries:
            self._take_over(now_s, entry)
        self._remember(conflicts=conflicts, stale=True, due_s=now_s + GATHER_S)

    def _wake_s(self) -> float | None:
        unsettled = any(seen.unsettled for seen in self._nodes.values())
        return None if unsettled or self._memory.writing is not None else self._memory.due_s

    # -- memory ---------------------------------------------------------------------------------

    def _new(self, now_s: float, name: str) -> Seen:
        seen = Seen(node=name, since_s=now_s, heard_s=now_s)
        self._nodes[name] = seen
        return seen

    def _see(self, seen: Seen, **fields: object) -> None:
        self._nodes[seen.node] = seen.model_copy(update=fields)

    def _changed(self, now_s: float) -> None:
        due_s = now_s + GATHER_S
        was_due_s = self._memory.due_s
        self._remember(stale=True, due_s=due_s if was_due_s is None else min(was_due_s, due_s))

    def _remember(self, **fields: object) -> None:
        self._memory = self._memory.model_copy(update=fields)


def _looks(picture: Picture | None) -> object:
    """A picture without its counter."""
    return None if picture is None else (picture.devices, picture.fabrics, picture.rack)
