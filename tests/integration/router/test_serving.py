"""Answers, streams, models, health, and every kind of bad request."""

from __future__ import annotations

from typing import Any

from flexpipe.model.deployment import Policy
from flexpipe.testing.nats import until
from integration.router.scene import MODEL, ROUTER, Engine, Scene, expected, routed


async def test_a_stream_is_what_the_oracle_says_under_one_id_with_one_usage(
    scene: Scene, first: Engine
) -> None:
    await scene.route(routed(first))
    stream = await scene.stream(stream_options={"include_usage": True})
    assert stream.status == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.tokens == expected(first.oracle, stream)
    assert len(stream.tokens) == 60
    assert stream.text == scene.text.decode(stream.tokens)
    assert stream.ids == {f"chatcmpl-{stream.sequence}"}
    assert (stream.finishes, stream.done) == (["length"], True)
    assert [usage["completion_tokens"] for usage in stream.usages] == [60]


async def test_a_whole_answer_equals_the_stream(scene: Scene, first: Engine) -> None:
    await scene.route(routed(first))
    stream = await scene.stream()
    answer = (await scene.http.post("/v1/chat/completions", json=scene.body())).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == stream.text
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["usage"]["prompt_tokens"] == len(stream.prompt)


async def test_completions_take_text_and_ids(scene: Scene, first: Engine) -> None:
    await scene.route(routed(first))
    text = "ba be bi"
    by_text = await scene.stream(path="/v1/completions", messages=None, prompt=text)
    by_ids = await scene.stream(
        path="/v1/completions", messages=None, prompt=scene.text.encode(text)
    )
    assert by_text.tokens == by_ids.tokens == expected(first.oracle, by_text)
    assert by_text.frames[0]["object"] == "text_completion"


async def test_a_stop_string_ends_the_stream_before_it(scene: Scene, first: Engine) -> None:
    await scene.route(routed(first))
    whole = await scene.stream()
    stop = scene.text.decode(whole.tokens[20:22])
    stopped = await scene.stream(stop=[stop])
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.finishes == ["stop"]


async def test_models_lists_what_serves_and_names_may_be_the_models_or_the_deployments(
    scene: Scene, first: Engine
) -> None:
    assert (await scene.http.get("/v1/models")).json()["data"] == []
    await scene.route(routed(first))
    listed = (await scene.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == [MODEL]
    assert (await scene.stream(model="chat", max_tokens=2)).finishes == ["length"]


async def test_health_ready_and_metrics_answer(scene: Scene, first: Engine) -> None:
    await scene.route(routed(first))
    await scene.stream(max_tokens=3)
    assert (await scene.http.get("/health")).status_code == 200
    assert (await scene.http.get("/ready")).status_code == 200
    assert await scene.gauge("flexpipe_router_ttft_seconds_count") == 1
    assert await scene.gauge("flexpipe_router_output_tokens_total") == 3
    assert await scene.gauge("flexpipe_router_ledger_violations_total") == 0


async def test_the_router_takes_its_seat_in_the_roster(scene: Scene) -> None:
    seat = await scene.bus.read("roster", ROUTER)
    assert seat.value is not None


MESSAGE = [{"role": "user", "content": "ba"}]
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"messages": None}, 400, "messages"),
    ({"messages": []}, 400, "messages"),
    ({"max_tokens": "many"}, 400, "max_tokens"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"temperature": 3}, 400, "temperature"),
    ({"no_such_field": 1}, 400, "no_such_field"),
    ({"stop": ["x"] * 17}, 400, "stop"),
    ({"model": "nobody"}, 404, "nobody"),
    ({"max_tokens": 100_000}, 400, "context"),
    ({"messages": [{"role": "user", "content": "ba " * 3000}]}, 400, "context"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
]


async def test_a_bad_request_is_a_4xx_in_openais_shape_that_names_the_field(
    scene: Scene, first: Engine
) -> None:
    await scene.route(routed(first))
    for fields, status, named in BAD:
        body = {"model": MODEL, "messages": MESSAGE} | fields
        answer = await scene.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == status, fields
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert named in error["message"]
        assert "\n" not in error["message"]
    assert (await scene.stream(max_tokens=2)).done


NO_REQUESTS = [
    ("POST", "/v1/chat/completions", b"{", "application/json", 400),
    ("POST", "/v1/chat/completions", b"\xff\xfe", "application/json", 400),
    ("POST", "/v1/chat/completions", b"[]", "application/json", 400),
    ("POST", "/v1/chat/completions", b"a=b", "application/x-www-form-urlencoded", 415),
    ("GET", "/v1/chat/completions", b"", "application/json", 405),
    ("POST", "/v1/nothing", b"{}", "application/json", 404),
    ("POST", "/v1/chat/completions", b" " * (17 << 20), "application/json", 413),
]


async def test_what_is_not_a_request_at_all_is_refused_in_the_same_shape(scene: Scene) -> None:
    for method, path, content, kind, status in NO_REQUESTS:
        headers = {"content-type": kind}
        answer = await scene.http.request(method, path, content=content, headers=headers)
        assert answer.status_code == status, (method, path, content[:20])
        assert answer.json()["error"]["message"]


async def test_a_declared_model_without_a_plan_parks_and_then_says_when_to_come_again(
    scene: Scene,
) -> None:
    await scene.route(policy=Policy(park_limit_s=0.3))
    answer = await scene.http.post("/v1/chat/completions", json=scene.body(stream=True))
    assert answer.status_code == 503
    assert answer.headers["retry-after"].isdigit()
    assert answer.headers["x-flexpipe-sequence"]
    assert answer.json()["error"]["code"] == "overloaded"


async def test_a_stopped_deployment_is_503(scene: Scene) -> None:
    await scene.route(stopped=True)
    answer = await scene.http.post("/v1/chat/completions", json=scene.body())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "deployment_stopped"


async def test_a_relayed_request_comes_back_as_the_engine_wrote_it(
    scene: Scene, first: Engine
) -> None:
    await scene.route(routed(first))
    body = scene.body(n=2, max_tokens=8)
    answer = await scene.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2
    assert answer.headers["x-flexpipe-sequence"]
    both = {"content-length", "transfer-encoding"} & set(answer.headers)
    assert len(both) == 1
    plain = await scene.http.post("/v1/chat/completions", json=scene.body(max_tokens=8))
    relayed, resumed = (each.json()["choices"][0]["message"] for each in (answer, plain))
    assert relayed["content"] == resumed["content"]


async def test_a_relayed_stream_passes_through_and_is_counted(scene: Scene, first: Engine) -> None:
    await scene.route(routed(first))
    async with scene.closings() as closed:
        stream = await scene.stream(n=2, max_tokens=8, return_token_ids=None)
        assert stream.done
        assert {choice["index"] for choice in stream.choices} == {0, 1}
        assert (await scene.stream(max_tokens=1)).done
        await until(lambda: stream.sequence in closed)
    assert closed[stream.sequence].finish == "stop"


async def test_an_engines_own_4xx_on_the_relay_path_stays_what_it_is(
    scene: Scene, first: Engine
) -> None:
    await scene.route(routed(first))
    answer = await scene.http.post("/v1/chat/completions", json=scene.body(n=100))
    assert 400 <= answer.status_code < 500
    assert (await scene.stream(max_tokens=2)).done
