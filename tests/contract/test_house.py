"""Rules of the house that a machine can hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
TRACKED = subprocess.run(
    ["git", "ls-files"], capture_output=True, text=True, check=True
).stdout.split("\n")
TEXTS = [
    path
    for path in map(Path, TRACKED)
    if path.suffix in {".py", ".md", ".toml", ".sh", ".txt", ".yaml", ".json"}
]


@pytest.mark.parametrize("root", ["libs", "services"])
def test_the_two_import_roots_share_one_namespace_package(root: str) -> None:
    assert not (Path(root) / "flexpipe" / "__init__.py").exists()
    for package in sorted((Path(root) / "flexpipe").iterdir()):
        if package.is_dir() and package.name != "__pycache__":
            assert (package / "__init__.py").exists(), f"{package} has no docstring of its own"


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "-q", "."),
        ("ruff", "format", "--check", "-q", "."),
        ("lint-imports",),
        ("mypy", "libs", "services"),
    ],
    ids=lambda command: command[0] + "-" + command[1] if len(command) > 1 else command[0],
)
def test_the_linters_have_nothing_to_say(command: tuple[str, ...]) -> None:
    run = subprocess.run(
        [str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


def test_files_fit_a_reader() -> None:
    long = {
        str(path): lines
        for path in TEXTS
        if path.suffix == ".py" and path.parts[0] in ("libs", "services") and path.exists()
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long


def test_no_module_is_without_its_sentence() -> None:
    for path in TEXTS:
        if path.suffix == ".py" and path.parts[0] in ("libs", "services") and path.exists():
            text = path.read_text()
            assert not text or text.lstrip().startswith(('"""', "#!")), f"{path}: say what it is"


def test_nothing_of_one_machine_is_in_the_repository() -> None:
    # Written apart so that this very file does not hold what it forbids.
    hosts = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "registry.npm" + "js.org",
        "deb." + "debian.org",
    ]
    pattern = re.compile("|".join(map(re.escape, [*hosts, "/ro" + "ot/", "/ho" + "me/"])))
    found = [
        str(path)
        for path in TEXTS
        if path.exists() and pattern.search(path.read_text(errors="replace"))
    ]
    assert not found
