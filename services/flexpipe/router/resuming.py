"""A sequence on the resume path: ids out, ids in, the ledger between, text to the client.

It can go on at any plan from prompt + generated, so a hand-over is one more attempt. The ledger judges every token by
plan and epoch; the client sees one id, one usage and one text, whoever made it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from flexpipe.engines.generation import Chunk, SamplingParams
from flexpipe.router.running import LOG, SEQUENCE_HEADER, House, Running
from flexpipe.routing.effects import Cut, Dispatch
from flexpipe.routing.inputs import FailureKind, FirstToken, Segments, SequenceCut
from flexpipe.routing.ledger import (
    Accepted,
    Dropped,
    LedgerError,
    MoveCause,
    MoveRefused,
    SequenceLedger,
    broken_laws,
)
from flexpipe.routing.openai.errors import ErrorBody
from flexpipe.routing.openai.frames import CONTENT_TYPE, FrameWriter
from flexpipe.routing.openai.paths import Resumable
from flexpipe.routing.openai.responses import Answer, whole, with_token_ids
from flexpipe.routing.reports import LEDGER_VIOLATION
from flexpipe.routing.stream import FinishReason, GenerationStream, Limits
from flexpipe.routing.text.tokenizer import TextTokenizer

OVERLAP_TOKENS: Final = 8
"""Of a cumulative chunk, this many tokens that are held already are compared again: a swapped token shows at once,
and the work a chunk does not grow with the sequence."""

CUT_AGAIN_S: Final = 0.7
"""An abort that met the engine between two steps of its intake is repeated; twice within the machine's limit."""

CUT_TRIES: Final = 4

JSON = ("content-type", "application/json")


@dataclass(frozen=True, slots=True)
class Generation:
    """All that the resume path was asked for."""

    prompt: tuple[int, ...]
    max_tokens: int
    asked: Resumable
    answer: Answer
    stream: bool
    include_usage: bool
    return_token_ids: bool


