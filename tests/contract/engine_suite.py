"""What every engine must do over HTTP, whatever runs behind it; `test_engine_contract.py` runs it.

A new engine passes the whole of `EngineContract` or it is none. The tests speak plain HTTP, so that
they hold the shapes our client relies on.
"""

import asyncio
import json
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexpipe.engines.port import LaunchSpec

POLL_S = 0.02
PROMPT = [71, 104, 111, 33, 90, 77, 120, 45, 66, 81, 99, 58]
LONG = 400
"""Tokens of a request that is to be caught while it runs: seconds on the slower engine."""

Body = dict[str, Any]


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
    """Await a condition, or fail after ``limit_s`` saying what did not come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not await condition():
        assert loop.time() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(POLL_S)


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports that are free now."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + count < 65_000 and all(_is_free(first + i) for i in range(count)):
            return first
    raise AssertionError(f"no {count} neighbouring ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class EngineProcess:
    """One engine process with its log; ends with its context."""

    def __init__(self, spec: LaunchSpec, environ: dict[str, str], folder: Path) -> None:
        self.front = spec.front or ""
        self._log = tempfile.NamedTemporaryFile(dir=folder, suffix=".log")  # noqa: SIM115
        self.popen = subprocess.Popen(
            spec.argv,
            env={**environ, **spec.env},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()
        self._log.close()

    @property
    def log(self) -> str:
        """What it has said so far, its end."""
        return Path(self._log.name).read_text(errors="replace")[-4000:]

    async def ready(self, limit_s: float) -> list[int]:
        """Wait for ``/ready``; answers every status seen on the way (0: nobody answered)."""
        seen: list[int] = []

        async def is_ready() -> bool:
            assert self.popen.poll() is None, f"the engine ended while it started:\n{self.log}"
            try:
                seen.append((await http.get("/ready")).status_code)
            except httpx.TransportError:
                seen.append(0)
            return seen[-1] == 200

        async with httpx.AsyncClient(base_url=self.front, trust_env=False, timeout=5) as http:
            await until(is_ready, limit_s, f"/ready of {self.front}\n{self.log}")
        return seen

    async def exit_status(self, limit_s: float) -> int:
        """Wait for its end."""

        async def ended() -> bool:
            return self.popen.poll() is not None

        await until(ended, limit_s, "the process ends")
        return self.popen.wait()


@dataclass
class RunningEngine:
    """A ready engine as the tests meet it: an HTTP client, its plan, and a gate set step by step."""

    name: str
    plan: str
    term: int
    statuses_while_starting: list[int]
    http: httpx.AsyncClient
    steps: list[int] = field(default_factory=lambda: [100])

    # -- the gate ------------------------------------------------------------------------------

    async def set_gate(self, *, admitting: bool, entry: Body | None = None) -> httpx.Response:
        """PUT under a fence of a new step."""
        self.steps[0] += 1
        return await self.put_gate((self.term, 1, self.steps[0]), admitting=admitting, entry=entry)

    async def put_gate(
        self,
        fence: tuple[int, int, int],
        *,
        admitting: bool,
        plan: str | None = None,
        entry: Body | None = None,
    ) -> httpx.Response:
        body = {
            "plan": plan or self.plan,
            "admitting": admitting,
            "fence": list(fence),
            "route_entry": entry,
        }
        return await self.http.put("/flexpipe/gate", json=body)

    def headers(
        self, *, plan: str | None = None, term: int | None = None, purpose: str | None = None
    ) -> dict[str, str]:
        term = self.term if term is None else term
        told = {"x-flexpipe-plan": plan or self.plan, "x-flexpipe-fence": f"{term}.1.1"}
        return told | ({} if purpose is None else {"x-flexpipe-purpose": purpose})

    # -- generating ----------------------------------------------------------------------------

    async def post(self, body: Body, headers: dict[str, str] | None = None) -> httpx.Response:
        headers = self.headers() if headers is None else headers
        return await self.http.post("/generate", json=body, headers=headers)

    async def generate(self, ids: Sequence[int], count: int, **fields: Any) -> Body:
        """A whole answer; temperature 0, and EOS ignored unless told otherwise."""
        response = await self.post(request(ids, count, **fields))
        assert response.status_code == 200, response.text
        answer: Body = response.json()
        return answer

    async def tokens(self, ids: Sequence[int], count: int) -> list[int]:
        answer = await self.generate(ids, count)
        output: list[int] = answer["output_ids"]
        return output

    async def stream(self, ids: Sequence[int], count: int, **fields: Any) -> AsyncIterator[Body]:
        """The chunks of a stream; checks its frame: 200, events only, ``[DONE]`` last."""
        body = request(ids, count, stream=True, **fields)
        posting = self.http.stream("POST", "/generate", json=body, headers=self.headers())
        async with posting as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            last = ""
            async for line in response.aiter_lines():
                if not line:
                    continue
                assert line.startswith("data: "), line
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    yield json.loads(last)
            assert last == "[DONE]"

    async def abort(self, rid: str) -> httpx.Response:
        return await self.http.post("/abort_request", json={"rid": rid})

    async def load(self) -> Body:
        loads: list[Body] = (await self.http.get("/v1/loads")).json()["loads"]
        assert len(loads) == 1
        return loads[0]

    async def until_running(self, count: int, limit_s: float = 10.0) -> None:
        async def so_many() -> bool:
            load = await self.load()
            return bool(load["num_running_reqs"] == count and load["num_waiting_reqs"] == 0)

        await until(so_many, limit_s, f"{count} requests run and none waits")


def request(ids: Sequence[int], count: int, **fields: Any) -> Body:
    """A ``/generate`` body. ``sampling`` overrides sampling parameters; the rest is top level."""
    sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    sampling |= fields.pop("sampling", {})
    return {"input_ids": list(ids), "sampling_params": sampling, **fields}


async def chunks_of(stream: AsyncIterator[Body]) -> list[Body]:
    return [chunk async for chunk in stream]


BAD_BODIES = [
    pytest.param({"input_ids": "abc"}, id="ids are text"),
    pytest.param({"input_ids": [1, "x"]}, id="an id is text"),
    pytest.param({"input_ids": [1, 2.5]}, id="an id is a fraction"),
    pytest.param({"input_ids": []}, id="no ids"),
    pytest.param({"sampling_params": {"max_new_tokens": 1}}, id="no prompt at all"),
    pytest.param({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": -1}}, id="negative"),
    pytest.param({"input_ids": PROMPT, "sampling_params": {"temperature": -1}}, id="cold"),
    pytest.param({"input_ids": PROMPT, "sampling_params": "greedy"}, id="sampling is text"),
    pytest.param({"input_ids": PROMPT, "stream": "perhaps"}, id="stream is text"),
    pytest.param({"input_ids": [1] * 100_000}, id="too long a prompt"),
]


class EngineContract:
    """The tests. A subclass, in a module that gives the fixture ``engine``, runs them."""

    async def test_ready_is_refused_until_it_is_true(self, engine: RunningEngine) -> None:
        *before, last = engine.statuses_while_starting
        assert last == 200
        assert before, "it was ready before it was asked"
        assert set(before) <= {0, 503}
        assert (await engine.http.get("/ready")).status_code == 200
        assert (await engine.http.get("/health")).status_code == 200

    async def test_an_answer_names_its_tokens_and_why_it_ended(self, engine: RunningEngine) -> None:
        answer = await engine.generate(PROMPT, 9, rid="whole-1")
        meta = answer["meta_info"]
        assert len(answer["output_ids"]) == 9
        assert all(isinstance(token, int) for token in answer["output_ids"])
        assert isinstance(answer["text"], str)
        assert meta["id"] == "whole-1"
        assert meta["finish_reason"] == {"type": "length", "length": 9}
        assert meta["prompt_tokens"] == len(PROMPT)
        assert meta["completion_tokens"] == 9
        assert meta["cached_tokens"] >= 0

    async def test_a_stream_is_cumulative_and_ends_once(self, engine: RunningEngine) -> None:
        whole = await engine.tokens(PROMPT, 12)
        chunks = await chunks_of(engine.stream(PROMPT, 12, rid="stream-1"))
        outputs = [chunk["output_ids"] for chunk in chunks]
        lengths = [len(output) for output in outputs]
        assert lengths == sorted(lengths)
        assert all(output == whole[: len(output)] for output in outputs)
        assert outputs[-1] == whole
        reasons = [chunk["meta_info"]["finish_reason"] for chunk in chunks]
        assert reasons[-1] == {"type": "length", "length": 12}
        assert not any(reasons[:-1])
        assert {chunk["meta_info"]["id"] for chunk in chunks} == {"stream-1"}

    async def test_greedy_runs_agree(self, engine: RunningEngine) -> None:
        alone = await engine.tokens(PROMPT, 16)
        assert await engine.tokens(PROMPT, 16) == alone
        other = [*PROMPT[:-1], PROMPT[-1] + 1]
        assert await engine.tokens(other, 16) != alone

    @pytest.mark.parametrize("cut", [1, 7, 15])
    async def test_prompt_and_generated_go_on_as_the_unbroken_run(
        self, engine: RunningEngine, cut: int
    ) -> None:
        unbroken = await engine.tokens(PROMPT, 16)
        rest = await engine.tokens(PROMPT + unbroken[:cut], 16 - cut)
        assert unbroken[:cut] + rest == unbroken

    async def test_a_stop_token_ends_the_run_and_is_in_it(self, engine: RunningEngine) -> None:
        run = await engine.tokens(PROMPT, 24)
        token = next(t for t in reversed(run) if run.index(t) == max(map(run.index, run)))
        stops = {"ignore_eos": False, "stop_token_ids": [token]}
        answer = await engine.generate(PROMPT, 24, sampling=stops)
        assert answer["output_ids"] == run[: run.index(token) + 1]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}

    async def test_an_aborted_stream_ends_with_the_tokens_so_far(
        self, engine: RunningEngine
    ) -> None:
        seen: list[Body] = []
        async with aclosing(engine.stream(PROMPT, LONG, rid="abort-1")) as stream:
            async for chunk in stream:
                seen.append(chunk)
                if len(chunk["output_ids"]) >= 3 and len(seen) >= 3:
                    assert (await engine.abort("abort-1")).status_code == 200
        last = seen[-1]
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert last["meta_info"]["finish_reason"].get("status_code") is None
        assert 3 <= len(last["output_ids"]) < LONG
        assert last["output_ids"][: len(seen[-2]["output_ids"])] == seen[-2]["output_ids"]
        kept = len(last["output_ids"])
        assert await engine.tokens(PROMPT, kept) == last["output_ids"]
        await engine.until_running(0)

    async def test_an_aborted_call_answers_200_with_the_tokens_so_far(
        self, engine: RunningEngine
    ) -> None:
        calling = asyncio.create_task(engine.generate(PROMPT, LONG, rid="abort-2"))
        await engine.until_running(1)
        await engine.abort("abort-2")
        answer = await calling
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        kept = len(answer["output_ids"])
        assert 0 < kept < LONG
        assert await engine.tokens(PROMPT, kept) == answer["output_ids"]

    async def test_an_abort_reaches_every_rid_that_begins_so(self, engine: RunningEngine) -> None:
        calls = [
            asyncio.create_task(engine.generate(PROMPT, LONG, rid=rid))
            for rid in ("twin-1", "twin-10")
        ]
        await engine.until_running(2)
        await engine.abort("twin-1")
        reasons = [
            answer["meta_info"]["finish_reason"]["type"] for answer in await asyncio.gather(*calls)
        ]
        assert reasons == ["abort", "abort"]

    async def test_aborting_what_is_not_there_harms_nobody(self, engine: RunningEngine) -> None:
        running = asyncio.create_task(engine.generate(PROMPT, 60, rid="bystander"))
        await engine.until_running(1)
        for rid in ("unknown", "by", ""):
            assert (await engine.abort(rid)).status_code == 200
        answer = await running
        assert answer["meta_info"]["finish_reason"]["type"] == "length"

    async def test_a_client_that_leaves_frees_its_slot_within_a_second(
        self, engine: RunningEngine
    ) -> None:
        async with aclosing(engine.stream(PROMPT, LONG, rid="leaver-1")) as stream:
            async for _ in stream:
                break
        await engine.until_running(0, limit_s=1.0)

    async def test_loads_count_what_runs(self, engine: RunningEngine) -> None:
        await engine.until_running(0)
        calls = [
            asyncio.create_task(engine.generate(PROMPT, LONG, rid=f"load-{letter}"))
            for letter in "abc"
        ]
        await engine.until_running(3)
        load = await engine.load()
        assert load["num_used_tokens"] >= 3
        assert load["max_total_num_tokens"] >= load["num_used_tokens"]
        for letter in "abc":
            await engine.abort(f"load-{letter}")
        await asyncio.gather(*calls)
        await engine.until_running(0)

    async def test_a_rid_that_is_in_use_is_refused(self, engine: RunningEngine) -> None:
        first = asyncio.create_task(engine.generate(PROMPT, LONG, rid="double-1"))
        await engine.until_running(1)
        second = await engine.post(request(PROMPT, 2, rid="double-1"))
        assert second.status_code == 400
        assert "double-1" in second.text
        await engine.abort("double-1")
        assert (await first)["meta_info"]["finish_reason"]["type"] == "abort"

    @pytest.mark.parametrize("body", BAD_BODIES)
    async def test_bad_input_is_refused(self, engine: RunningEngine, body: Body) -> None:
        response = await engine.post(body)
        assert 400 <= response.status_code < 500, response.text
        assert "message" in response.text

    async def test_bad_json_is_refused(self, engine: RunningEngine) -> None:
        told = engine.headers() | {"content-type": "application/json"}
        response = await engine.http.post("/generate", content=b'{"input_ids": [1', headers=told)
        assert response.status_code == 400

    async def test_a_refused_stream_says_so_in_its_status_or_its_event(
        self, engine: RunningEngine
    ) -> None:
        response = await engine.post({"input_ids": [1] * 100_000, "stream": True})
        if response.status_code == 200:
            first = json.loads(response.text.splitlines()[0].removeprefix("data: "))
            assert 400 <= first["error"]["code"] < 500
        else:
            assert 400 <= response.status_code < 500

    async def test_teacher_forcing_shows_the_top_choice_at_each_position(
        self, engine: RunningEngine
    ) -> None:
        run = await engine.tokens(PROMPT, 8)
        start = len(PROMPT) - 1
        wanted = {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 2}
        answer = await engine.generate(PROMPT + run, 1, **wanted)
        meta = answer["meta_info"]
        judged, tops = meta["input_token_logprobs"], meta["input_top_logprobs"]
        assert [token for _, token, _ in judged] == [PROMPT[-1], *run]
        assert judged[0][0] is None
        assert tops[0] is None
        for (logprob, _, text), top in zip(judged[1:], tops[1:], strict=True):
            assert text is None
            assert len(top) == 2
            assert logprob >= top[0][0] - 1e-3
        assert len(meta["output_token_logprobs"]) == 1
        assert len(meta["output_top_logprobs"]) == 1

    async def test_teacher_forcing_shows_a_token_that_is_not_the_top_choice(
        self, engine: RunningEngine
    ) -> None:
        run = await engine.tokens(PROMPT, 4)
        wrong = [*run[:2], PROMPT[0] if run[2] != PROMPT[0] else PROMPT[1], run[3]]
        wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        meta = (await engine.generate(PROMPT + wrong, 1, **wanted))["meta_info"]
        at = len(PROMPT) + 2
        logprob, token, _ = meta["input_token_logprobs"][at]
        assert token == wrong[2]
        assert logprob < meta["input_top_logprobs"][at][0][0] - 1e-3

    # -- the gate ------------------------------------------------------------------------------

    async def test_a_closed_gate_refuses_all_but_warm_up(self, engine: RunningEngine) -> None:
        entry = {"deployment": "chat", "plans": [{"id": "p-9", "admit": 1.0}]}
        state = (await engine.set_gate(admitting=False, entry=entry)).json()
        assert (state["plan"], state["admitting"]) == (engine.plan, False)
        refused = await engine.post(request(PROMPT, 2))
        assert refused.status_code == 409
        assert refused.json()["error"]["type"] == "gate_closed"
        assert refused.json()["route_entry"] == entry
        warm = await engine.post(request(PROMPT, 2), engine.headers(purpose="warm"))
        assert warm.status_code == 200
        bare = await engine.post(request(PROMPT, 2), {"x-flexpipe-purpose": "warm"})
        assert bare.status_code == 200

    async def test_a_stream_goes_on_when_the_gate_closes(self, engine: RunningEngine) -> None:
        lengths = []
        async with aclosing(engine.stream(PROMPT, 40, rid="through-1")) as stream:
            async for chunk in stream:
                if not lengths:
                    await engine.set_gate(admitting=False)
                lengths.append(len(chunk["output_ids"]))
        assert lengths[-1] == 40

    @pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
    async def test_strays_and_wrong_plans_are_refused(
        self, engine: RunningEngine, path: str
    ) -> None:
        for headers in ({}, engine.headers(plan="p-other")):
            refused = await engine.http.post(path, json={}, headers=headers)
            assert refused.status_code == 409
            assert refused.json()["error"]["type"] == "wrong_plan"

    async def test_a_fence_of_an_older_term_is_refused(self, engine: RunningEngine) -> None:
        for headers, status in (
            (engine.headers(term=engine.term - 1), 409),
            (engine.headers(), 200),
            (engine.headers(term=engine.term + 1), 200),
        ):
            answer = await engine.post(request(PROMPT, 1), headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["type"] == "stale_fence"

    async def test_the_gate_obeys_the_highest_fence(self, engine: RunningEngine) -> None:
        held = (await engine.set_gate(admitting=True)).json()
        fence = tuple(held["fence"])
        older = await engine.put_gate((fence[0], fence[1], fence[2] - 1), admitting=False)
        assert older.status_code == 409
        assert older.json()["error"]["type"] == "superseded"
        repeat = await engine.put_gate(fence, admitting=True)
        assert repeat.status_code == 200
        assert repeat.json() == held
        stranger = await engine.put_gate((fence[0] + 9, 1, 1), admitting=True, plan="p-other")
        assert stranger.status_code == 409
        report = (await engine.http.get("/flexpipe/gate")).json()
        assert report["fence"] == list(fence)
        assert report["admitting"] is True
        assert report["admitted"] > 0

    # -- the engine's own OpenAI endpoints --------------------------------------------------------

    async def test_the_openai_endpoints_answer_text_and_usage(self, engine: RunningEngine) -> None:
        told = engine.headers()
        body = {"model": "any", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        talk = body | {"messages": [{"role": "user", "content": "Say something."}]}
        chat = (await engine.http.post("/v1/chat/completions", json=talk, headers=told)).json()
        assert chat["object"] == "chat.completion"
        assert chat["choices"][0]["message"]["role"] == "assistant"
        assert isinstance(chat["choices"][0]["message"]["content"], str)
        assert chat["choices"][0]["finish_reason"] == "length"
        assert chat["usage"]["completion_tokens"] == 5
        given = body | {"prompt": "Once upon a time"}
        plain = (await engine.http.post("/v1/completions", json=given, headers=told)).json()
        assert plain["object"] == "text_completion"
        assert isinstance(plain["choices"][0]["text"], str)
        assert plain["usage"]["completion_tokens"] == 5

    async def test_an_openai_stream_joins_to_the_whole_answer(self, engine: RunningEngine) -> None:
        told = engine.headers()
        talk = {
            **{"model": "any", "max_tokens": 6, "temperature": 0, "ignore_eos": True},
            "messages": [{"role": "user", "content": "Say something."}],
        }
        whole = (await engine.http.post("/v1/chat/completions", json=talk, headers=told)).json()
        talk |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await engine.http.post("/v1/chat/completions", json=talk, headers=told)
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        assert lines[-1] == "[DONE]"
        events = [json.loads(line) for line in lines[:-1]]
        choices = [choice for event in events for choice in event["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
        assert events[-1]["usage"]["completion_tokens"] == 6
