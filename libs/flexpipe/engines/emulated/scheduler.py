"""Continuous batching without computing: one loop, one token a running sequence a step.

Sequences are admitted by priority (higher first), then arrival, while the KV capacity and the batch
have room; a prompt's read holds up the batch, as a prefill does. Time is spent as the table says.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from flexpipe.engines.emulated.oracle import Oracle, TokenChain
from flexpipe.engines.emulated.sequences import Finish, Limits, LogProbRequest, LogProbs, Sequence
from flexpipe.engines.emulated.table import PerformanceTable, StepTime

SLEEP_QUANTUM_S = 0.001
"""The event loop's timers round up to about a millisecond; shorter debts are carried over."""

THROUGHPUT_WINDOW_S = 5.0

SHUTTING_DOWN = "the engine is shutting down"


class RequestRefused(ValueError):
    """The request cannot be run by this engine (HTTP 400)."""


class Scheduler:
    """All sequences of one engine. Call from its event loop only; `run` is the loop itself.

    Whoever streams a sequence is told of its first token, and from then on of every ``stream_interval``-th.
    ``on_tokens`` hears of the number of tokens emitted in each step (fault injection).
    """

    def __init__(
        self,
        *,
        table: PerformanceTable,
        layout: str,
        context_tokens: int,
        oracle: Oracle,
        time_scale: float,
        stream_interval: int = 1,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self.table = table
        self.context_tokens = context_tokens
        self.oracle = oracle
        self._step_time: StepTime = table.step_time(layout)
        self._time_scale = time_scale
        self._stream_interval = stream_interval
        self._on_tokens = on_tokens
        self._by_rid: dict[str, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._arrivals = count()
        self._wake = asyncio.Event()
        self._due_s = 0.0
        self._halted: Finish | None = None
        self._emitted: deque[tuple[float, int]] = deque()
        self.prompt_tokens_total = 0
        self.generated_tokens_total = 0
        self.requests_total = 0
        self.aborted_total = 0

    # -- what callers see -------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def used_tokens(self) -> int:
        return sum(sequence.used_tokens for sequence in self._running)

    @property
    def waiting_tokens(self) -> int:
        return sum(len(sequence.prompt) for *_, sequence in self._waiting)

    @property
    def capacity_tokens(self) -> int:
        return self.table.max_total_tokens

    @property
    def longest_tokens(self) -> int:
        """Prompt + output of one sequence stay below this."""
        return min(self.context_tokens, self.table.max_total_tokens)

    def tokens_per_s(self) -> float:
        """Tokens a real second over the last seconds."""
        self._forget_old(asyncio.get_running_loop().time())
        return sum(tokens for _, tokens in self._emitted) / THROUGHPUT_WINDOW_S

    def submit(
        self,
        rid: str,
        prompt: list[int],
        limits: Limits,
        priority: int,
        logprobs: LogProbRequest | None,
    ) -> Sequence:
        """Queue a request. One that finds the queue full comes back finished (status 503).

        Raises RequestRefused for a duplicate rid, an id outside the vocabulary, or a prompt that
        does not fit. ``max_new_tokens`` is cut to what the context and the KV capacity hold.
        """
        self._check(rid, prompt)
        room = self.longest_tokens - 1 - len(prompt)
        limits = Limits(
            max_new_tokens=min(limits.max_new_tokens, room),
            min_new_tokens=limits.min_new_tokens,
            stop_token_ids=limits.stop_token_ids,
            ignore_eos=limits.ignore_eos,
        )
        sequence = Sequence(
            rid=rid,
            prompt=prompt,
            limits=limits,
            priority=priority,
            chain=TokenChain(self.oracle, prompt),
            arrived_s=asyncio.get_running_loop().time(),
            logprobs=None if logprobs is None else LogProbs(self.oracle, prompt, logprobs),
        )
        self.requests_total += 1
        self._by_rid[rid] = sequence
        if self._halted is not None:
            self._finish(sequence, self._halted)
        elif len(self._waiting) >= self.table.max_queued:
            self._finish(sequence, Finish.while_waiting("The request queue is full.", 503))
        else:
            heapq.heappush(self._waiting, (-priority, next(self._arrivals), sequence))
            self._wake.set()
        return sequence

    def abort(self, rid: str) -> None:
        """Cut a request at the end of the step that runs; unknown ids are ignored.

        As in SGLang, a known rid also cuts every request whose rid *begins* with it.
        """
        if rid and rid in self._by_rid:
            for found in [s for s in self._by_rid.values() if s.rid.startswith(rid)]:
                self._cut(found)

    def abort_all(self) -> None:
        for sequence in list(self._by_rid.values()):
            self._cut(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a request whose client is gone: its slot and its KV are free at once."""
        if sequence.finish is None:
            self._finish(sequence, Finish.by_abort())

    def halt(self, message: str, status_code: int) -> None:
        """Stop generating for good: every request, also a later one, ends with this error."""
        self._halted = Finish.by_abort(message, status_code, "InternalServerError")
        for sequence in list(self._by_rid.values()):
            self._finish(sequence, self._halted)

    # -- the loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Generate until cancelled or halted."""
        loop = asyncio.get_running_loop()
        while self._halted is None:
            if not self._running and not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                self._due_s = loop.time()
            admitted = self._admit()
            if admitted:
                tokens = sum(len(sequence.prompt) for sequence in admitted)
                self.prompt_tokens_total += tokens
                await self._spend(self.table.prefill_s(tokens))
                self._step(admitted)
            elif self._running:
                step = self._step_time
                await self._spend(step.ms(len(self._running), self.used_tokens) / 1e3)
                self._step(list(self._running))

    def _admit(self) -> list[Sequence]:
        admitted: list[Sequence] = []
        free = self.capacity_tokens - sum(s.reserved_tokens for s in self._running)
        while self._waiting and len(self._running) < self.table.max_running:
            sequence = self._waiting[0][2]
            if sequence.reserved_tokens > free:
                break
            heapq.heappop(self._waiting)
            free -= sequence.reserved_tokens
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    async def _spend(self, virtual_s: float) -> None:
        now = asyncio.get_running_loop().time()
        # A loop that fell behind (a busy machine) does not rush to catch up for longer than a step.
        self._due_s = max(self._due_s, now - SLEEP_QUANTUM_S) + virtual_s / self._time_scale
        delay = self._due_s - now
        await asyncio.sleep(delay if delay >= SLEEP_QUANTUM_S else 0)

    def _step(self, batch: list[Sequence]) -> None:
        emitted = 0
        for sequence in batch:
            if sequence.finish is not None:
                continue
            before = len(sequence.output)
            finish = sequence.step(self.oracle.eos_id)
            emitted += len(sequence.output) - before
            if finish is not None:
                self._finish(sequence, finish)
            elif before % self._stream_interval == 0:
                sequence.changed.set()
        self.generated_tokens_total += emitted
        now = asyncio.get_running_loop().time()
        self._emitted.append((now, emitted))
        self._forget_old(now)
        if self._on_tokens is not None:
            self._on_tokens(emitted)

    # -- bookkeeping ------------------------------------------------------------------------

    def _check(self, rid: str, prompt: list[int]) -> None:
        if rid in self._by_rid:
            raise RequestRefused(f"Duplicate request ID detected: {rid}")
        if not prompt:
            raise RequestRefused("input_ids cannot be empty.")
        vocab = self.oracle.vocab_size
        if min(prompt) < 0 or max(prompt) >= vocab:
            raise RequestRefused(f"input_ids must lie in [0, {vocab - 1}].")
        context = self.longest_tokens
        if len(prompt) >= context:
            raise RequestRefused(
                f"The input ({len(prompt)} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )

    def _cut(self, sequence: Sequence) -> None:
        if sequence in self._running:
            sequence.cut = True
        else:
            self._finish(sequence, Finish.while_waiting())

    def _finish(self, sequence: Sequence, finish: Finish) -> None:
        del self._by_rid[sequence.rid]
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            kept = [entry for entry in self._waiting if entry[2] is not sequence]
            if len(kept) != len(self._waiting):
                self._waiting = kept
                heapq.heapify(self._waiting)
        self.aborted_total += finish.type == "abort"
        sequence.ended_s = asyncio.get_running_loop().time()
        sequence.finish = finish
        sequence.changed.set()

    def _forget_old(self, now: float) -> None:
        while self._emitted and self._emitted[0][0] < now - THROUGHPUT_WINDOW_S:
            self._emitted.popleft()
