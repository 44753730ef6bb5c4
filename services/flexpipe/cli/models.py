"""Model folders of the examples, made once where they are missing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from flexpipe.engines.emulated.checkpoint import SHAPES, write_checkpoint
from flexpipe.kernel.errors import Unavailable

CONVERT_LIMIT_S = 600.0
"""Dequantising SmolLM2 takes half a minute; a loaded machine several."""
FOLDERS = {
    "smollm2": Path("var/models/smollm2-135m-instruct"),
    "toy": Path("var/models/toy-llama"),
    "emulated": Path("var/models/emulated-toy"),
    "llama-7b-emulated": Path("var/models/llama-7b-emulated"),
    "llama-70b-emulated": Path("var/models/llama-70b-emulated"),
}
EMULATED_SHAPES = {"emulated": "toy", "llama-7b-emulated": "7b", "llama-70b-emulated": "70b"}
"""Folders without weights, and the shape that each is written in."""


def engine_python() -> Path:
    """The interpreter of the SGLang environment. Raises Unavailable where it was not made."""
    python = Path(os.environ.get("FLEXPIPE_ENGINE_VENV", ".venv-sglang")) / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"no SGLang environment at {python.parent.parent}: run `make engine`")
    return python.absolute()


def ensure_emulated(folder: Path) -> None:
    """Write the folder where it is one of the emulated examples' and has no config.json: it takes no download."""
    for name, shape in EMULATED_SHAPES.items():
        if folder == FOLDERS[name].absolute() and not (folder / "config.json").exists():
            write_checkpoint(folder, SHAPES[shape])


async def ensure_model(name: str) -> Path:
    """The folder of one example model (a key of `FOLDERS`), made first where it is missing.

    Raises Unavailable with the converter's last words.
    """
    folder = FOLDERS[name].absolute()
    if name in EMULATED_SHAPES:
        write_checkpoint(folder, SHAPES[EMULATED_SHAPES[name]])
        return folder
    process = await asyncio.create_subprocess_exec(
        *(str(engine_python()), "-m", "flexpipe.engines.sglang.checkpoints", name, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CONVERT_LIMIT_S)
    except TimeoutError as error:
        raise Unavailable(f"model {name} was not converted within {CONVERT_LIMIT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"model {name} cannot be made: {' '.join(last)}")
    return folder
