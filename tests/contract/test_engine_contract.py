"""Both engines through the same contract: emulated always, SGLang where its environment is."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from contract.engine_harness import EngineProcess, RunningEngine
from contract.engine_suite import EngineContract
from flexpipe.engines.emulated.adapter import EmulatedAdapter
from flexpipe.engines.emulated.checkpoint import write_checkpoint
from flexpipe.engines.port import EngineAdapter, RankGroup
from flexpipe.engines.sglang.adapter import SglangAdapter
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import PORTS_PER_PLAN, DeviceRef
from flexpipe.model.plan import LayerRange, Plan, Stage
from flexpipe.testing.ports import free_ports

ROOT = Path(__file__).parents[2]
TERM = 3
TABLE = """
start_s = 0.3
prefill_tokens_per_s = 50000
[decode_step_ms.default]
base = 2.5
"""


@dataclass(frozen=True)
class Started:
    """An engine process that got ready, and what it said on the way."""

    process: EngineProcess
    plan: str
    statuses: list[int]


def emulated_group(folder: Path) -> tuple[EngineAdapter, RankGroup]:
    write_checkpoint(folder / "model")
    (folder / "table.toml").write_text(TABLE)
    settings = EngineSettings(
        kind="emulated", form="emulated", performance=str(folder / "table.toml")
    )
    return EmulatedAdapter(sys.executable), rank_group(folder / "model", settings)


def sglang_group() -> tuple[EngineAdapter, RankGroup]:
    venv = Path(os.environ.get("FLEXPIPE_ENGINE_VENV", ROOT / ".venv-sglang"))
    python = str(venv / "bin" / "python")
    model = ROOT / "var" / "models" / "toy-llama"
    module = "flexpipe.engines.sglang.checkpoints"
    subprocess.run([python, "-m", module, "toy", str(model)], check=True, timeout=120)
    return SglangAdapter(python), rank_group(model, EngineSettings(kind="sglang", form="cpu"))


def rank_group(model: Path, settings: EngineSettings) -> RankGroup:
    """One rank that holds the four layers of the toy shapes."""
    stage = Stage(
        layers=LayerRange(first=0, end=4),
        devices=(DeviceRef(node="n1", device="cpu0"),),
        rank_bytes=1,
    )
    return RankGroup(
        plan=Plan(model="toy", engine=settings.kind, stages=(stage,)),
        fence=Fence(deployment="chat", term=TERM, shift=1, step=1),
        model=ModelRef(name="toy", path=str(model)),
        engine=settings,
        node="n1",
        node_rank=0,
        host="127.0.0.1",
        front_port=(port := free_ports(PORTS_PER_PLAN)),
        rendezvous=f"127.0.0.1:{port + 1}",
    )


@pytest.fixture(
    scope="module",
    params=["emulated", pytest.param("sglang", marks=pytest.mark.sglang)],
)
def launched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EngineProcess, str]]:
    folder = tmp_path_factory.mktemp("engine")
    adapter, group = emulated_group(folder) if request.param == "emulated" else sglang_group()
    spec = adapter.launch(group)
    with EngineProcess(spec, dict(os.environ), folder) as process:
        yield process, group.plan.id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(launched: tuple[EngineProcess, str]) -> Started:
    process, plan = launched
    return Started(process, plan, await process.ready(limit_s=180.0))


@pytest.fixture
async def engine(started: Started) -> AsyncIterator[RunningEngine]:
    """The engine with an open gate. Steps only grow, whichever test set the gate before."""
    front = started.process.front
    async with httpx.AsyncClient(base_url=front, trust_env=False, timeout=60) as http:
        held = (await http.get("/flexpipe/gate")).json()["fence"]
        engine = RunningEngine(
            plan=started.plan,
            term=TERM,
            statuses_while_starting=started.statuses,
            http=http,
            steps=[held[2]],
        )
        assert (await engine.set_gate(admitting=True)).status_code == 200
        yield engine


class TestEngine(EngineContract):
    """The contract, once an engine."""
