"""Reads a deployment file: TOML, validated, with the model's facts filled in from its own `config.json`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flexpipe.cli.models import ensure_emulated
from flexpipe.engines.emulated.adapter import ROOFLINE
from flexpipe.engines.emulated.table import PerformanceTable, read_table
from flexpipe.engines.registry import ENGINES
from flexpipe.gears.facts import dense_weights_bytes, facts_of
from flexpipe.gears.notation import check_notation
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import BOUNDS, Deployment, EngineSettings, ModelFacts, Policy
from flexpipe.model.names import in_words
from flexpipe.performance.memory import BYTES_OF_DTYPE

LARGEST_FILE_BYTES = 1 << 20
"""A deployment file is a page; anything larger is some other file."""


def read_deployment(path: Path) -> Deployment:
    """The deployment that a file declares, as it is stored: with the model's facts, times in real seconds.

    Raises InvalidInput: the file cannot be read, is not TOML, has a field that is unknown, missing or wrong, a policy
    outside its bounds, names a model folder that is not there, or an engine that nobody registered.
    """
    table = _read_table(path)
    try:
        declared = Deployment.model_validate(table)
    except ValidationError as error:
        raise _first_fault(path, error) from error
    _check_policy(path, declared.policy)
    _check_engine(declared.engine)
    folder = Path(declared.model.path)
    folder = (folder if folder.is_absolute() else Path.cwd() / folder).resolve()
    if declared.engine.form == "emulated":
        ensure_emulated(folder)
    figures = _figures(declared.engine)
    model = declared.model.model_copy(
        update={"path": str(folder), "facts": read_facts(folder, declared, figures)}
    )
    deployment = declared.model_copy(
        update={"model": model, "engine": _completed(declared.engine, figures)}
    )
    _check_baseline(path, deployment)
    return deployment.paced()


def _check_policy(path: Path, policy: Policy) -> None:
    """What the loop may be told, in the seconds that the file says."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(policy, name)
        if not low <= value <= high:
            raise _out_of_bounds(path, name, value)
    if policy.long_load_window_s < policy.load_window_s:
        raise InvalidInput(
            f"{path.name}: policy.long_load_window_s",
            policy.long_load_window_s,
            f"must not be shorter than load_window_s, {policy.load_window_s:g}",
        )


def _out_of_bounds(path: Path, name: str, value: object) -> InvalidInput:
    low, high = BOUNDS[name]
    shown = int(value) if isinstance(value, float) and value.is_integer() else value
    fix = f"must be between {low:g} and {high:g}"
    return InvalidInput(f"{path.name}: policy.{name}", shown, fix)


def _check_baseline(path: Path, deployment: Deployment) -> None:
    """Whether some fleet could make it."""
    try:
        check_notation(deployment.baseline, deployment)
    except InvalidInput as error:
        is_whole = error.value == deployment.baseline
        fix = error.fix if is_whole else f"{error.field} {error.value} {error.fix}"
        raise InvalidInput(f"{path.name}: baseline", deployment.baseline, fix) from error


def _check_engine(engine: EngineSettings) -> None:
    if engine.kind not in ENGINES:
        raise InvalidInput("engine.kind", engine.kind, "use one of " + ", ".join(sorted(ENGINES)))
    is_emulated = engine.kind == "emulated"
    if is_emulated != (engine.form == "emulated"):
        fix = (
            "an emulated engine has the form 'emulated'"
            if is_emulated
            else "a real engine runs on 'cpu' or 'cuda'"
        )
        raise InvalidInput("engine.form", engine.form, fix)
    if engine.performance is not None and not is_emulated:
        raise InvalidInput(
            "engine.performance", engine.performance, "only an emulated engine is told its figures"
        )
    if engine.time_scale != 1 and not is_emulated:
        raise InvalidInput(
            "engine.time_scale", engine.time_scale, "only emulated time can be scaled"
        )


def _figures(engine: EngineSettings) -> PerformanceTable | None:
    """The table of an emulated engine that has one. Raises InvalidInput where it cannot be read."""
    if engine.kind != "emulated" or engine.performance == ROOFLINE:
        return None
    if engine.performance is None:
        return PerformanceTable()
    path = Path(engine.performance)
    if not path.is_file():
        raise InvalidInput(
            "engine.performance",
            engine.performance,
            f"no such file; name a performance table, or {ROOFLINE!r}",
        )
    try:
        return read_table(path)
    except ValueError as error:
        raise InvalidInput("engine.performance", engine.performance, str(error)) from error


def _completed(engine: EngineSettings, figures: PerformanceTable | None) -> EngineSettings:
    """With what its table says where the file says nothing, and the table's path made absolute."""
    if figures is None:
        return engine
    changes: dict[str, object] = {}
    if engine.start_s is None:
        changes["start_s"] = figures.start_s
    if engine.performance is not None:
        changes["performance"] = str(Path(engine.performance).resolve())
    return engine.model_copy(update=changes)


def read_facts(folder: Path, declared: Deployment, figures: PerformanceTable | None) -> ModelFacts:
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
    return facts_of(config, weights_bytes=_weights_bytes(folder, config, declared, figures))


def _weights_bytes(
    folder: Path, config: dict[str, Any], declared: Deployment, figures: PerformanceTable | None
) -> int:
    """Weights as served: the stored files, scaled from the stored type to the served one.

    An emulated model needs none: its table says, or its shapes do.
    """
    stored = sum(file.stat().st_size for file in sorted(folder.glob("*.safetensors")))
    if stored:
        kept_as = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
        factor = BYTES_OF_DTYPE[declared.engine.dtype] / BYTES_OF_DTYPE.get(str(kept_as), 2)
        return int(stored * factor)
    if figures is not None and "weights_bytes" in figures.model_fields_set:
        return figures.weights_bytes
    if declared.engine.form == "emulated":
        return dense_weights_bytes(config, declared.engine.dtype)
    raise InvalidInput("model.path", declared.model.path, f"no *.safetensors in {folder}")


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
    if field.partition("policy.")[2] in BOUNDS:
        return _out_of_bounds(path, str(fault["loc"][-1]), fault["input"])
    if fault["type"] == "string_pattern_mismatch":
        fix = in_words(fault["ctx"]["pattern"])
        return InvalidInput(f"{path.name}: {field}", fault["input"], fix)
    return InvalidInput(f"{path.name}: {field}", fault["input"], fault["msg"])
