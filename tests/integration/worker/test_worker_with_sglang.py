"""Two workers and one real SGLang engine over both: a gang start, a warm-up, a lost rank, nothing left."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from flexpipe.events.plan import EngineLost, EngineReady, PlanDrained, PlanStopped, PlanWarmed
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fleet import Device
from flexpipe.testing.nats import until
from integration.worker.site import SLOT_BYTES, Site, fence, plan, site

pytestmark = [pytest.mark.processes, pytest.mark.sglang]

ROOT = Path(__file__).parents[3]
START_LIMIT_S = 240.0


def toy(venv: Path) -> ModelRef:
    folder = ROOT / "var" / "models" / "toy-llama"
    module = "flexpipe.engines.sglang.checkpoints"
    python = str(venv / "bin" / "python")
    subprocess.run([python, "-m", module, "toy", str(folder)], check=True, timeout=120)
    return ModelRef(name="toy", path=str(folder))


async def open_cpu_worker(here: Site, name: str, address: str, core: int, venv: Path) -> None:
    slot = Device(device="slot-0", kind="cpu", memory_bytes=SLOT_BYTES, core=core)
    await here.open(name, devices=(slot,), address=address, engine_venv=venv)


@pytest.mark.timeout(600)
async def test_a_pipeline_over_two_nodes_starts_as_one_and_is_lost_as_one(tmp_path: Path) -> None:
    venv = Path(os.environ.get("FLEXPIPE_ENGINE_VENV", ROOT / ".venv-sglang"))
    model = toy(venv)
    async with site(tmp_path, "node-a", "node-b") as here:
        await open_cpu_worker(here, "node-a", "127.0.0.1", 0, venv)
        await open_cpu_worker(here, "node-b", "127.0.0.2", 1, venv)
        wanted = plan("a0", "b0")
        engine = EngineSettings(kind="sglang", form="cpu", max_total_tokens=2048)
        await here.start(wanted, fence(1), engine=engine, model=model, limit_s=START_LIMIT_S)
        await here.hear(EngineReady, count=2, limit_s=START_LIMIT_S)
        await here.warm(wanted, fence(2))
        (warmed,) = await here.hear(PlanWarmed)
        assert (warmed.errors, warmed.reason) == (0, None)
        await here.drain(wanted, fence(3))
        await here.hear(PlanDrained)

        rank = next(
            process
            for process in psutil.process_iter()
            if process.status() != psutil.STATUS_ZOMBIE
            and "--node-rank\x001" in "\x00".join(process.cmdline())
        )
        rank.send_signal(signal.SIGKILL)
        lost = await here.hear(EngineLost)
        assert lost[0].node == "node-b"
        await here.stop(wanted, fence(4))

        def both_stopped() -> bool:
            return {each.node for each in here.said(PlanStopped)} == {"node-a", "node-b"}

        await until(both_stopped, 30)
    assert not [
        process.pid
        for process in psutil.process_iter()
        if process.status() != psutil.STATUS_ZOMBIE and model.path in process.cmdline()
    ]
