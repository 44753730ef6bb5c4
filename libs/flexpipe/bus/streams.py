"""Declares every stream and bucket of the catalogue. Run by the admin user at start-up; repeating it changes nothing.

It creates and updates; it never deletes a stream, a consumer or a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flexpipe.bus.ears import consumer_config
from flexpipe.bus.link import Link, NotFoundError
from flexpipe.bus.settings import BusSettings
from flexpipe.bus.users import Instance, durable_filters
from flexpipe.events import catalog
from flexpipe.events.catalog import MIB, Bucket, Stream

NANOSECONDS = 1_000_000_000
BUCKET_BYTES = 1024 * MIB
"""Of one bucket with its history. Thousands of shift records; a bucket that is full refuses writes aloud."""
MESSAGE_BYTES = MIB
"""NATS's max_payload, here and in the embedded server: control messages are kilobytes."""
WRITE_WINDOW_S = 120


async def declare(
    settings: BusSettings, instances: Iterable[Instance] = (), *, replicas: int | None = None
) -> None:
    """Make the server's streams and buckets what the catalogue says. Raises Unavailable, in one line."""
    link = Link(settings, "admin")
    await link.open()
    try:
        for config in wanted(replicas or settings.replicas):
            await _declare_stream(link, config)
        for instance in instances:
            filters = durable_filters(instance)
            if filters:
                await link.jetstream.add_consumer(
                    "FLEXPIPE_CMD", config=consumer_config(instance.user, filters)
                )
    finally:
        await link.close()


def wanted(replicas: int) -> list[dict[str, Any]]:
    """Configurations of all streams, then all buckets, as JetStream's API takes them."""
    streams = [_stream(stream, replicas) for stream in catalog.STREAMS]
    return streams + [_bucket(bucket, replicas) for bucket in catalog.BUCKETS]


def _stream(stream: Stream, replicas: int) -> dict[str, Any]:
    return {
        "name": stream.name,
        "subjects": list(stream.subjects),
        "retention": stream.retention,
        "storage": "file",
        "discard": "old",
        "max_age": stream.max_age_s * NANOSECONDS,
        "max_bytes": stream.max_bytes,
        "max_msg_size": MESSAGE_BYTES,
        "duplicate_window": stream.duplicate_window_s * NANOSECONDS,
        "num_replicas": replicas,
        "allow_direct": False,
    }


def _bucket(bucket: Bucket, replicas: int) -> dict[str, Any]:
    return {
        "name": f"KV_{bucket.name}",
        "description": bucket.what,
        "subjects": [f"$KV.{bucket.name}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": BUCKET_BYTES,
        "max_msg_size": MESSAGE_BYTES,
        "max_msgs_per_subject": bucket.history,
        "duplicate_window": WRITE_WINDOW_S * NANOSECONDS,
        "num_replicas": replicas,
        "allow_direct": False,  # read from the leader: a decision never rests on a stale copy
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_atomic": bucket.atomic,
    }


async def _declare_stream(link: Link, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        present = (await link.api(f"STREAM.INFO.{name}"))["config"]
    except NotFoundError:
        await link.api(f"STREAM.CREATE.{name}", config)
        return
    # The server leaves out what is false.
    if any(present.get(key, False) != value for key, value in config.items()):
        await link.api(f"STREAM.UPDATE.{name}", present | config)
