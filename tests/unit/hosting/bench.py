"""A worker's machine on the bench: commands and reports go in, what it says and asks for comes out."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.plan import (
    DrainPlan,
    GatePlan,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
)
from flexpipe.hosting import effects, inputs
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Publish,
    Put,
    Span,
    Started,
    Stored,
    Woken,
)
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Device, DeviceRef, Host, Node
from flexpipe.model.plan import LayerRange, Plan, Stage

GB = 1_000_000_000
MODEL = ModelRef(name="toy", path="/models/toy")
ENGINE = EngineSettings(kind="emulated", form="emulated")
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"

Said = TypeVar("Said", bound=Message)
Done = TypeVar("Done", bound=Effect)


def node(
    name: str = "node-a", slots: int = 2, memory_bytes: int = 4 * GB, model: str = "cpu"
) -> Node:
    devices = tuple(
        Device(device=f"slot-{index}", kind="emulated", memory_bytes=memory_bytes, model=model)
        for index in range(slots)
    )
    return Node(node=name, address="127.0.0.1", devices=devices)


def plan(*stages: str, rank_bytes: int = 3 * GB) -> Plan:
    """A plan from one word a stage: `a0`, `a0+a1`: devices are named node letter and slot."""
    return Plan(
        model="toy",
        engine="emulated",
        stages=tuple(
            Stage(
                layers=LayerRange(first=index * 2, end=index * 2 + 2),
                devices=tuple(
                    DeviceRef(node=f"node-{word[0]}", device=f"slot-{word[1:]}")
                    for word in stage.split("+")
                ),
                rank_bytes=rank_bytes,
            )
            for index, stage in enumerate(stages)
        ),
    )


def fence(step: int, *, shift: int = 1, term: int = 1) -> Fence:
    return Fence(deployment="chat", term=term, shift=shift, step=step)


@dataclass
class Bench:
    """One machine, its clock, and everything it ever did."""

    worker: Worker = field(default_factory=Worker)
    name: str = "node-a"
    now_s: float = 1000.0
    done: list[Effect] = field(default_factory=list)
    wake_at_s: float | None = None
    fed: int = 0
    revision: int = 0
    stores: bool = True  # writes have an outcome; False: the bus is away
    rival: bool = False  # somebody else writes our key before each of our writes

    def feed(self, event: Input) -> list[Effect]:
        """One input and the outcomes of the writes it led to; gives the effects in order."""
        told = self.worker.handle(self.now_s, event)
        self.done += told.do
        self.wake_at_s = told.wake_at_s
        gathered = list(told.do)
        for put in [effect for effect in told.do if isinstance(effect, Put) and self.stores]:
            gathered += self.feed(self.write(put))
        return gathered

    def write(self, put: Put) -> Stored:
        self.revision += self.rival
        if put.expected == self.revision:
            self.revision += 1
            outcome, value = "written", put.value
        else:
            outcome, value = "conflict", "{}"
        entry = Entry(bucket=put.bucket, key=put.key, value=value, revision=self.revision)
        return Stored.model_validate(
            {"write_id": put.write_id, "outcome": outcome, "entries": (entry,)}
        )

    def open(self, memory: str | None = None, **fields: Any) -> list[Effect]:
        opened = inputs.Opened(node=node(self.name, **fields), memory=memory)
        return [*self.feed(Started(entries=())), *self.feed(opened)]

    def tell(self, message: Message, message_id: str | None = None) -> list[Effect]:
        """Deliver a command."""
        self.fed += 1
        return self.feed(
            Delivered(
                type=type(message).__name__,
                message=message.canonical_json(),
                message_id=message_id or f"m{self.fed}",
                traceparent=TRACEPARENT,
            )
        )

    def pass_time(self, seconds: float) -> list[Effect]:
        """Let time pass and wake the machine where it wished to be woken by then."""
        self.now_s += seconds
        if self.wake_at_s is None or self.wake_at_s > self.now_s:
            return []
        return self.feed(Woken())

    # -- commands -----------------------------------------------------------------------------

    def start(self, wanted: Plan, at: Fence, **fields: Any) -> list[Effect]:
        order = {"front_port": 31_000, "limit_s": 60.0, **fields}
        rendezvous = f"127.0.0.1:{order['front_port'] + 1}"
        return self.tell(
            StartPlan(
                node=self.name,
                fence=at,
                plan=wanted,
                model=MODEL,
                engine=ENGINE,
                rendezvous=rendezvous,
                **order,
            )
        )

    def stop(self, wanted: Plan, at: Fence, limit_s: float = 30.0) -> list[Effect]:
        return self.tell(StopPlan(node=self.name, fence=at, plan=wanted.id, limit_s=limit_s))

    def gate(self, wanted: Plan, at: Fence, *, admitting: bool) -> list[Effect]:
        return self.tell(GatePlan(node=self.name, fence=at, plan=wanted.id, admitting=admitting))

    def warm(self, wanted: Plan, at: Fence, requests: int = 3) -> list[Effect]:
        return self.tell(
            WarmPlan(node=self.name, fence=at, plan=wanted.id, requests=requests, limit_s=10.0)
        )

    def drain(self, wanted: Plan, at: Fence) -> list[Effect]:
        return self.tell(DrainPlan(node=self.name, fence=at, plan=wanted.id, limit_s=10.0))

    def withdraw(
        self, device: str, *, present: bool = False, at_once: bool = False
    ) -> list[Effect]:
        return self.tell(
            WithdrawDevice(
                node=self.name, fence=fence(0), device=device, present=present, at_once=at_once
            )
        )

    def run(self, wanted: Plan, at: Fence, **fields: Any) -> str:
        """Start a plan until it runs; gives its group."""
        group = one(self.start(wanted, at, **fields), effects.LaunchRanks).group
        self.feed(inputs.RanksUp(group=group, pid=4711))
        self.feed(inputs.FrontReady(group=group))
        return group


def bench(name: str = "node-a", **fields: Any) -> Bench:
    """An open worker of one node."""
    fresh = Bench(name=name)
    fresh.open(**fields)
    return fresh


def said(gathered: list[Effect], kind: type[Said]) -> list[Said]:
    """Messages of one class among effects."""
    parsed = [parse(each.type, each.message) for each in gathered if isinstance(each, Publish)]
    return [message for message in parsed if isinstance(message, kind)]


def asked(gathered: list[Effect], kind: type[Done]) -> list[Done]:
    """Effects of one class."""
    return [each for each in gathered if isinstance(each, kind)]


def one(gathered: list[Effect], kind: type[Done]) -> Done:
    found = asked(gathered, kind)
    assert len(found) == 1, gathered
    return found[0]


def only(gathered: list[Effect], kind: type[Said]) -> Said:
    found = said(gathered, kind)
    assert len(found) == 1, gathered
    return found[0]


def declared(gathered: list[Effect]) -> list[str]:
    """Devices of the last host key written."""
    put = asked(gathered, Put)[-1]
    assert put.bucket == "hosts"
    return [] if put.value is None else list(Host.model_validate_json(put.value).devices)


def spans(gathered: list[Effect]) -> list[Span]:
    return asked(gathered, Span)


def nothing(told: Effects | list[Effect]) -> bool:
    do = told.do if isinstance(told, Effects) else told
    return not [each for each in do if not isinstance(each, effects.Keep)]
