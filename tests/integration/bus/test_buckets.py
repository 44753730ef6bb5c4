"""Buckets on a real server: compare-and-set, atomic batches, deletion, unknown outcomes, watches."""

from __future__ import annotations

import asyncio

import pytest

from flexpipe.bus import Bus
from flexpipe.bus.buckets import _write_headers, subject_of
from flexpipe.bus.link import Link
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Entry, Put, PutAll
from flexpipe.testing.nats import Dial, until

pytestmark = pytest.mark.processes


@pytest.fixture
async def bus(dial: Dial) -> Bus:
    return await dial("executor")


def a_put(key: str = "n.d", value: str | None = "1", expected: int = 0, write: str = "w") -> Put:
    return Put(write_id=write, bucket="reservations", key=key, value=value, expected=expected)


def a_batch(*puts: Put, write: str = "batch") -> PutAll:
    return PutAll(write_id=write, puts=puts)


async def test_a_first_write_needs_an_absent_key(bus: Bus) -> None:
    written = await bus.put(a_put())
    assert (written.outcome, written.entries[0].value) == ("written", "1")
    refused = await bus.put(a_put(value="2", write="other"))
    assert (refused.outcome, refused.entries) == ("conflict", written.entries)


async def test_a_write_on_an_old_revision_conflicts_and_says_what_is_there(bus: Bus) -> None:
    first = (await bus.put(a_put())).entries[0]
    second = (await bus.put(a_put(value="2", expected=first.revision, write="w2"))).entries[0]
    third = await bus.put(a_put(value="3", expected=first.revision, write="w3"))
    assert third.outcome == "conflict"
    assert third.entries == (second,)


async def test_of_two_at_once_one_wins(bus: Bus) -> None:
    stored = await asyncio.gather(*(bus.put(a_put(value=str(i), write=f"w{i}")) for i in range(8)))
    assert sorted(each.outcome for each in stored) == ["conflict"] * 7 + ["written"]
    winner = next(each for each in stored if each.outcome == "written")
    assert all(each.entries == winner.entries for each in stored)


async def test_the_same_write_again_is_the_same_write(bus: Bus) -> None:
    first = await bus.put(a_put())
    assert await bus.put(a_put()) == first


async def test_a_deleted_key_is_absent_and_can_be_written_anew(bus: Bus) -> None:
    first = (await bus.put(a_put())).entries[0]
    gone = await bus.put(a_put(value=None, expected=first.revision, write="del"))
    assert gone.outcome == "written"
    assert (await bus.read("reservations", "n.d")).value is None
    assert await bus.read_all("reservations") == ()
    again = await bus.put(a_put(value="2", expected=0, write="again"))
    assert again.outcome == "written"
    assert (await bus.read("reservations", "n.d")).value == "2"


async def test_a_key_never_written_is_at_revision_zero(bus: Bus) -> None:
    assert await bus.read("routes", "nobody") == Entry(
        bucket="routes", key="nobody", value=None, revision=0
    )


async def test_read_all_gives_every_key_sorted(bus: Bus) -> None:
    for key in ("b.2", "a.1", "c.3"):
        await bus.put(a_put(key=key, write=key))
    assert [entry.key for entry in await bus.read_all("reservations")] == ["a.1", "b.2", "c.3"]


async def test_a_batch_is_all_or_none(bus: Bus) -> None:
    taken = (await bus.put(a_put(key="b"))).entries[0]
    refused = await bus.put_all(a_batch(a_put(key="a"), a_put(key="b", value="2"), a_put(key="c")))
    assert refused.outcome == "conflict"
    assert [entry.value for entry in refused.entries] == [None, "1", None]
    assert await bus.read_all("reservations") == (taken,)
    written = await bus.put_all(
        a_batch(a_put(key="a"), a_put(key="b", value="2", expected=taken.revision), write="b2")
    )
    assert written.outcome == "written"
    assert written.entries == await bus.read_all("reservations")


async def test_a_conflict_in_the_last_write_of_a_batch_undoes_the_first(bus: Bus) -> None:
    await bus.put(a_put(key="z"))
    refused = await bus.put_all(a_batch(a_put(key="a"), a_put(key="z", value="2")))
    assert refused.outcome == "conflict"
    assert [entry.key for entry in await bus.read_all("reservations")] == ["z"]


