"""What changed between two pictures of the fleet: device by device, in a sentence, and whether it is urgent.

Called by the monitor's machine when it writes a revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.events.fleet import DeviceChange
from flexpipe.model.fleet import Device, DeviceRef, Fleet

CLAUSES: Final = 4
"""Of a sentence: a person reads no more at a glance, and the changes are beside it one by one."""

_WORDS: Final = {
    "joined": "joined",
    "left": "left",
    "closed": "closed",
    "opened": "opened",
    "altered": "changed",
}


def changes_between(before: Fleet, after: Fleet) -> tuple[DeviceChange, ...]:
    """Devices that the two see differently, sorted."""
    refs = sorted(_declared(before) | _declared(after))
    found = (_change(ref, before, after) for ref in refs)
    return tuple(change for change in found if change is not None)


def is_urgent(changes: Sequence[DeviceChange], before: Fleet, after: Fleet) -> bool:
    """Whether the loop should look at once: something left or came, is to be preempted, or its links changed."""
    return any(
        change.what in ("joined", "left", "opened") or _health(change.device, before, after)
        for change in changes
    )


def sentence_of(changes: Sequence[DeviceChange], after: Fleet) -> str:
    """For people: who, what and why, then what is left."""
    groups: dict[tuple[str, str, str], list[DeviceRef]] = {}
    for change in changes:
        key = (change.device.node, change.what, change.why)
        groups.setdefault(key, []).append(change.device)
    clauses = [
        f"{_named(refs, after)} {_WORDS[what]}" + (f" ({why})" if why else "")
        for (_, what, why), refs in groups.items()
    ]
    if len(clauses) > CLAUSES:
        more = len(clauses) - CLAUSES
        clauses = [*clauses[:CLAUSES], f"and {more} more change{'s' if more > 1 else ''}"]
    said = "; ".join(clauses) if clauses else "what is known of nodes changed, devices did not"
    return f"{said}. {_left(after)}"


def _left(fleet: Fleet) -> str:
    refs = fleet.refs()
    unclosed = sum(fleet.closed(ref) is None for ref in refs)
    return f"{len(refs)} devices are there, {unclosed} take something new."


def _named(refs: Sequence[DeviceRef], fleet: Fleet) -> str:
    node = fleet.node(refs[0].node)
    if len(refs) == 1:
        return str(refs[0])
    if node is not None and len(refs) == len(node.devices):
        return f"all {len(refs)} devices of {node.node}"
    return f"{refs[0].node}/" + ",".join(ref.device for ref in refs)


def _declared(fleet: Fleet) -> set[DeviceRef]:
    return {
        DeviceRef(node=node.node, device=device.device)
        for node in fleet.nodes
        for device in node.devices
    }


def _change(ref: DeviceRef, before: Fleet, after: Fleet) -> DeviceChange | None:
    was, now = before.device(ref), after.device(ref)
    if was == now:
        return None
    if now is None:
        return DeviceChange(device=ref, what="left", why=_why_gone(ref, after))
    if was is None:
        return DeviceChange(device=ref, what="joined", why=now.closed or "")
    if (was.closed is None) != (now.closed is None):
        what = "opened" if now.closed is None else "closed"
        return DeviceChange.model_validate({"device": ref, "what": what, "why": now.closed or ""})
    return DeviceChange(device=ref, what="altered", why=_what_altered(was, now))


def _why_gone(ref: DeviceRef, after: Fleet) -> str:
    node = after.node(ref.node)
    every = () if node is None else node.devices
    found = next((device for device in every if device.device == ref.device), None)
    return "it is not declared any more" if found is None else found.closed or ""


def _what_altered(was: Device, now: Device) -> str:
    if was.link_factor != now.link_factor:
        return f"links at {now.link_factor:.0%} of nominal"
    if was.leaves_at_s != now.leaves_at_s:
        return "it stays" if now.leaves_at_s is None else "it is to be preempted"
    if was.closed != now.closed:
        return now.closed or ""
    return "it is declared otherwise"


def _health(ref: DeviceRef, before: Fleet, after: Fleet) -> bool:
    was, now = before.device(ref), after.device(ref)
    if was is None or now is None:
        return True
    return (was.link_factor, was.leaves_at_s) != (now.link_factor, now.leaves_at_s)
