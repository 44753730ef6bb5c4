"""Engines in virtual time, and the hands of a worker over them: what the real machine of `hosting` acts on in a world.

An engine is a front with the real gate, ranks on nodes, and requests that get one token of the oracle a step. It has no
HTTP: `generate`, `abort` and `hang_up` are calls, and what an engine says comes through a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from flexpipe.engines import gate as gates
from flexpipe.engines.emulated.oracle import Oracle, TokenChain
from flexpipe.engines.port import RankGroup
from flexpipe.hosting import effects, inputs
from flexpipe.kernel.machine import Effect, Input
from flexpipe.model.fleet import Node
from flexpipe.testing.world import World

ORACLE: Final = Oracle(vocab_size=512, first_id=16, eos_id=0)
"""No sequence ends by itself: how long each gets is the test's wish."""

LAUNCH_S: Final = 0.05
START_S: Final = 1.0
STEP_S: Final = 0.05
PREFILL_S: Final = 0.08
GATE_S: Final = 0.01
PROMPTS_S: Final = 0.3
LOOK_S: Final = 0.2
END_S: Final = 0.15
NOTICE_S: Final = 0.1
"""From the death of one rank until its peers notice and end."""

Fault = Literal["start-fails", "never-ready", "gate-silent", "warm-fails", "abort-deaf"]
Said = Callable[[tuple[int, ...], str | None], None]
"""What a request's reader is told: all tokens so far, and how it ended (`length`, `abort`, `broke`)."""


@dataclass
class Request:
    """One generation."""

    chain: TokenChain
    left: int
    say: Said
    tokens: list[int] = field(default_factory=list)
    aborted: bool = False


@dataclass
class Ranks:
    """The processes of one group on one node."""

    node: str
    group: RankGroup
    ends: bool = False  # told to end, or dead: nothing of it is reported any more


@dataclass
class Engine:
    """One start of one plan. `ranks` by node, those that live."""

    plan: str
    nodes: tuple[str, ...]
    gate: gates.Gate
    ranks: dict[str, Ranks] = field(default_factory=dict)
    whole_at_s: float | None = None  # since when all ranks are there
    requests: dict[str, Request] = field(default_factory=dict)

    def ready(self, now_s: float) -> bool:
        """Whether its front answers ready."""
        return self.whole_at_s is not None and now_s >= self.whole_at_s + START_S


