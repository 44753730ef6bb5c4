"""What the worker does over an engine's HTTP: wait for ready, send synthetic prompts, watch a drain.

Called by `hands`; each function ends within the limit of its effect and answers with one input.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from typing import Final

from flexpipe.engines.client import EngineClient, EngineError
from flexpipe.engines.generation import GatePass, SamplingParams
from flexpipe.hosting import inputs
from flexpipe.hosting.effects import PollReady, SendPrompts, SetGate, WatchDrain

READY_EVERY_S: Final = 0.1
"""Against starts of half a second (emulated) to minutes; `/ready` costs the engine nothing."""
READY_ANSWER_S: Final = 2.0

DRAIN_EVERY_S: Final = 0.2
DRAIN_ZEROS: Final = 2
"""Counts of zero in a row: an engine publishes its count after a step, so one may be a step old."""

PROMPTS_AT_ONCE: Final = 4
"""Enough to fill a small batch, so that the time between tokens is one under load."""


async def poll_ready(client: EngineClient, effect: PollReady) -> bool:
    """Whether the front got ready within the limit: ready, and its gate says that it serves the plan."""
    try:
        async with asyncio.timeout(effect.limit_s):
            while not await _serves(client, effect.plan):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(READY_EVERY_S)
    except TimeoutError:
        return False
    return True


async def _serves(client: EngineClient, plan: str) -> bool:
    if not await client.ready(READY_ANSWER_S):
        return False
    try:
        return (await client.gate()).plan == plan
    except EngineError:
        return False


async def set_gate(client: EngineClient, effect: SetGate) -> inputs.GroupInput:
    """Set the gate once; the executor retries under a new step."""
    try:
        await client.set_gate(
            effect.plan,
            effect.fence.order,
            admitting=effect.admitting,
            route_entry=effect.route_entry,
        )
    except EngineError as error:
        return inputs.GateNotSet(group=effect.group, fence=effect.fence, reason=str(error))
    return inputs.GateSet(group=effect.group, fence=effect.fence)


async def watch_drain(client: EngineClient, effect: WatchDrain) -> inputs.GroupInput:
    """Until the engine's own count is zero, twice in a row."""
    zeros = 0
    seen = "the engine's count was not read"
    try:
        async with asyncio.timeout(effect.limit_s):
            while zeros < DRAIN_ZEROS:
                try:
                    load = await client.loads()
                except EngineError as error:
                    seen, zeros = str(error), 0
                else:
                    seen = f"left: {load.running} running, {load.waiting} waiting, {load.used_tokens} KV tokens"
                    zeros = zeros + 1 if load.is_empty else 0
                if zeros < DRAIN_ZEROS:
                    await asyncio.sleep(DRAIN_EVERY_S)
    except TimeoutError:
        return inputs.NotDrained(group=effect.group, fence=effect.fence, reason=seen)
    return inputs.Drained(group=effect.group, fence=effect.fence)


@dataclass(slots=True)
class _Prompt:
    """One synthetic prompt: `error` None when it came through whole."""

    error: str | None = "not finished within the limit"
    ttft_s: float | None = None
    itl_s: float | None = None


async def send_prompts(client: EngineClient, effect: SendPrompts) -> inputs.PromptsSent:
    """Send all prompts, some at once; what is not finished at the limit counts as an error."""
    outcomes = [_Prompt() for _ in effect.prompts]
    room = asyncio.Semaphore(PROMPTS_AT_ONCE)

    async def one(index: int) -> None:
        async with room:
            await _send_prompt(client, effect, index, outcomes[index])

    try:
        async with asyncio.timeout(effect.limit_s), asyncio.TaskGroup() as tasks:
            for index in range(len(outcomes)):
                tasks.create_task(one(index))
    except TimeoutError:
        pass  # what is not finished says so itself
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    ttfts = [outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]
    itls = [outcome.itl_s for outcome in outcomes if outcome.itl_s is not None]
    return inputs.PromptsSent(
        group=effect.group,
        fence=effect.fence,
        requests=len(outcomes),
        errors=len(errors),
        reason=errors[0] if errors else None,
        ttft_p50_ms=median(ttfts) * 1e3 if ttfts else None,
        itl_p50_ms=median(itls) * 1e3 if itls else None,
    )


async def _send_prompt(
    client: EngineClient, effect: SendPrompts, index: int, outcome: _Prompt
) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    first_s: float | None = None
    count = 0
    stream = client.generate_stream(
        f"warm-{effect.fence.header}-{index:03d}-{effect.group}",
        effect.prompts[index],
        SamplingParams(max_new_tokens=effect.new_tokens, temperature=0.0, ignore_eos=True),
        GatePass(plan=effect.plan, fence=effect.fence.header, purpose="warm"),
        silence_limit_s=effect.limit_s,
    )
    try:
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                count = len(chunk.output_ids)
                if count and first_s is None:
                    first_s = loop.time()
                    outcome.ttft_s = first_s - began_s
    except EngineError as error:
        outcome.error = str(error)
        return
    if count != effect.new_tokens:
        outcome.error = f"{count} tokens came, {effect.new_tokens} were asked for"
        return
    outcome.error = None
    if first_s is not None and count > 1:
        outcome.itl_s = (loop.time() - first_s) / (count - 1)
