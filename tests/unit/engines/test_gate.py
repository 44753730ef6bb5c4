"""The gate alone, and its middleware over ASGI."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexpipe.engines import gate as gate_module
from flexpipe.engines.gate import (
    GUARDED_PATHS,
    MAX_BODY_BYTES,
    AsgiApp,
    Fence,
    Gate,
    GateMiddleware,
    GateState,
    Receive,
    Refusal,
    Scope,
    Send,
)

LOOPBACK = ("127.0.0.1", 40000)
ELSEWHERE = ("10.1.2.3", 40000)
ENTRY = {"deployment": "chat", "plans": ["p-2"]}


def gate(*, admitting: bool = True, fence: tuple[int, int, int] = (3, 2, 5)) -> Gate:
    return Gate(GateState("p-1", admitting, Fence(*fence), None))


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for the engine behind the gate: answers 200 with the path."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def client(app: AsgiApp, address: tuple[str, int] | None = LOOPBACK) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=address)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://engine")


def told(plan: str = "p-1", fence: str = "3.2.5", **more: str) -> dict[str, str]:
    return {"x-flexpipe-plan": plan, "x-flexpipe-fence": fence, **more}


def order(**changed: Any) -> dict[str, Any]:
    return {"plan": "p-1", "admitting": True, "fence": [3, 2, 6], "route_entry": ENTRY} | changed


# -- the decision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "fence", "purpose", "kind"),
    [
        ("p-1", Fence(3, 2, 5), None, None),
        ("p-1", Fence(3, 0, 0), None, None),  # (shift, step) do not age a request
        ("p-1", Fence(4, 0, 0), None, None),
        ("p-1", Fence(2, 9, 9), None, "stale_fence"),
        ("p-2", Fence(3, 2, 5), None, "wrong_plan"),
        ("p-2", Fence(3, 2, 5), "warm", "wrong_plan"),
        (None, None, None, "wrong_plan"),
        (None, Fence(3, 2, 5), None, "wrong_plan"),
        ("p-1", None, None, "stale_fence"),
        (None, None, "warm", None),
        ("p-1", Fence(2, 9, 9), "warm", "stale_fence"),
        ("p-1", Fence(3, 2, 5), "else", None),
    ],
)
def test_an_open_gate_lets_in_its_own(
    plan: str | None, fence: Fence | None, purpose: str | None, kind: str | None
) -> None:
    refusal = gate().decide(plan, fence, purpose)
    assert (refusal.kind if refusal else None) == kind


def test_a_closed_gate_lets_in_warm_up_only() -> None:
    closed = gate(admitting=False)
    refusal = closed.decide("p-1", Fence(3, 2, 5), None)
    assert refusal is not None
    assert refusal.kind == "gate_closed"
    assert closed.decide("p-1", Fence(3, 2, 5), "warm") is None
    assert (closed.admitted, closed.refused) == (1, 1)


def test_a_lower_fence_is_superseded_and_an_equal_one_is_a_repeat() -> None:
    held = gate()
    before = held.state
    lower = held.set(GateState("p-1", False, Fence(3, 2, 4), None))
    assert isinstance(lower, Refusal)
    assert lower.kind == "superseded"
    assert held.set(GateState("p-1", False, Fence(3, 2, 5), None)) == before
    higher = GateState("p-1", False, Fence(4, 0, 0), '{"a":1}')
    assert held.set(higher) == higher
    assert held.state == higher


def test_a_control_call_without_entry_keeps_the_entry() -> None:
    held = gate()
    held.set(GateState("p-1", True, Fence(3, 2, 6), '{"a":1}'))
    held.set(GateState("p-1", False, Fence(3, 2, 7), None))
    assert held.state == GateState("p-1", False, Fence(3, 2, 7), '{"a":1}')


def test_another_plans_order_is_refused() -> None:
    refusal = gate().set(GateState("p-2", True, Fence(9, 9, 9), None))
    assert isinstance(refusal, Refusal)
    assert refusal.kind == "wrong_plan"


def test_a_gate_without_a_plan_takes_the_first_named() -> None:
    blank = Gate.from_env({})
    assert blank.state == GateState("", False, Fence(0, 0, 0), None)
    wanted = GateState("p-7", True, Fence(1, 0, 0), None)
    assert blank.set(wanted) == wanted


def test_the_environment_starts_it_closed_unless_told() -> None:
    env = {"FLEXPIPE_PLAN_ID": "p-1", "FLEXPIPE_GATE_FENCE": "2.3.4"}
    assert Gate.from_env(env).state == GateState("p-1", False, Fence(2, 3, 4), None)
    assert Gate.from_env({**env, "FLEXPIPE_GATE_OPEN": "1"}).state.admitting
    assert not Gate.from_env({**env, "FLEXPIPE_GATE_OPEN": "0"}).state.admitting


@pytest.mark.parametrize(
    "text", ["", "1.2", "1.2.3.4", "a.b.c", "-1.2.3", "1..3", "9" * 30 + ".1.1"]
)
def test_an_unreadable_fence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fence"):
        Fence.parse(text)


# -- the middleware -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(GUARDED_PATHS))
async def test_every_generating_path_is_guarded(path: str) -> None:
    async with client(GateMiddleware(engine, gate())) as http:
        refused = await http.post(path)
        assert refused.status_code == 409
        assert refused.json()["error"]["type"] == "wrong_plan"
        assert (await http.post(path, headers=told())).status_code == 200
        assert (await http.post(path + "/")).status_code == 409


async def test_other_paths_pass() -> None:
    async with client(GateMiddleware(engine, gate(admitting=False))) as http:
        for path in ("/ready", "/abort_request", "/v1/loads", "/generate_more"):
            assert (await http.get(path)).text == path


async def test_a_refusal_carries_the_newest_route_entry() -> None:
    async with client(GateMiddleware(engine, gate())) as http:
        await http.put("/flexpipe/gate", json=order(admitting=False))
        refused = await http.post("/generate", headers=told())
        assert refused.status_code == 409
        assert refused.json() == {
            "error": {"type": "gate_closed", "message": "plan 'p-1' admits no requests now"},
            "route_entry": ENTRY,
            "fence": [3, 2, 6],
        }


async def test_a_malformed_fence_header_is_400() -> None:
    async with client(GateMiddleware(engine, gate())) as http:
        answer = await http.post("/generate", headers=told(fence="new"))
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "malformed"


async def test_the_report_counts() -> None:
    async with client(GateMiddleware(engine, gate())) as http:
        await http.post("/generate", headers=told())
        await http.post("/generate")
        report = (await http.get("/flexpipe/gate")).json()
        assert report == {
            **{"plan": "p-1", "admitting": True, "fence": [3, 2, 5], "route_entry": None},
            **{"admitted": 1, "refused": 1},
        }


async def test_control_is_for_loopback_or_the_token() -> None:
    held = gate()
    app = GateMiddleware(engine, held, token="secret")
    async with client(app, ELSEWHERE) as http:
        assert (await http.get("/flexpipe/gate")).status_code == 403
        wrong = {"authorization": "Bearer other"}
        assert (await http.put("/flexpipe/gate", json=order(), headers=wrong)).status_code == 403
        assert held.state.fence == Fence(3, 2, 5)
        right = {"authorization": "Bearer secret"}
        assert (await http.put("/flexpipe/gate", json=order(), headers=right)).status_code == 200
    for address in (("::1", 1), ("::ffff:127.0.0.1", 1)):
        async with client(app, address) as http:
            assert (await http.get("/flexpipe/gate")).status_code == 200
    for stranger in (None, ("testclient", 1)):
        async with client(GateMiddleware(engine, held, token=""), stranger) as http:
            none = {"authorization": "Bearer "}
            assert (await http.get("/flexpipe/gate", headers=none)).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'"p-1"',
        b"\xff",
        b"[" * 100_000,
        json.dumps(order(plan="")).encode(),
        json.dumps(order(plan=1)).encode(),
        json.dumps(order(admitting=1)).encode(),
        json.dumps(order(fence=[1, 2])).encode(),
        json.dumps(order(fence=[1, 2, "3"])).encode(),
        json.dumps(order(fence=[1, 2, True])).encode(),
        json.dumps(order(fence=[1, 2, -3])).encode(),
        json.dumps(order(route_entry="text")).encode(),
        json.dumps(order(route_entry={"x": float("nan")})).encode(),
        json.dumps(order(extra=1)).encode(),
        b" " * (MAX_BODY_BYTES + 1),
    ],
)
async def test_a_malformed_order_changes_nothing(body: bytes) -> None:
    held = gate()
    before = held.state
    async with client(GateMiddleware(engine, held)) as http:
        answer = await http.put("/flexpipe/gate", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "malformed"
        assert "\n" not in answer.json()["error"]["message"]
        assert (await http.delete("/flexpipe/gate")).status_code == 405
    assert held.state == before


async def test_the_engines_own_warm_up_passes_while_it_starts() -> None:
    phase = ["starting"]
    app = GateMiddleware(engine, gate(), starting=lambda: phase[0] == "starting")
    async with client(app) as http, client(app, ELSEWHERE) as stranger:
        assert (await http.post("/generate")).status_code == 200
        assert (await stranger.post("/generate")).status_code == 409
        assert (await http.post("/generate", headers=told(plan="p-2"))).status_code == 409
        phase[0] = "up"
        assert (await http.post("/generate")).status_code == 409


async def test_a_lifespan_goes_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError("not called")

    await GateMiddleware(app, gate())({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]


def test_the_gate_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(gate_module.__file__).read_text())
    named = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    named |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in named} <= sys.stdlib_module_names
