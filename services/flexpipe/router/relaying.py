"""A sequence on the relay path: bytes to the engine's own endpoint and its bytes back, with our headers at the gate.

It finishes where it started. Until its first byte went to the client it may be tried elsewhere, after it it ends with
one clear error.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from flexpipe.engines.client import EngineBroke, EngineRefused, Relayed
from flexpipe.router.running import BUSY_STATUSES, SEQUENCE_HEADER, House, Running
from flexpipe.routing.effects import Cut, Dispatch, EndWithError
from flexpipe.routing.inputs import FirstToken, Segments, SequenceCut
from flexpipe.routing.openai.errors import ErrorBody
from flexpipe.routing.openai.frames import DONE, event

WHOLE_LIMIT_BYTES: Final = 64 << 20
"""A whole answer is kept until it is complete, so that an engine that dies in the middle costs only time. Larger ones
(log-probabilities of very long texts) are refused."""

PASSED_ON: Final = ("content-type", "accept", "traceparent", "x-request-id")
"""Of the client's headers, what an engine may see. Credentials are ours to check, never to hand on."""


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """What is passed on."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    stream: bool


class Relaying(Running):
    """One relayed sequence."""

    def __init__(self, house: House, sequence: str, deployment: str, wanted: RelayRequest) -> None:
        super().__init__(house, sequence, deployment)
        self._wanted = wanted

    @property
    def tokens(self) -> int:
        return 0

    def segments(self) -> Segments:
        return ()

    def dispatch(self, order: Dispatch) -> None:
        """Begin anew elsewhere, unless the client has content already: a second answer must not follow the first."""
        if self.outbox.opened:
            self._end_for_good()
        else:
            super().dispatch(order)

    def cut(self, order: Cut) -> None:
        """Close it at once, for another plan. The machine cuts what has no content, as far as it has heard."""
        if self.order is None or self.order.epoch != order.epoch or self.over.is_set():
            return
        if self.outbox.opened:
            self._end_for_good()
            return
        if self._task is not None:
            self._task.cancel()
        self.house.tell(SequenceCut(sequence=self.id, epoch=order.epoch, tokens=0))

    def _end_for_good(self) -> None:
        """Its plan gives way and its client has content: one clear error (nothing where it is over)."""
        if not self.over.is_set():
            message = "its plan gives way, and a relayed answer cannot go on elsewhere"
            self.end_with_error(EndWithError(sequence=self.id, message=message))

    async def _attempt(self, order: Dispatch) -> None:
        passed = {name: value for name, value in self._wanted.headers if name in PASSED_ON}
        relay = self.engine(order).relay(
            self._wanted.path,
            self._wanted.body,
            passed,
            self.gate_pass(order),
            silence_limit_s=self.house.silence_limit_s,
        )
        async with relay as answer:
            if answer.status in BUSY_STATUSES:
                raise EngineRefused(answer.status, f"the engine is full ({answer.status})")
            if answer.status >= 500:
                raise EngineBroke(f"engine answered {answer.status}", answer.status)
            if self._wanted.stream and answer.status < 400:
                if not await self._pass_on(order, answer):
                    return
            else:
                await self._pass_whole(order, answer)
            # Before the connection is closed, which waits: what is whole must not be taken for broken off meanwhile.
            self.finish("stop" if answer.status < 400 else "refused")

    async def _pass_on(self, order: Dispatch, answer: Relayed) -> bool:
        """Whether all of it was passed on."""
        async for part in answer.body:
            self.house.answered(order.plan)
            if not self.outbox.opened:
                self._open(order, answer)
            self.outbox.write(part)
            if not await self.room():
                return False
        if not self.outbox.opened:
            self._open(order, answer)
        return True

    async def _pass_whole(self, order: Dispatch, answer: Relayed) -> None:
        parts: list[bytes] = []
        size = 0
        async for part in answer.body:
            size += len(part)
            if size > WHOLE_LIMIT_BYTES:
                raise EngineRefused(413, f"the answer exceeds {WHOLE_LIMIT_BYTES} bytes")
            parts.append(part)
        if answer.status < 400:
            self.house.answered(order.plan)
        self._open(order, answer)
        for part in parts:
            self.outbox.write(part)

    def _open(self, order: Dispatch, answer: Relayed) -> None:
        self.outbox.open(answer.status, (*answer.headers, (SEQUENCE_HEADER, self.id)))
        self.house.tell(FirstToken(sequence=self.id, epoch=order.epoch, tokens=0))

    def _fail(self, status: int, body: ErrorBody, headers: tuple[tuple[str, str], ...]) -> None:
        if not self.outbox.opened:
            json = ("content-type", "application/json")
            self.outbox.open(status, (json, (SEQUENCE_HEADER, self.id), *headers))
            self.outbox.write(body.model_dump_json().encode())
            self.outbox.close()
        elif self._wanted.stream:
            # The engine may have stopped within a frame: an empty line ends that one.
            self.outbox.write(b"\n\n" + event(body) + DONE)
            self.outbox.close()
        else:
            self.outbox.close(broken=True)

    def _abort(self) -> None:
        """Closing the connection is all it takes: engines drop requests whose client is gone."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
