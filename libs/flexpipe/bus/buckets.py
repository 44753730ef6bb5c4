"""Buckets: read from the leader, written by compare-and-set, alone or as one atomic batch. Called by `Bus`.

A write carries its `write_id` on the stored message. Where an attempt's outcome is unknown, the key is read: ours is
there (written), somebody else's is (conflict), or neither, and the same attempt is made again. Because every attempt
expects the same revision, a late twin of it can never land on top of anything.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from email.parser import BytesParser
from itertools import count

from flexpipe.bus.link import Link, NotFoundError, WrongRevision, parse_ack
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.frozen import digest
from flexpipe.kernel.machine import Entry, Put, PutAll, Stored

WRITE_ID = "Flexpipe-Write-Id"
OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
RETRY_WAIT_S = 0.2
"""Between attempts of a write whose outcome is unknown."""
READS_AT_ONCE = 32
"""Of one `read_all`: enough to hide latency, few enough to leave the connection to others."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lies at a key, and by which write."""

    entry: Entry
    write_id: str | None


def subject_of(bucket: str, key: str) -> str:
    """Where NATS keeps a key."""
    return f"$KV.{bucket}.{key}"


async def read(link: Link, bucket: str, key: str) -> Found:
    """One key from the leader. Absent: value None (revision 0 where it was never written). Raises Unavailable."""
    try:
        answer = await link.api(
            f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject_of(bucket, key)}
        )
    except NotFoundError as error:
        if "message" not in (error.description or ""):
            raise Unavailable(f"bucket {bucket}: {error.description}") from error
        return Found(Entry(bucket=bucket, key=key, value=None, revision=0), None)
    message = answer["message"]
    headers = _headers(message.get("hdrs"))
    gone = OPERATION in headers or MARKER in headers
    value = None if gone else base64.b64decode(message.get("data") or "").decode()
    entry = Entry(bucket=bucket, key=key, value=value, revision=int(message["seq"]))
    return Found(entry, headers.get(WRITE_ID))


async def read_all(link: Link, bucket: str) -> tuple[Entry, ...]:
    """Every key that has a value, sorted by key, each from the leader. Raises Unavailable."""
    prefix = subject_of(bucket, "")
    try:
        info = await link.api(f"STREAM.INFO.KV_{bucket}", {"subjects_filter": prefix + ">"})
    except NotFoundError as error:
        raise Unavailable(f"bucket {bucket}: {error.description}") from error
    keys = sorted(subject.removeprefix(prefix) for subject in (info["state"].get("subjects") or {}))
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def one(key: str) -> Entry:
        async with gate:
            return (await read(link, bucket, key)).entry

    entries = await asyncio.gather(*(one(key) for key in keys))
    return tuple(entry for entry in entries if entry.value is not None)


async def put(link: Link, wanted: Put, limit_s: float) -> Stored:
    """Compare-and-set one key. Raises Unavailable where nothing is known at the limit, Refused without permission."""
    async with _until(limit_s, f"{wanted.bucket}/{wanted.key}"):
        expected = wanted.expected
        for attempt in count():
            if attempt:
                await asyncio.sleep(RETRY_WAIT_S)
            with contextlib.suppress(Unavailable):
                await link.until_up(limit_s)
                try:
                    ack = await link.store(
                        subject_of(wanted.bucket, wanted.key),
                        (wanted.value or "").encode(),
                        _write_headers(wanted, expected),
                    )
                    return _stored(wanted.write_id, (_entry(wanted, ack.sequence),))
                except (WrongRevision, Unavailable) as error:
                    found = await read(link, wanted.bucket, wanted.key)
                    if _is_ours(found, wanted, wanted.write_id):
                        return _stored(wanted.write_id, (found.entry,))
                    if _absent_after_all(wanted, found, expected):
                        expected = found.entry.revision
                    elif isinstance(error, WrongRevision) or found.entry.revision != expected:
                        return _conflict(wanted.write_id, (found.entry,))
    raise AssertionError("unreachable: count() has no end")


