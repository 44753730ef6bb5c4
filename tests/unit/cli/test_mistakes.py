"""Mistakes that need no running instance to be found out: one line each, and never a traceback."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from flexpipe.bus.connection import Bus
from flexpipe.cli import looking, replaying
from flexpipe.cli.app import main
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Entry
from flexpipe.model.deployment import Deployment


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fleet", "notice", "a1", "--in", "-1"), "seconds, from 0 to 86400"),
        (("fleet", "degrade", "a1", "--factor", "30"), "above 0, and at most 1"),
        (("fleet", "reserve", "a1", "--tenant", ""), "a name of 1 to 100 characters"),
        (("declined", "--last", "0"), "from 1 to 1000"),
        (("declined", "--minutes", "-1"), "the event log keeps 30 days"),
        (("downshift", "No_Such!"), "apply it first"),
        (("unpin", "toy", "--reason", "x" * 501), "at most 500 characters"),
        (("shift", "²"), "give the number of a shift"),
        (("apply", "-f", "/dev/zero"), "larger than"),
        (("replay", "/dev/null"), "first line of a run"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["flexpipe", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


class OneKey(Bus):
    """A bus with one deployment that another version wrote."""

    def __init__(self) -> None: ...

    async def read_all(self, bucket: str) -> tuple[Entry, ...]:
        return (Entry(bucket=bucket, key="toy", value='{"name": 3}', revision=1),)


async def test_a_value_that_cannot_be_read_is_named_by_its_key() -> None:
    with pytest.raises(InvalidInput, match=r"deployments/toy: .* is not accepted: name: "):
        await looking.read_values(OneKey(), "deployments", Deployment)


@pytest.mark.parametrize(
    ("service", "name", "file", "says"),
    [
        ("nobody", "a", "j.jsonl", "use one of .*executor, .*router, worker"),
        ("worker", "Node A", "j.jsonl", "'Node A' is not accepted"),
        ("worker", "node-a", "nowhere/j.jsonl", "No such file or directory"),
        ("worker", "node-z", "j.jsonl", "no worker of that name has a journal"),
    ],
)
async def test_a_journal_that_cannot_be_exported_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: str, name: str, file: str, says: str
) -> None:
    async def write(_: Bus, _service: str, _name: str, path: Path) -> int:
        return await asyncio.to_thread(path.write_text, "")

    monkeypatch.setattr(replaying, "write_journal_file", write)
    with pytest.raises(InvalidInput, match=says):
        await replaying.export_file(OneKey(), service, name, tmp_path / file)
