"""The gate in an engine's HTTP front: it lets in what the route entry sends and refuses strays.

Mounted natively by the emulated engine and by our plugin in SGLang's app; set by the worker.
The gate saves work; safety against doubled tokens is the router's alone, so requests that were let
in go on when the gate closes. It imports the standard library only, because SGLang's environment
holds nothing else of ours, and it never calls anybody.

Every generating request says whose it is:

    x-flexpipe-plan: <plan id>            the plan the sender believes it talks to
    x-flexpipe-fence: term.shift.step     the fence of the route entry the sender acts on
    x-flexpipe-purpose: warm              a synthetic prompt: let in although the gate is closed

A refused one is answered 409 with the newest route entry the gate was given, which a router applies
even without the bus. Control is ``GET`` and ``PUT /flexpipe/gate``.
"""

import hmac
import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

GATE_PATH: Final = "/flexpipe/gate"
PLAN_HEADER: Final = "x-flexpipe-plan"
FENCE_HEADER: Final = "x-flexpipe-fence"
PURPOSE_HEADER: Final = "x-flexpipe-purpose"
WARM: Final = "warm"

GUARDED_PATHS: Final = frozenset(
    {
        # The three that FlexPipe's router uses ...
        "/generate",
        "/v1/chat/completions",
        "/v1/completions",
        # ... and SGLang's other doors to the same scheduler, so that no stray walks around.
        "/api/chat",
        "/api/generate",
        "/classify",
        "/encode",
        "/invocations",
        "/v1/classify",
        "/v1/decisions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
        "/v1/systemone",
        "/vertex_generate",
    }
)

MAX_BODY_BYTES: Final = 1 << 20
"""A route entry names plans and shares only: kilobytes. One NATS message holds no more."""

RefusalKind = Literal["gate_closed", "wrong_plan", "stale_fence"]


class Fence(NamedTuple):
    """Place in a deployment's history; compared as (term, shift, step), higher is newer."""

    term: int
    shift: int
    step: int

    @classmethod
    def parse(cls, text: str) -> "Fence":
        """Read ``term.shift.step``. Raises ValueError with one line for anything else."""
        parts = text.strip().split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"fence must read term.shift.step, got {text[:64]!r}")
        if max(map(len, parts)) > 18:
            raise ValueError("fence parts must be below 10**18")
        return cls(*map(int, parts))

    def __str__(self) -> str:
        return f"{self.term}.{self.shift}.{self.step}"


