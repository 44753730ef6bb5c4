"""`flexpipe` as a user of a staged instance types it."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from e2e.stage import Stage


class Shell:
    """Runs `flexpipe` as a user of this instance does."""

    def __init__(self, stage: Stage) -> None:
        self._env = {
            **os.environ,
            "FLEXPIPE_HOME": str(stage.instance.layout.folder),
            "PYTHONUNBUFFERED": "1",
        }

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flexpipe.cli", *words),
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *words: str) -> tuple[int, str, str]:
        process = await self.start(*words)
        out, err = await asyncio.wait_for(process.communicate(), 60.0)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def document(self, *words: str) -> dict[str, object]:
        code, out, err = await self.run(*words, "--json")
        assert code == 0, (words, out, err)
        (line,) = out.splitlines()
        document = json.loads(
            line, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON")
        )
        assert isinstance(document, dict)
        return document
