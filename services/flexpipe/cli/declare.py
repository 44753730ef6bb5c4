"""Reads a deployment file: TOML, validated, with the model's facts filled in from its own `config.json`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flexpipe.engines.registry import ENGINES
from flexpipe.gears.facts import facts_of
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.performance.memory import BYTES_OF_DTYPE

LARGEST_FILE_BYTES = 1 << 20
"""A deployment file is a page; anything larger is some other file."""


def read_deployment(path: Path) -> Deployment:
    """The deployment that a file declares, ready to be stored.

    Raises InvalidInput: the file cannot be read, is not TOML, has a field that is unknown, missing or wrong, names
    a model folder that is not there, or an engine that nobody registered.
    """
    table = _read_table(path)
    try:
        declared = Deployment.model_validate(table)
    except ValidationError as error:
        raise _first_fault(path, error) from error
    if declared.engine.kind not in ENGINES:
        raise InvalidInput(
            "engine.kind", declared.engine.kind, "use one of " + ", ".join(sorted(ENGINES))
        )
    is_emulated = declared.engine.kind == "emulated"
    if is_emulated != (declared.engine.form == "emulated"):
        fix = (
            "an emulated engine has the form 'emulated'"
            if is_emulated
            else "a real engine runs on 'cpu' or 'cuda'"
        )
        raise InvalidInput("engine.form", declared.engine.form, fix)
    folder = Path(declared.model.path)
    folder = (folder if folder.is_absolute() else Path.cwd() / folder).resolve()
    facts = read_facts(folder, declared)
    model = declared.model.model_copy(update={"path": str(folder), "facts": facts})
    engine = declared.engine
    if engine.performance is not None:
        table_path = Path(engine.performance).resolve()
        if not table_path.is_file():
            raise InvalidInput(
                "engine.performance", engine.performance, "no such file; name a performance table"
            )
        engine = engine.model_copy(update={"performance": str(table_path)})
    return declared.model_copy(update={"model": model, "engine": engine})


def read_facts(folder: Path, declared: Deployment) -> ModelFacts:
    """Facts of the model in `folder` as this deployment serves it. Raises InvalidInput."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise InvalidInput(
            "model.path",
            declared.model.path,
            f"no config.json in {folder}; name a Hugging Face model folder",
        )
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput("config.json", str(config_path), f"{error.strerror}") from error
    except ValueError as error:
        raise InvalidInput("config.json", str(config_path), f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidInput("config.json", str(config_path), "must hold one JSON object")
    return facts_of(config, weights_bytes=_weights_bytes(folder, config, declared))


def _weights_bytes(folder: Path, config: dict[str, Any], declared: Deployment) -> int:
    """Weights as served: the stored files, scaled from the stored type to the served one."""
    stored = sum(file.stat().st_size for file in sorted(folder.glob("*.safetensors")))
    if stored:
        kept_as = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
        factor = BYTES_OF_DTYPE[declared.engine.dtype] / BYTES_OF_DTYPE.get(str(kept_as), 2)
        return int(stored * factor)
    if declared.engine.performance is not None:
        table = _read_table(Path(declared.engine.performance))
        weights = table.get("weights_bytes")
        if isinstance(weights, int) and weights > 0:
            return weights
    raise InvalidInput(
        "model.path",
        declared.model.path,
        f"no *.safetensors in {folder}, and no engine.performance table with weights_bytes",
    )


def _read_table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE_BYTES + 1)  # a device has no size and no end
        if len(text) > LARGEST_FILE_BYTES:
            raise InvalidInput(
                "file", str(path), f"larger than {LARGEST_FILE_BYTES} bytes; name a TOML file"
            )
        return tomllib.loads(text.decode())
    except OSError as error:
        raise InvalidInput(
            "file", str(path), f"{error.strerror}; name a readable TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("file", str(path), f"not TOML: {error}") from error


def _first_fault(path: Path, error: ValidationError) -> InvalidInput:
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return InvalidInput(
            f"{path.name}: {field}", fault["input"], "unknown field; remove it or correct its name"
        )
    if fault["type"] == "missing":
        return InvalidInput(f"{path.name}: {field}", None, "this field is required")
    return InvalidInput(f"{path.name}: {field}", fault["input"], fault["msg"])
