"""What every engine must do over HTTP, whatever runs behind it; `test_engine_contract.py` runs it.

A new engine passes the whole of `EngineContract` or it is none. The tests speak plain HTTP, so that
they hold the shapes our client relies on.
"""

import asyncio
import json
from contextlib import aclosing

import pytest

from contract.engine_harness import Body, RunningEngine, chunks_of, request

PROMPT = [71, 104, 111, 33, 90, 77, 120, 45, 66, 81, 99, 58]
LONG = 400
"""Tokens of a request that is to be caught while it runs: seconds on the slower engine."""

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
    pytest.param({"input_ids": [1, 10_000_000]}, id="an id beyond the vocabulary"),
    pytest.param({"input_ids": [1, -1]}, id="a negative id"),
    pytest.param({"input_ids": PROMPT, "sampling_params": {"bogus": 1}}, id="unknown sampling"),
    pytest.param(
        {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 10**6}}, id="too much"
    ),
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
        assert len(response.text) > 10

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
        lengths: list[int] = []
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