async def put_all(link: Link, wanted: PutAll, limit_s: float) -> Stored:
    """Compare-and-set several keys of one bucket, all or none. Raises as `put`, and InvalidInput for a bad batch."""
    bucket, puts = _checked(wanted)
    async with _until(limit_s, f"{bucket}, batch of {len(puts)}"):
        expected = {each.key: each.expected for each in puts}
        for attempt in count():
            if attempt:
                await asyncio.sleep(RETRY_WAIT_S)
            with contextlib.suppress(Unavailable):
                await link.until_up(limit_s)
                with contextlib.suppress(WrongRevision, Unavailable):
                    await _send_batch(link, wanted.write_id, puts, expected)
                # Also after success: the ack of a batch gives one sequence, the machine wants each key's revision.
                found = [await read(link, bucket, each.key) for each in puts]
                if all(
                    _is_ours(at, each, wanted.write_id)
                    for at, each in zip(found, puts, strict=True)
                ):
                    return _stored(wanted.write_id, tuple(at.entry for at in found))
                fits = True
                for at, each in zip(found, puts, strict=True):
                    if _absent_after_all(each, at, expected[each.key]):
                        expected[each.key] = at.entry.revision
                    elif at.entry.revision != expected[each.key]:
                        fits = False
                if not fits:
                    return _conflict(wanted.write_id, tuple(at.entry for at in found))
    raise AssertionError("unreachable: count() has no end")


async def _send_batch(
    link: Link, write_id: str, puts: tuple[Put, ...], expected: Mapping[str, int]
) -> None:
    batch = uuid.uuid4().hex
    for index, each in enumerate(puts, start=1):
        headers = _write_headers(each, expected[each.key], write_id=write_id)
        headers["Nats-Batch-Id"] = batch
        headers["Nats-Batch-Sequence"] = str(index)
        if index == len(puts):
            headers["Nats-Batch-Commit"] = "1"
        subject = subject_of(each.bucket, each.key)
        answer = await link.request(subject, (each.value or "").encode(), headers)
        if answer:  # an accepted member of an open batch is acked by an empty message
            parse_ack(subject, answer)


def _checked(wanted: PutAll) -> tuple[str, tuple[Put, ...]]:
    buckets = sorted({each.bucket for each in wanted.puts})
    keys = [each.key for each in wanted.puts]
    if len(buckets) != 1:
        raise InvalidInput("puts", buckets, "an atomic batch writes one bucket")
    if len(set(keys)) != len(keys):
        raise InvalidInput("puts", keys, "an atomic batch writes each key once")
    return buckets[0], wanted.puts


def _write_headers(wanted: Put, expected: int, write_id: str | None = None) -> dict[str, str]:
    headers = {
        EXPECTED: str(expected),
        WRITE_ID: digest(write_id or wanted.write_id, 32),
    }
    if wanted.value is None:
        headers[OPERATION] = "DEL"
    return headers


def _is_ours(found: Found, wanted: Put, write_id: str) -> bool:
    return (
        found.write_id == digest(write_id, 32)
        and found.entry.value == wanted.value
        and found.entry.revision > wanted.expected
    )


def _absent_after_all(wanted: Put, found: Found, tried: int) -> bool:
    """`expected` 0 means "must not exist"; to NATS a deleted key exists, at the revision of its marker."""
    return wanted.expected == 0 and found.entry.value is None and found.entry.revision != tried


def _entry(wanted: Put, revision: int) -> Entry:
    return Entry(bucket=wanted.bucket, key=wanted.key, value=wanted.value, revision=revision)


def _stored(write_id: str, entries: tuple[Entry, ...]) -> Stored:
    return Stored(write_id=write_id, outcome="written", entries=entries)


def _conflict(write_id: str, entries: tuple[Entry, ...]) -> Stored:
    return Stored(write_id=write_id, outcome="conflict", entries=entries)


@contextlib.asynccontextmanager
async def _until(limit_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise Unavailable(
            f"{what}: not known within {limit_s:g} s whether it was written"
        ) from error


def _headers(raw: str | None) -> Mapping[str, str]:
    if not raw:
        return {}
    _, _, fields = base64.b64decode(raw).partition(b"\r\n")
    return dict(BytesParser().parsebytes(fields).items())