@dataclass(frozen=True, slots=True)
class GateState:
    """What the gate holds: replaced as a whole, never changed in place.

    ``plan`` is "" until a control call names it (an engine launched without a plan id).
    ``route_entry`` is the newest route entry as JSON text, or None before one was given.
    """

    plan: str
    admitting: bool
    fence: Fence
    route_entry: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request or a control call was not let through; ``message`` is one line."""

    kind: RefusalKind | Literal["superseded", "malformed", "forbidden"]
    message: str


class Gate:
    """The decision alone: no HTTP, no clock. One object a front, used from one event loop."""

    def __init__(self, state: GateState) -> None:
        self.state = state
        self.admitted = 0
        self.refused = 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Gate":
        """The gate as the launch left it: closed (shadow) unless ``FLEXPIPE_GATE_OPEN=1``.

        Reads ``FLEXPIPE_PLAN_ID`` and ``FLEXPIPE_GATE_FENCE`` (``term.shift.step``, default 0.0.0).
        Raises ValueError when the fence cannot be read.
        """
        env = os.environ if environ is None else environ
        return cls(
            GateState(
                plan=env.get("FLEXPIPE_PLAN_ID", ""),
                admitting=env.get("FLEXPIPE_GATE_OPEN", "") == "1",
                fence=Fence.parse(env.get("FLEXPIPE_GATE_FENCE") or "0.0.0"),
                route_entry=None,
            )
        )

    def decide(self, plan: str | None, fence: Fence | None, purpose: str | None) -> Refusal | None:
        """Whether a generating request is let in: None, or the refusal. Counts it either way.

        A request is stale by *term* only: (shift, step) order the control calls of one plan, and
        the gate of a plan that a shift keeps may be steps ahead of the route entry routers hold.
        """
        refusal = self._refusal(plan, fence, purpose)
        if refusal is None:
            self.admitted += 1
        else:
            self.refused += 1
        return refusal

    def _refusal(
        self, plan: str | None, fence: Fence | None, purpose: str | None
    ) -> Refusal | None:
        here = self.state
        warm = purpose == WARM
        if plan is None and not warm:
            return Refusal("wrong_plan", f"the request names no plan ({PLAN_HEADER}): a stray")
        if plan is not None and plan != here.plan:
            return Refusal(
                "wrong_plan", f"this engine serves plan {here.plan!r}, not {plan[:128]!r}"
            )
        if fence is None and not warm:
            return Refusal("stale_fence", f"the request carries no fence ({FENCE_HEADER}): a stray")
        if fence is not None and fence.term < here.fence.term:
            return Refusal("stale_fence", f"fence {fence} is older than term {here.fence.term}")
        if not here.admitting and not warm:
            return Refusal("gate_closed", f"plan {here.plan!r} admits no requests now")
        return None

    def set(self, wanted: GateState) -> GateState | Refusal:
        """Accept a control call; answers the state that holds after it, or why it was refused.

        An equal fence is a repeat and answered with the state recorded; a lower one is superseded.
        A wanted route entry of None keeps the one given before.
        """
        here = self.state
        if here.plan and wanted.plan != here.plan:
            return Refusal("wrong_plan", f"this gate is of plan {here.plan!r}, not {wanted.plan!r}")
        if wanted.fence < here.fence:
            return Refusal("superseded", f"fence {wanted.fence} is below {here.fence}")
        if wanted.fence > here.fence:
            entry = here.route_entry if wanted.route_entry is None else wanted.route_entry
            self.state = replace(wanted, route_entry=entry)
        return self.state


class GateMiddleware:
    """Pure ASGI middleware: ``app.add_middleware(GateMiddleware, gate=gate)`` or a plain wrap.

    ``starting`` tells whether the engine is still before its first ``ready``. SGLang warms itself
    up by a request to its own ``/generate`` and dies if that is refused, so while ``starting()``
    holds, a request from loopback without our headers passes. Absent, nothing passes so.
    ``token`` defaults to ``FLEXPIPE_GATE_TOKEN``: who bears it may set the gate from elsewhere.
    """

    def __init__(
        self,
        app: AsgiApp,
        gate: Gate,
        *,
        starting: Callable[[], bool] | None = None,
        token: str | None = None,
    ) -> None:
        self._app = app
        self._gate = gate
        self._starting = starting
        self._token = token if token is not None else os.environ.get("FLEXPIPE_GATE_TOKEN", "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == GATE_PATH:
            await self._control(scope, receive, send)
        elif scope["path"].rstrip("/") in GUARDED_PATHS:
            await self._guard(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        plan, purpose = headers.get(PLAN_HEADER), headers.get(PURPOSE_HEADER)
        fence: Fence | None = None
        if FENCE_HEADER in headers:
            try:
                fence = Fence.parse(headers[FENCE_HEADER])
            except ValueError as error:
                await self._refuse(send, 400, Refusal("malformed", str(error)))
                return
        bare = plan is None and fence is None and purpose is None
        if bare and self._starting is not None and self._starting() and _is_loopback(scope):
            await self._app(scope, receive, send)
            return
        refusal = self._gate.decide(plan, fence, purpose)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await self._refuse(send, 409, refusal)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (_is_loopback(scope) or self._bears_token(scope)):
            await self._refuse(send, 403, Refusal("forbidden", "the gate is set over loopback"))
        elif scope["method"] in ("GET", "HEAD"):
            await _answer(send, 200, self._report())
        elif scope["method"] == "PUT":
            try:
                wanted = _read_state(await _read_body(receive))
            except ValueError as error:
                await self._refuse(send, 400, Refusal("malformed", str(error)))
                return
            outcome = self._gate.set(wanted)
            if isinstance(outcome, Refusal):
                await self._refuse(send, 409, outcome)
            else:
                await _answer(send, 200, self._report())
        else:
            await _answer(
                send, 405, _error("malformed", "use GET or PUT"), [(b"allow", b"GET, PUT")]
            )

    def _bears_token(self, scope: Scope) -> bool:
        if not self._token:
            return False
        given = _headers(scope).get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def _report(self) -> dict[str, object]:
        state = self._gate.state
        return {
            "plan": state.plan,
            "admitting": state.admitting,
            "fence": list(state.fence),
            "route_entry": _entry_value(state),
            "admitted": self._gate.admitted,
            "refused": self._gate.refused,
        }

    async def _refuse(self, send: Send, status: int, refusal: Refusal) -> None:
        body = _error(refusal.kind, refusal.message)
        if status == 409:
            body["route_entry"] = _entry_value(self._gate.state)
            body["fence"] = list(self._gate.state.fence)
        await _answer(send, status, body)


def _error(kind: str, message: str) -> dict[str, object]:
    return {"error": {"type": kind, "message": " ".join(message.split())}}


def _entry_value(state: GateState) -> object:
    return None if state.route_entry is None else json.loads(state.route_entry)


def _headers(scope: Scope) -> dict[str, str]:
    raw: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ValueError("the client left before its body was complete")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"the body exceeds {MAX_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _read_state(body: bytes) -> GateState:
    """``{plan, admitting, fence: [term, shift, step], route_entry: object or null}``, strictly."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object")
    unknown = sorted(set(value) - {"plan", "admitting", "fence", "route_entry"})
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    plan, admitting = value.get("plan"), value.get("admitting")
    fence, entry = value.get("fence"), value.get("route_entry")
    if not isinstance(plan, str) or not plan:
        raise ValueError("plan must be a non-empty string")
    if not isinstance(admitting, bool):
        raise ValueError("admitting must be true or false")
    if not isinstance(fence, list) or len(fence) != 3 or not all(map(_is_counter, fence)):
        raise ValueError("fence must be [term, shift, step], three whole numbers from 0")
    if entry is not None and not isinstance(entry, dict):
        raise ValueError("route_entry must be a JSON object or null")
    text = None if entry is None else json.dumps(entry, separators=(",", ":"))
    return GateState(plan=plan, admitting=admitting, fence=Fence(*fence), route_entry=text)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _is_counter(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


async def _answer(
    send: Send, status: int, body: dict[str, object], extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    payload = json.dumps(body, separators=(",", ":")).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