class Engines:
    """All engines of a world. `faults` by plan id, or `*` for every plan."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults: dict[str, set[Fault]] = {}
        self._fronts: dict[str, Engine] = {}

    def has(self, plan: str, fault: Fault) -> bool:
        """Whether a fault is on."""
        return fault in self.faults.get(plan, set()) | self.faults.get("*", set())

    def at(self, front: str) -> Engine | None:
        """Who answers at a front."""
        engine = self._fronts.get(front)
        return engine if engine is not None and engine.ready(self._world.now_s) else None

    def running(self) -> dict[str, list[str]]:
        """Request ids by plan."""
        found: dict[str, list[str]] = {}
        for engine in self._fronts.values():
            if engine.requests:
                found.setdefault(engine.plan, []).extend(sorted(engine.requests))
        return found

    # -- HTTP -----------------------------------------------------------------------------------

    def generate(
        self, engine: Engine, rid: str, prompt: tuple[int, ...], new_tokens: int, say: Said
    ) -> None:
        """Begin a generation that the gate has let in."""
        engine.requests[rid] = Request(TokenChain(ORACLE, prompt), new_tokens, say)
        self._world.after(PREFILL_S, lambda: self._step(engine, rid))

    def abort(self, front: str, rid: str) -> None:
        """Ask for an end after the step that runs."""
        engine = self._fronts.get(front)
        request = None if engine is None else engine.requests.get(rid)
        if engine is not None and request is not None and not self.has(engine.plan, "abort-deaf"):
            request.aborted = True

    def hang_up(self, front: str, rid: str) -> None:
        """The reader closes the connection."""
        engine = self._fronts.get(front)
        if engine is not None:
            engine.requests.pop(rid, None)

    def _step(self, engine: Engine, rid: str) -> None:
        request = engine.requests.get(rid)
        if request is None:
            return
        if request.aborted:
            del engine.requests[rid]
            request.say(tuple(request.tokens), "abort")
            return
        request.tokens.append(next(request.chain))
        request.left -= 1
        if request.left == 0:
            del engine.requests[rid]
            request.say(tuple(request.tokens), "length")
            return
        self._world.after(STEP_S, lambda: self._step(engine, rid))
        request.say(tuple(request.tokens), None)

    # -- processes --------------------------------------------------------------------------------

    def join(self, ranks: Ranks) -> None:
        """Ranks of a node have come up."""
        group = ranks.group
        front = f"http://{group.rendezvous.rpartition(':')[0]}:{group.front_port}"
        engine = self._fronts.get(front)
        if engine is None or (engine.plan, bool(engine.ranks)) != (group.plan.id, True):
            fence = gates.Fence(group.fence.term, group.fence.shift, group.fence.step)
            closed = gates.GateState(
                plan=group.plan.id, admitting=False, fence=fence, route_entry=None
            )
            engine = Engine(group.plan.id, group.plan.nodes, gates.Gate(closed))
            self._fronts[front] = engine
        engine.ranks[ranks.node] = ranks
        if set(engine.ranks) == set(engine.nodes):
            engine.whole_at_s = self._world.now_s

    def leave(self, ranks: Ranks) -> list[Ranks]:
        """Ranks of a node are gone; gives the peers that will notice."""
        for engine in self._fronts.values():
            if engine.ranks.get(ranks.node) is ranks:
                del engine.ranks[ranks.node]
                engine.whole_at_s = None
                broken, engine.requests = engine.requests, {}
                for request in broken.values():
                    request.say(tuple(request.tokens), "broke")
                return list(engine.ranks.values())
        return []


class Hands:
    """Performs what one worker's brain asks for; `Keep` outlives the worker's process, nothing else does."""

    def __init__(self, world: World, engines: Engines, node: Node) -> None:
        self.node = node
        self.kept: str | None = None
        self._world = world
        self._engines = engines
        self._groups: dict[str, Ranks] = {}
        self._life = 0
        self.peers: dict[str, Hands] = {}

    def used_bytes(self, device: str) -> int:
        """Bytes that ranks on a device hold."""
        return sum(
            bytes_
            for ranks in self._groups.values()
            for ref, bytes_ in ranks.group.plan.claims()
            if (ref.node, ref.device) == (self.node.node, device)
        )

    @property
    def plans(self) -> set[str]:
        """Plans whose ranks run here."""
        return {ranks.group.plan.id for ranks in self._groups.values()}

    def open(self) -> None:
        """A worker's process has come up."""
        self._tell(inputs.Opened(node=self.node, memory=self.kept), 0.01)

    def crash(self) -> None:
        """The worker's process dies, and its engines with it."""
        self._world.kill(self.node.node)
        self._life += 1
        for group in list(self._groups):
            self._gone(group)

    def kill_rank(self, plan: str) -> None:
        """A rank dies without having been told to."""
        for name, ranks in list(self._groups.items()):
            if ranks.group.plan.id == plan and not ranks.ends:
                self._die(name, "killed by SIGKILL")

    def perform(self, effect: Effect) -> Iterable[tuple[float, Input]]:
        """Begin one effect; its answer is fed later."""
        match effect:
            case effects.Keep():
                self.kept = effect.memory
            case effects.LaunchRanks():
                self._later(LAUNCH_S, lambda: self._launch(effect))
            case effects.PollReady():
                self._poll(effect, self._world.now_s + effect.limit_s)
            case effects.SetGate():
                self._later(GATE_S, lambda: self._set_gate(effect))
            case effects.SendPrompts():
                self._later(PROMPTS_S, lambda: self._send_prompts(effect))
            case effects.WatchDrain():
                self._watch(effect, self._world.now_s + effect.limit_s, zeros=0)
            case effects.StopRanks():
                if effect.group in self._groups:
                    self._groups[effect.group].ends = True
                self._later(END_S, lambda: self._end(effect.group))
            case _:
                raise AssertionError(f"no hands for {type(effect).__name__}")
        return ()

    # -- processes --------------------------------------------------------------------------------

    def _launch(self, effect: effects.LaunchRanks) -> None:
        ranks = Ranks(self.node.node, effect.ranks)
        self._groups[effect.group] = ranks
        self._engines.join(ranks)
        self._tell(inputs.RanksUp(group=effect.group, pid=4711))
        if self._engines.has(effect.ranks.plan.id, "start-fails"):
            self._later(LOOK_S, lambda: self._die(effect.group, "exit code 1"))

    def _die(self, group: str, reason: str) -> None:
        ranks = self._groups.get(group)
        if ranks is None or ranks.ends:
            return
        peers = self._gone(group)
        self._tell(inputs.RanksExited(group=group, reason=reason, log_tail="killed"))
        for peer in peers:
            self._world.after(NOTICE_S, self.peers[peer.node].noticing(peer))

    def noticing(self, ranks: Ranks) -> Callable[[], None]:
        """Ranks of this node find a peer gone and end."""

        def notice() -> None:
            for name, mine in list(self._groups.items()):
                if mine is ranks:
                    self._die(name, "a peer is gone")

        return notice

    def _end(self, group: str) -> None:
        for peer in self._gone(group):
            self._world.after(NOTICE_S, self.peers[peer.node].noticing(peer))
        self._tell(inputs.RanksGone(group=group))

    def _gone(self, group: str) -> list[Ranks]:
        ranks = self._groups.pop(group, None)
        if ranks is None:
            return []
        ranks.ends = True
        return self._engines.leave(ranks)

    # -- the front ----------------------------------------------------------------------------------

    def _poll(self, effect: effects.PollReady, until_s: float) -> None:
        ranks = self._groups.get(effect.group)
        if ranks is None or ranks.ends:
            return
        ready = self._engines.at(effect.front) is not None
        if ready and not self._engines.has(ranks.group.plan.id, "never-ready"):
            self._tell(inputs.FrontReady(group=effect.group))
        elif self._world.now_s >= until_s:
            waited = inputs.FrontSilent(group=effect.group, waited_s=effect.limit_s, log_tail="")
            self._tell(waited)
        else:
            self._later(LOOK_S / 2, lambda: self._poll(effect, until_s))

    def _set_gate(self, effect: effects.SetGate) -> None:
        if self._engines.has(effect.plan, "gate-silent"):
            return
        engine = self._engines.at(effect.front)
        fence = gates.Fence(*effect.fence.order)
        wanted = gates.GateState(effect.plan, effect.admitting, fence, effect.route_entry)
        outcome = None if engine is None else engine.gate.set(wanted)
        if isinstance(outcome, gates.GateState):
            self._tell(inputs.GateSet(group=effect.group, fence=effect.fence))
        else:
            reason = "nobody answers" if outcome is None else outcome.message
            self._tell(inputs.GateNotSet(group=effect.group, fence=effect.fence, reason=reason))

    def _send_prompts(self, effect: effects.SendPrompts) -> None:
        failed = self._engines.at(effect.front) is None
        failed = failed or self._engines.has(effect.plan, "warm-fails")
        count = len(effect.prompts)
        sent = inputs.PromptsSent(
            group=effect.group,
            fence=effect.fence,
            requests=count,
            errors=count if failed else 0,
            reason="HTTP 500" if failed else None,
            ttft_p50_ms=None,
            itl_p50_ms=None,
        )
        self._tell(sent)

    def _watch(self, effect: effects.WatchDrain, until_s: float, *, zeros: int) -> None:
        ranks = self._groups.get(effect.group)
        if ranks is None or ranks.ends:
            return
        engine = self._engines.at(effect.front)
        zeros = zeros + 1 if engine is not None and not engine.requests else 0
        if zeros == 2:
            self._tell(inputs.Drained(group=effect.group, fence=effect.fence))
        elif self._world.now_s >= until_s:
            left = inputs.NotDrained(group=effect.group, fence=effect.fence, reason="requests left")
            self._tell(left)
        else:
            self._later(LOOK_S, lambda: self._watch(effect, until_s, zeros=zeros))

    # -- time ---------------------------------------------------------------------------------------

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Unless the worker's process has died meanwhile."""
        life = self._life
        self._world.after(delay_s, lambda: action() if life == self._life else None)

    def _tell(self, event: Input, after_s: float = 0.0) -> None:
        self._world.feed(self.node.node, event, after_s)
