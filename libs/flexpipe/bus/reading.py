"""Reads what a stream holds now on some subjects, oldest first: journals, dead letters, the past of a log. No acks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from flexpipe.bus.link import Link
from flexpipe.kernel.errors import Unavailable

BATCH = 64
ANSWER_LIMIT_S = 5.0
KEPT_S = 60
"""The server forgets a reader's consumer this long after it left."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as it lies on the stream."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes
    at_s: float  # when the stream stored it, epoch


async def read_stream(
    link: Link,
    stream: str,
    *subjects: str,
    after_sequence: int = 0,
    since_s: float | None = None,
    newest_only: bool = False,
) -> AsyncIterator[Stored]:
    """Messages behind a sequence or, where it is given, from a time (epoch), up to what is stored when this starts.

    `newest_only`: of each subject the last one, whenever it was stored. Raises Unavailable.
    """
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=after_sequence + 1,
        filter_subjects=list(subjects),
        inactive_threshold=KEPT_S,
        mem_storage=True,
    )
    if since_s is not None:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_TIME, None
        config.opt_start_time = datetime.fromtimestamp(since_s, UTC)
    elif newest_only:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.LAST_PER_SUBJECT, None
    try:
        subscription = await link.jetstream.pull_subscribe("", stream=stream, config=config)
        try:
            pending = (await subscription.consumer_info()).num_pending or 0
            while pending > 0:
                for message in await subscription.fetch(
                    min(pending, BATCH), timeout=ANSWER_LIMIT_S
                ):
                    pending -= 1
                    yield Stored(
                        subject=message.subject,
                        sequence=message.metadata.sequence.stream,
                        headers=dict(message.headers or {}),
                        body=message.data,
                        at_s=message.metadata.timestamp.timestamp(),
                    )
        finally:
            await subscription.unsubscribe()
    except nats.errors.Error as error:
        raise Unavailable(f"{stream}: {error or 'no answer'}") from error