class Resuming(Running):
    """One resumable sequence."""

    def __init__(
        self, house: House, sequence: str, deployment: str, wanted: Generation, text: TextTokenizer
    ) -> None:
        super().__init__(house, sequence, deployment)
        self._wanted = wanted
        self._ledger: SequenceLedger | None = None
        self._stream = GenerationStream(
            text.detokenizer(), prompt_tokens=len(wanted.prompt), limits=_limits(wanted, text)
        )
        self._writer = FrameWriter(
            wanted.answer,
            include_usage=wanted.include_usage,
            prompt_to_tell=wanted.prompt if wanted.return_token_ids else None,
        )
        self._text: list[str] = []
        self._shown: list[int] = []
        self._cutting: int | None = None  # the epoch that is being cut
        self._first_of = 0  # the epoch whose first token has come
        self._engine_done = False  # it said itself that it is: nothing is left to abort
        self._arrived_s = time.monotonic()
        self._last_token_s: float | None = None
        self._violations: list[str] = []

    @property
    def streams(self) -> bool:
        """Whether its client reads a stream."""
        return self._wanted.stream

    @property
    def tokens(self) -> int:
        return self._stream.usage.completion_tokens

    def segments(self) -> Segments:
        if self._ledger is None:
            return ()
        return tuple(
            (part.epoch, part.plan, part.start, part.end) for part in self._ledger.entry().segments
        )

    def open_early(self) -> None:
        """Say 200 before there is content, for a keep-alive (streams only)."""
        if self._wanted.stream and not self.outbox.opened:
            self._open()

    def dispatch(self, order: Dispatch) -> None:
        """Move the ledger at once: an attempt may be replaced before it has run a single step, its epoch is spent."""
        if not self.over.is_set():
            self._move_ledger(order)
            super().dispatch(order)

    def cut(self, order: Cut) -> None:
        """Abort at the engine. What never gave a token is closed at once: there is nothing to wait for."""
        now = self.order
        if now is None or now.epoch != order.epoch or self.over.is_set():
            return
        self._cutting = order.epoch
        if self._first_of != order.epoch and self._task is not None:
            self._abort()
            self._task.cancel()
            self._told_cut(order.epoch)
        else:
            self.help(asyncio.create_task(self._cut_until_gone(now)))

    # -- one attempt --------------------------------------------------------------------------

    async def _attempt(self, order: Dispatch) -> None:
        ledger = self._ledger
        assert ledger is not None
        self._cutting, self._engine_done = None, False
        stream = self.engine(order).generate_stream(
            self._rid(order.epoch),
            ledger.continuation(),
            self._sampling(),
            self.gate_pass(order),
            priority=self._wanted.asked.priority,
            silence_limit_s=self.house.silence_limit_s,
        )
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                self._engine_done = chunk.finish is not None
                try:
                    self._take(ledger, order, chunk)
                except LedgerError as error:
                    self._violated(str(error))
                    return
                if self._stream.finish is not None:
                    self._complete()
                    return
                if chunk.finish is not None:
                    self._engine_ended(order, chunk)
                    return
                if not await self.room():
                    return

    def _move_ledger(self, order: Dispatch) -> None:
        """Put the ledger under the order's plan and epoch. From now on no token of an earlier attempt is taken."""
        if self._ledger is None:
            self._ledger = SequenceLedger(
                self.id, self._wanted.prompt, order.plan, moves_max=order.moves_limit
            )
        else:
            moved = self._ledger.move(order.plan, order.cause)
            if isinstance(moved, MoveRefused):
                # The machine counts moves; a token may have come that it had not heard of when it did.
                self._ledger.move(order.plan, MoveCause.DEADLINE)
        if self._ledger.epoch != order.epoch:
            self._violations.append(
                f"ordered epoch {order.epoch}, the ledger has {self._ledger.epoch}"
            )

    def _take(self, ledger: SequenceLedger, order: Dispatch, chunk: Chunk) -> None:
        """Take what is new in a chunk: to the ledger, into text, to the client."""
        if chunk.output_ids:
            self.house.answered(order.plan)
        held = max(0, len(ledger) - ledger.base - OVERLAP_TOKENS)
        outcome = ledger.accept(order.plan, order.epoch, held, chunk.output_ids[held:])
        match outcome:
            case Dropped(reason=reason, tokens=count):
                if chunk.output_ids[held:] and reason != "repeated":
                    self._count("flexpipe_router_late_tokens_total", count, reason=str(reason))
            case Accepted(tokens=tokens):
                step = self._stream.feed(tokens)
                self._note_times(order, len(tokens))
                self._say(step.text, tokens[: step.taken])

    def _say(self, text: str, tokens: tuple[int, ...]) -> None:
        self._shown.extend(tokens)
        if not self._wanted.stream:
            self._text.append(text)
            return
        frames = self._writer.text(text, tokens)
        if frames:
            self._open()
            self.outbox.write(frames)

    def _note_times(self, order: Dispatch, count: int) -> None:
        now_s = time.monotonic()
        before_s, self._last_token_s = self._last_token_s, now_s
        self._count("flexpipe_router_output_tokens_total", count)
        if before_s is None:
            self._count("flexpipe_router_ttft_seconds", now_s - self._arrived_s)
        else:
            self._count("flexpipe_router_itl_seconds", (now_s - before_s) / count)
        if self._first_of == order.epoch:
            return
        self._first_of = order.epoch
        self.house.tell(
            FirstToken(
                sequence=self.id,
                epoch=order.epoch,
                tokens=self.tokens,
                pause_ms=None if before_s is None else (now_s - before_s) * 1e3,
            )
        )

    def _engine_ended(self, order: Dispatch, chunk: Chunk) -> None:
        """The engine said that it is done; the router did not find an end in the tokens."""
        assert chunk.finish is not None
        match chunk.finish.type:
            case "abort" if self._cutting == order.epoch:
                self._told_cut(order.epoch)
            case "abort":
                reason = chunk.finish.message or "the engine aborted"
                self.failed(order, FailureKind.BROKE, reason, None)
            case "stop" | "length":
                reason = FinishReason(chunk.finish.type)
                step = self._stream.end(reason)
                self._say(step.text, ())
                self._complete()

    def _told_cut(self, epoch: int) -> None:
        self.house.tell(SequenceCut(sequence=self.id, epoch=epoch, tokens=self.tokens))

    async def _cut_until_gone(self, order: Dispatch) -> None:
        engine = self.engine(order)
        for _ in range(CUT_TRIES):
            task = self._task
            if self.order is not order or task is None or task.done():
                return
            await self.abort_at(engine, self._rid(order.epoch))
            await asyncio.wait([task], timeout=CUT_AGAIN_S)

    # -- the end ------------------------------------------------------------------------------

    def _complete(self) -> None:
        """All is said: the last frames, the ledger's law, the word to the machine."""
        assert self._ledger is not None
        assert self._stream.finish is not None
        usage = self._stream.usage
        self._ledger.close(usage.completion_tokens)
        finish = str(self._stream.finish)
        self._violations.extend(broken_laws(self._ledger.entry()))
        if self._wanted.stream:
            frames = self._writer.finish(self._stream.finish, usage)
            self._open()
            self.outbox.write(frames)
        else:
            text = "".join(self._text)
            response = whole(self._wanted.answer, text, self._stream.finish, usage)
            if self._wanted.return_token_ids:
                shown = tuple(self._shown)
                response = with_token_ids(response, self._wanted.prompt, shown)
            self.outbox.open(200, (JSON, (SEQUENCE_HEADER, self.id)))
            self.outbox.write(response.json_bytes())
        self.finish(self._lawful(finish))

    def _violated(self, fault: str) -> None:
        self._violations.append(fault)
        body = ErrorBody.model_validate(
            {
                "error": {
                    "message": "tokens of this answer were lost on the way; ask again",
                    "type": "server_error",
                    "param": None,
                    "code": "ledger_violation",
                }
            }
        )
        self._fail(502, body, ())
        self.finish(self._lawful("error"))

    def _lawful(self, finish: str) -> str:
        """The finish to report: any breach of the ledger's law outranks it."""
        if not self._violations:
            return finish
        for fault in self._violations:
            LOG.error("ledger law broken", extra={"sequence": self.id, "fault": fault})
        self._count("flexpipe_router_ledger_violations_total", 1)
        return LEDGER_VIOLATION

    def _fail(self, status: int, body: ErrorBody, headers: tuple[tuple[str, str], ...]) -> None:
        if self.outbox.opened:
            if not self._writer.closed:
                self.outbox.write(self._writer.fail(body))
        else:
            self.outbox.open(status, (JSON, (SEQUENCE_HEADER, self.id), *headers))
            self.outbox.write(body.model_dump_json().encode())
        self.outbox.close()

    def _open(self) -> None:
        if not self.outbox.opened:
            headers = (
                ("content-type", CONTENT_TYPE),
                ("cache-control", "no-cache"),
                (SEQUENCE_HEADER, self.id),
            )
            self.outbox.open(200, headers)

    def _abort(self) -> None:
        if self.order is not None and not self._engine_done:
            rid = self._rid(self.order.epoch)
            self.help(asyncio.create_task(self.abort_at(self.engine(self.order), rid)))

    # -- small words --------------------------------------------------------------------------

    def _rid(self, epoch: int) -> str:
        """The engine's name for an attempt. Engines abort by prefix, so none is the beginning of another."""
        return f"{self.id}.{epoch:06d}"

    def _sampling(self) -> SamplingParams:
        sampling = self._wanted.asked.sampling
        bias = {str(token): value for token, value in sampling.logit_bias.items()}
        return SamplingParams(
            max_new_tokens=self._stream.remaining,
            min_new_tokens=self._stream.min_remaining,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop_token_ids=tuple(sorted(self._wanted.asked.stop_token_ids)),
            ignore_eos=self._wanted.asked.ignore_eos,
            sampling_seed=sampling.seed,
            logit_bias=bias or None,
        )

    def _count(self, name: str, value: float, **labels: str) -> None:
        self.house.meters.take(name, value, deployment=self.deployment, **labels)


def _limits(wanted: Generation, text: TextTokenizer) -> Limits:
    asked = wanted.asked
    return Limits(
        max_tokens=wanted.max_tokens,
        min_tokens=asked.min_tokens,
        stops=asked.stops,
        stop_tokens=text.eos_ids | asked.stop_token_ids,
        ignore_eos=asked.ignore_eos,
    )