async def test_a_batch_may_delete_and_write_deleted_keys_anew(bus: Bus) -> None:
    first = await bus.put_all(a_batch(a_put(key="a"), a_put(key="b")))
    a, b = first.entries
    gone = await bus.put_all(
        a_batch(
            a_put(key="a", value=None, expected=a.revision),
            a_put(key="b", value=None, expected=b.revision),
            write="del",
        )
    )
    assert gone.outcome == "written"
    assert await bus.read_all("reservations") == ()
    again = await bus.put_all(a_batch(a_put(key="a"), a_put(key="b"), write="again"))
    assert again.outcome == "written"


async def test_of_two_batches_over_the_same_keys_one_wins_whole(bus: Bus, dial: Dial) -> None:
    other = await dial("executor", "two")
    keys = [f"n.{i}" for i in range(8)]
    mine = a_batch(*(a_put(key=key, value="mine") for key in keys), write="mine")
    theirs = a_batch(*(a_put(key=key, value="theirs") for key in reversed(keys)), write="theirs")
    stored = await asyncio.gather(bus.put_all(mine), other.put_all(theirs))
    assert sorted(each.outcome for each in stored) == ["conflict", "written"]
    assert len({entry.value for entry in await bus.read_all("reservations")}) == 1


async def test_the_same_batch_again_is_the_same_batch(bus: Bus) -> None:
    batch = a_batch(a_put(key="a"), a_put(key="b"))
    assert await bus.put_all(batch) == await bus.put_all(batch)


async def test_a_batch_that_writes_a_key_twice_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="each key once"):
        await bus.put_all(a_batch(a_put(key="a"), a_put(key="a", value="2")))


async def test_a_write_whose_ack_was_lost_is_found_to_be_ours(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Link.store
    lost: list[str] = []

    async def lose_first(link: Link, subject: str, body: bytes, headers: dict[str, str]) -> object:
        ack = await store(link, subject, body, headers)
        if not lost:
            lost.append(subject)
            raise Unavailable("the answer got lost")
        return ack

    monkeypatch.setattr(Link, "store", lose_first)
    written = await bus.put(a_put())
    assert lost
    assert written.outcome == "written"
    assert written.entries[0].revision == 1


async def test_a_write_that_never_left_is_made_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Link.store
    lost: list[str] = []

    async def drop_first(link: Link, subject: str, body: bytes, headers: dict[str, str]) -> object:
        if not lost:
            lost.append(subject)
            raise Unavailable("it got lost")
        return await store(link, subject, body, headers)

    monkeypatch.setattr(Link, "store", drop_first)
    assert (await bus.put(a_put())).outcome == "written"


async def test_a_late_twin_of_a_write_changes_nothing(bus: Bus) -> None:
    put = a_put()
    first = (await bus.put(put)).entries[0]
    twin = await bus.main.request(
        subject_of("reservations", "n.d"), b"1", _write_headers(put, put.expected)
    )
    assert b'"err_code"' in twin
    assert await bus.read("reservations", "n.d") == first


async def test_a_batch_whose_commit_ack_was_lost_is_found_to_be_ours(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Link.request
    lost: list[str] = []

    async def lose_commit(
        link: Link, subject: str, body: bytes, *rest: object, **more: object
    ) -> bytes:
        answer = await request(link, subject, body, *rest, **more)  # type: ignore[arg-type]
        headers = rest[0] if rest else None
        if isinstance(headers, dict) and "Nats-Batch-Commit" in headers and not lost:
            lost.append(subject)
            raise Unavailable("the answer got lost")
        return answer

    monkeypatch.setattr(Link, "request", lose_commit)
    written = await bus.put_all(a_batch(a_put(key="a"), a_put(key="b")))
    assert lost
    assert written.outcome == "written"
    assert [entry.revision for entry in written.entries] == [1, 2]


async def test_too_large_a_value_is_refused_before_it_leaves(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="max_payload"):
        await bus.put(a_put(value="x" * (2 << 20)))


async def test_a_watch_gives_what_is_there_and_then_every_change(bus: Bus) -> None:
    await bus.put(a_put(key="a"))
    seen: list[Entry] = []

    async def follow() -> None:
        async for entry in bus.watch("reservations"):
            seen.append(entry)

    following = asyncio.create_task(follow())
    await until(lambda: len(seen) == 1)
    second = (await bus.put(a_put(key="b"))).entries[0]
    await bus.put(a_put(key="b", value=None, expected=second.revision, write="del"))
    await until(lambda: len(seen) == 3)
    following.cancel()
    assert [(entry.key, entry.value) for entry in seen] == [("a", "1"), ("b", "1"), ("b", None)]
