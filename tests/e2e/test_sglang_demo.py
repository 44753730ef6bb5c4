"""`make demo` on real SGLang: SmolLM2 from one device to a pipeline of two and back, under running streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.story import assert_decisions_replay, run_demo

pytestmark = [pytest.mark.processes, pytest.mark.sglang, pytest.mark.timeout(900)]

DEMO_LIMIT_S = 840.0
"""Three engine starts and a few thousand tokens: four minutes on two idle cores."""


def test_the_demo_moves_real_streams_and_every_decision_replays(tmp_path: Path) -> None:
    account = run_demo("sglang", tmp_path, DEMO_LIMIT_S)
    print(json.dumps(account))  # for `pytest -rP`
    # Where batching flipped a near-tie, the demo asked an unshifted engine token by token, and passed.
    assert account["identical"] + account["teacher_forced"] == account["streams"]
    assert_decisions_replay(tmp_path)
