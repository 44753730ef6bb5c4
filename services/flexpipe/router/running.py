"""What every running sequence has: an id, an outbox, one attempt at a time, and one way to end.

`Running` is told by the machine what to do (`dispatch`, `cut`, `refuse`, `end_with_error`) and tells it what happened.
It decides nothing about plans. Subclasses know what an attempt is: `resuming` and `relaying`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from flexpipe.engines.client import (
    EngineBroke,
    EngineClient,
    EngineError,
    EngineRefused,
    EngineUnreachable,
    GateClosed,
)
from flexpipe.engines.generation import GatePass
from flexpipe.kernel.machine import Input
from flexpipe.router.outbox import Outbox
from flexpipe.routing.effects import Cut, Dispatch, EndWithError, Refuse
from flexpipe.routing.inputs import (
    AttemptFailed,
    ClientGone,
    FailureKind,
    RouteLearned,
    Segments,
    SequenceEnded,
)
from flexpipe.routing.openai.errors import ErrorBody, ErrorDetail, engine_failed
from flexpipe.telemetry.meters import Meters

LOG = logging.getLogger(__name__)

SEQUENCE_HEADER = "x-flexpipe-sequence"

CLOSE_LIMIT_S = 1.0
"""Closing an attempt closes a socket; an engine that went away cannot make the next attempt wait longer."""

BUSY_STATUSES = (429, 503)
"""Neutral: the engine is full, which says nothing about its health."""

Tell = Callable[[Input], None]


@dataclass(frozen=True, slots=True)
class House:
    """What sequences share: the engines' connection pool, the way to the machine, meters and bounds."""

    http: httpx.AsyncClient
    tell: Tell
    meters: Meters
    unread_frames: int
    silence_limit_s: float
    answered: Callable[[str], None] = lambda _: None  # told the plan whose engine gave something


class Running(ABC):
    """One sequence. Everything but `_attempt` runs to its end without waiting."""

    def __init__(self, house: House, sequence: str, deployment: str) -> None:
        self.house = house
        self.id = sequence
        self.deployment = deployment
        self.outbox = Outbox(house.unread_frames)
        self.order: Dispatch | None = None  # the attempt in force
        self.over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()

    # -- told by the machine ------------------------------------------------------------------

    def dispatch(self, order: Dispatch) -> None:
        """Begin the next attempt; the one before is closed first."""
        if self.over.is_set():
            return
        before, self.order = self._task, order
        if before is not None:
            before.cancel()
        self._task = asyncio.create_task(self._run(order, before))

    @abstractmethod
    def cut(self, order: Cut) -> None:
        """Make the engine let go of the sequence."""

    def refuse(self, order: Refuse) -> None:
        """Answer with an HTTP error, or with an error event where it is too late for one."""
        kind = "invalid_request_error" if order.status < 500 else "server_error"
        detail = ErrorDetail(message=order.message, type=kind, param=None, code=order.code)
        extra = () if order.retry_after_s is None else (("retry-after", str(order.retry_after_s)),)
        self._fail(order.status, ErrorBody(error=detail), extra)
        self.finish("refused")

    def end_with_error(self, order: EndWithError) -> None:
        """End with one clear error."""
        self._fail(502, engine_failed(order.message).body, ())
        self.finish("error")

    # -- told by the client's side ------------------------------------------------------------

    def client_gone(self) -> None:
        """The client hung up: the engine's work stops now, in whatever state it is."""
        if self.over.is_set():
            return
        self._close()
        self.house.tell(ClientGone(sequence=self.id, tokens=self.tokens, segments=self.segments()))

    # -- for subclasses -----------------------------------------------------------------------

    @property
    def plan(self) -> str | None:
        """The plan it is at; None while it waits here."""
        task = self._task
        return None if self.order is None or task is None or task.done() else self.order.plan

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens generated so far."""

    @abstractmethod
    def segments(self) -> Segments:
        """Which of them came from where."""

    @abstractmethod
    async def _attempt(self, order: Dispatch) -> None:
        """Run one attempt to its end and tell what became of it."""

    @abstractmethod
    def _abort(self) -> None:
        """Tell the engine of the attempt in force that nobody wants its work any more."""

    @abstractmethod
    def _fail(self, status: int, body: ErrorBody, headers: tuple[tuple[str, str], ...]) -> None:
        """Put an error into the outbox and close it."""

    def finish(self, finish: str) -> None:
        """The sequence is over for its client."""
        if self.over.is_set():
            return
        epoch = 0 if self.order is None else self.order.epoch
        self._close()
        self.house.tell(
            SequenceEnded(
                sequence=self.id,
                epoch=epoch,
                finish=finish,
                tokens=self.tokens,
                segments=self.segments(),
            )
        )

    def engine(self, order: Dispatch) -> EngineClient:
        """The front that an attempt talks to."""
        return EngineClient(self.house.http, order.front)

    def gate_pass(self, order: Dispatch) -> GatePass:
        """What an attempt shows at the gate."""
        return GatePass(plan=order.plan, fence=order.fence)

    async def room(self) -> bool:
        """Wait for a slow client. False: it read nothing for as long as an engine may be silent, and counts as gone."""
        try:
            async with asyncio.timeout(self.house.silence_limit_s):
                await self.outbox.room()
        except TimeoutError:
            LOG.info("sequence %s: its client does not read", self.id)
            self.client_gone()
        return not self.over.is_set()

    def help(self, task: asyncio.Task[None]) -> None:
        """Keep a task that nobody waits for until it is done."""
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    def failed(self, order: Dispatch, kind: FailureKind, reason: str, status: int | None) -> None:
        """Tell that an attempt failed."""
        self.house.tell(
            AttemptFailed(
                sequence=self.id,
                epoch=order.epoch,
                kind=kind,
                tokens=self.tokens,
                reason=reason,
                status=status,
            )
        )

    async def _run(self, order: Dispatch, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before], timeout=CLOSE_LIMIT_S)
        try:
            await self._attempt(order)
        except GateClosed as refusal:
            if refusal.route_entry is not None:
                self.house.tell(RouteLearned(entry=refusal.route_entry))
            self.failed(order, FailureKind.GATE, refusal.message, refusal.status)
        except EngineRefused as refusal:
            busy = refusal.status in BUSY_STATUSES
            kind = FailureKind.BUSY if busy else FailureKind.CLIENT
            self.failed(order, kind, refusal.message, refusal.status)
        except EngineUnreachable as error:
            self.failed(order, FailureKind.UNREACHABLE, str(error), None)
        except EngineBroke as error:
            self.failed(order, broken_kind(error.status), str(error), error.status)
        except Exception:
            # Whatever it is, the client must not wait for an answer that nobody will give.
            LOG.exception("sequence %s: its attempt crashed", self.id)
            self.end_with_error(
                EndWithError(sequence=self.id, message="the router failed on this request")
            )

    def _close(self) -> None:
        """Stop the attempt and free what it held at the engine."""
        self.over.set()
        self.outbox.close()
        task, self._task = self._task, None
        if task is not None and not task.done():
            self._abort()
            if task is not asyncio.current_task():
                task.cancel()

    async def abort_at(self, engine: EngineClient, rid: str) -> None:
        """Abort one request at an engine; an engine that does not answer has nothing left to abort."""
        with contextlib.suppress(EngineError):
            await engine.abort(rid)


def broken_kind(status: int | None) -> FailureKind:
    """By whom a 5xx, or a body that broke off, counts against."""
    if status is None:
        return FailureKind.BROKE
    return FailureKind.BUSY if status in BUSY_STATUSES else FailureKind.SERVER
