"""Starting an engine for a test and talking to it: what the engine contract stands on."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from flexpipe.engines.port import LaunchSpec

POLL_S = 0.02
Body = dict[str, Any]


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
    """Await a condition, or fail after ``limit_s`` saying what did not come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not await condition():
        assert loop.time() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(POLL_S)


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

    async def stream(
        self, ids: Sequence[int], count: int, **fields: Any
    ) -> AsyncGenerator[Body, None]:
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


async def chunks_of(stream: AsyncGenerator[Body, None]) -> list[Body]:
    return [chunk async for chunk in stream]
