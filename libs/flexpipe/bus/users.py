"""One NATS user a service, with the least it needs. Permissions follow from the catalogue; nothing is granted by hand.

`flexpipe.bus.server` writes them into the configuration of the embedded server; for a cluster, `permissions` gives the
same lists to whoever keeps its accounts. A user of one instance (`worker-node-a`) speaks and hears for that instance
alone: its own command consumer (declared for it at stream set-up), its own keys in the buckets it writes, its own
subjects of the tel lane. An instance that stands for several nodes (an emulated fleet's agent) has several keys.
"""

from __future__ import annotations

import secrets
from typing import Annotated

from pydantic import Field

from flexpipe.bus.link import inbox_prefix
from flexpipe.events import catalog
from flexpipe.events.catalog import ROOT, Lane, Service
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.names import Name

ADMIN = "admin"
"""Declares streams and buckets; no service runs as it."""
SERVICES: tuple[Service, ...] = (
    *("agent", "monitor", "planner", "estimator"),
    *("executor", "router", "worker", "operator"),
)
DECIDERS: tuple[Service, ...] = tuple(each for each in SERVICES if each != "operator")
"""Services with machines: they keep a journal, snapshots and dead letters."""
OWN_KEY = {"worker": "hosts", "router": "roster"}
"""Buckets in which each instance of a service writes the key of its own name only."""
PASSWORD_BYTES = 24


class Instance(Frozen):
    """One running copy of a service, where users are made per instance: agents, routers, workers."""

    service: Service
    name: Name
    keys: tuple[Name, ...] = ()
    """What it speaks and hears for: nodes of an agent or worker. None given: its own name."""

    @property
    def user(self) -> str:
        """The name of its user, and of its durable consumers."""
        return f"{self.service}-{self.name}"

    @property
    def own(self) -> tuple[str, ...]:
        """Its keys, sorted."""
        return tuple(sorted(set(self.keys))) or (self.name,)


class Permissions(Frozen):
    """What a user may say and what it may listen to. Everything else is refused."""

    publish: Annotated[tuple[str, ...], Field(min_length=1)]
    subscribe: Annotated[tuple[str, ...], Field(min_length=1)]


def permissions(who: Service | Instance) -> Permissions:
    """The permissions of a service's user, or of the user of one instance of it."""
    instance = who if isinstance(who, Instance) else None
    service: Service = who.service if isinstance(who, Instance) else who
    own = None if instance is None else instance.own
    user = service if instance is None else instance.user
    allowed = {"$JS.API.INFO"}
    allowed.update(_messages(service, own))
    allowed.update(_hearing(service, None if instance is None else user))
    allowed.update(_buckets(service, instance))
    allowed.update(_keeping(service, instance))
    heard = {f"{inbox_prefix(user)}.>", *_overhearing(service, own)}
    return Permissions(publish=tuple(sorted(allowed)), subscribe=tuple(sorted(heard)))


def new_password() -> str:
    """A random one."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def durable_filters(instance: Instance) -> tuple[str, ...]:
    """Subjects of the commands that one instance hears, sorted; empty where it hears none."""
    return tuple(
        sorted(
            said.subject(key)
            for said in catalog.MESSAGES
            for key in instance.own
            if said.lane is Lane.CMD and instance.service in said.hears
        )
    )


def _messages(service: Service, own: tuple[str, ...] | None) -> set[str]:
    """What it says; a sign of life only for what is its own."""
    return {
        said.subject(key)
        for said in catalog.MESSAGES
        if service in said.says
        for key in ((">",) if own is None or said.is_stored else own)
    }


def _overhearing(service: Service, own: tuple[str, ...] | None) -> set[str]:
    """What no stream keeps is listened to as it is."""
    return {
        said.subject(key)
        for said in catalog.MESSAGES
        if service in said.hears and not said.is_stored
        for key in (own or (">",))
    }


def _hearing(service: Service, durable: str | None) -> set[str]:
    lanes = {said.lane for said in catalog.MESSAGES if service in said.hears}
    allowed: set[str] = set()
    for stream in catalog.STREAMS:
        if not lanes & set(stream.lanes):
            continue
        is_queue = stream.retention == "workqueue"
        allowed |= _consuming(stream.name, durable if is_queue else None)
    return allowed


def _consuming(stream: str, durable: str | None = None) -> set[str]:
    """Consumers of a stream; of a work queue with `durable`: that one only, and no say in what it filters."""
    api, one = "$JS.API.CONSUMER", durable or "*"
    allowed = {f"{api}.{verb}.{stream}.{one}" for verb in ("INFO", "MSG.NEXT", "RESET")}
    allowed.add(f"$JS.ACK.{stream}.{one}.>" if durable else f"$JS.ACK.{stream}.>")
    if durable is None:
        # The form without a name is what nats-py's watches use.
        allowed |= {f"{api}.CREATE.{stream}", f"{api}.CREATE.{stream}.>", f"$JS.FC.{stream}.>"}
    return allowed


def _buckets(service: Service, instance: Instance | None) -> set[str]:
    allowed: set[str] = set()
    for bucket in catalog.BUCKETS:
        stream = f"KV_{bucket.name}"
        if service in bucket.writers:
            keys = _own_keys(bucket.name, service, instance)
            allowed |= {f"$KV.{bucket.name}.{key}" for key in keys}
        if service in bucket.writers + bucket.readers:
            allowed |= {f"$JS.API.STREAM.{verb}.{stream}" for verb in ("INFO", "MSG.GET")}
            allowed |= _consuming(stream)
    return allowed


def _own_keys(bucket: str, service: Service, instance: Instance | None) -> tuple[str, ...]:
    if bucket == "snapshots":
        return (f"{service}.{instance.name if instance else '>'}",)
    if OWN_KEY.get(service) == bucket and instance is not None:
        return instance.own
    return (">",)


def _keeping(service: Service, instance: Instance | None) -> set[str]:
    """Journal and dead letters: deciders write their own, operators read all."""
    own = instance.name if instance else "*"
    reads = {"FLEXPIPE_INPUT", "FLEXPIPE_DEAD"} if service in DECIDERS else set()
    allowed: set[str] = set()
    if service in DECIDERS:
        allowed |= {
            f"{ROOT}.{Lane.INPUT}.{service}.{own}",
            f"{ROOT}.{Lane.DEAD}.letter.{service}.{own}",
            f"{ROOT}.{Lane.DEAD}.crash.{service}.{own}.*",
        }
    if service == "operator":
        reads = {stream.name for stream in catalog.STREAMS if stream.retention == "limits"}
    for stream in sorted(reads):
        allowed |= {f"$JS.API.STREAM.INFO.{stream}"} | _consuming(stream)
    return allowed
