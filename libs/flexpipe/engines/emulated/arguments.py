"""The command line of the emulated engine, and what it refuses before it starts.

Flag names are SGLang's where SGLang has one. Every refusal is one line.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flexpipe.engines.emulated.checkpoint import FIRST_WORD_ID
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.engines.emulated.table import Curve, PerformanceTable, layout_name, read_table

MAX_RANKS = 1024
MIN_TOTAL_TOKENS = 16


class Refused(Exception):
    """The engine cannot start so; ``str(error)`` is one line for the operator."""


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """A start of one engine process; ``dist_init_addr`` is (host, port), None on one node."""

    model_path: Path
    host: str
    port: int
    tp: int
    pp: int
    nnodes: int
    node_rank: int
    dist_init_addr: tuple[str, int] | None
    dist_timeout_s: float
    table: PerformanceTable
    context_tokens: int
    oracle: Oracle
    served_model_name: str
    time_scale: float
    stream_interval: int
    plan_id: str

    @property
    def layout(self) -> str:
        return layout_name(self.tp, self.pp)

    @property
    def ranks_here(self) -> int:
        """Ranks that this node carries: they are dealt out evenly, in order."""
        return self.tp * self.pp // self.nnodes

    @property
    def first_rank(self) -> int:
        return self.node_rank * self.ranks_here


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def parse_arguments(argv: Sequence[str]) -> EngineArguments:
    """Read and check a command line. Raises Refused with one line for anything that cannot run."""
    parser = _Parser(prog="python -m flexpipe.engines.emulated", allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="folder with config.json")
    add("--served-model-name", default=None)
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--tp-size", "--tensor-parallel-size", dest="tp", type=int, default=1)
    add("--pp-size", "--pipeline-parallel-size", dest="pp", type=int, default=1)
    add("--layer-partition", default=None, help="layers a stage, e.g. 20,12")
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--dist-init-addr", default=None, help="host:port of rank 0's rendezvous")
    add("--dist-timeout", dest="dist_timeout_s", type=float, default=60.0, help="real seconds")
    add("--performance", type=Path, default=None, help="TOML table; see table.py")
    add("--start-s", type=float, default=None, help="in place of the table's, like the next ones")
    add("--decode-curve-ms", default=None, help="see table.py")
    add("--decode-kv-token-ms", type=float, default=0.0, help="see table.py")
    add("--prefill-curve-ms", default=None, help="see table.py")
    add("--max-running", type=int, default=None)
    add("--weights-bytes", type=int, default=None)
    add("--kv-bytes-per-token", type=int, default=None)
    add("--time-scale", type=float, default=1.0, help="virtual seconds in one real second")
    add("--max-total-tokens", type=int, default=None, help="KV capacity; default: the table's")
    add("--context-length", type=int, default=None, help="default: the model's")
    add("--vocab-size", type=int, default=None, help="default: the model's")
    add("--stream-interval", type=int, default=1, help="tokens in a streamed chunk")
    add("--plan-id", default="", help="default: FLEXPIPE_PLAN_ID")
    given = parser.parse_args(argv)
    config = _read_config(given.model_path)
    _check_shape(given, config)
    try:
        table = _table(given)
        table.step_time(layout_name(given.tp, given.pp))
        oracle = _oracle(given, config, table)
    except ValueError as error:
        raise Refused(str(error)) from None
    return EngineArguments(
        model_path=given.model_path,
        host=given.host,
        port=given.port,
        tp=given.tp,
        pp=given.pp,
        nnodes=given.nnodes,
        node_rank=given.node_rank,
        dist_init_addr=_address(given),
        dist_timeout_s=given.dist_timeout_s,
        table=table,
        context_tokens=given.context_length or _whole(config, "max_position_embeddings"),
        oracle=oracle,
        served_model_name=given.served_model_name or str(given.model_path),
        time_scale=given.time_scale,
        stream_interval=given.stream_interval,
        plan_id=given.plan_id,
    )


def _table(given: argparse.Namespace) -> PerformanceTable:
    """The table, with what flags say in its place. Raises ValueError, one line."""
    capacity = given.max_total_tokens
    if capacity is not None and capacity < MIN_TOTAL_TOKENS:
        raise Refused(f"--max-total-tokens {capacity} must be at least {MIN_TOTAL_TOKENS}")
    changes: dict[str, object] = {
        "max_total_tokens": capacity,
        "start_s": given.start_s,
        "max_running": given.max_running,
        "weights_bytes": given.weights_bytes,
        "kv_bytes_per_token": given.kv_bytes_per_token,
    }
    if given.decode_curve_ms is not None:
        curve = Curve.read(given.decode_curve_ms)
        step = {"base": 0.0, "curve": curve, "kv_token_ms": given.decode_kv_token_ms}
        changes["decode_step_ms"] = {"default": step}
    if given.prefill_curve_ms is not None:
        changes["prefill_curve"] = Curve.read(given.prefill_curve_ms)
    told = {name: value for name, value in changes.items() if value is not None}
    return read_table(given.performance).changed(told)


def _read_config(model_path: Path) -> dict[str, object]:
    path = model_path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"no model at {model_path}: config.json is not there") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise Refused(f"{path} is not a JSON object")
    return config


def _whole(config: dict[str, object], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(f"config.json: {key} must be a positive whole number, got {value!r}")
    return value


def _check_shape(given: argparse.Namespace, config: dict[str, object]) -> None:
    tp, pp, nnodes = given.tp, given.pp, given.nnodes
    if min(tp, pp, nnodes) < 1 or tp * pp > MAX_RANKS:
        raise Refused(f"tp {tp}, pp {pp}, nnodes {nnodes} must be at least 1, ranks <= {MAX_RANKS}")
    if (tp * pp) % nnodes:
        raise Refused(f"{tp * pp} ranks do not divide over {nnodes} nodes")
    if not 0 <= given.node_rank < nnodes:
        raise Refused(f"node rank {given.node_rank} is outside {nnodes} nodes")
    if not 0 < given.port < 65536:
        raise Refused(f"port {given.port} is not a port")
    if given.context_length is not None and given.context_length < 8:
        raise Refused(f"--context-length {given.context_length} must be at least 8")
    if given.stream_interval < 1:
        raise Refused(f"--stream-interval {given.stream_interval} must be at least 1")
    if not 0 < given.time_scale < 1e6:
        raise Refused(f"time scale {given.time_scale} must be above 0 and below 1e6")
    if not 0 < given.dist_timeout_s <= 3600:
        raise Refused(f"dist timeout {given.dist_timeout_s} s must be above 0, at most 3600")
    heads, layers = _whole(config, "num_attention_heads"), _whole(config, "num_hidden_layers")
    if heads % tp:
        raise Refused(f"{heads} attention heads do not divide over tp {tp}")
    if layers < pp:
        raise Refused(f"{layers} layers cannot fill {pp} pipeline stages")
    if given.layer_partition is not None:
        _check_partition(given.layer_partition, layers, pp)


def _check_partition(text: str, layers: int, pp: int) -> None:
    try:
        stages = [int(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"layer partition {text!r} must read like 20,12") from None
    if len(stages) != pp or min(stages) < 1 or sum(stages) != layers:
        raise Refused(f"layer partition {text} does not split {layers} layers over pp {pp}")


def _oracle(
    given: argparse.Namespace, config: dict[str, object], table: PerformanceTable
) -> Oracle:
    vocab = given.vocab_size if given.vocab_size is not None else _whole(config, "vocab_size")
    if vocab < 16:
        raise Refused(f"a vocabulary of {vocab} is too small")
    eos = config.get("eos_token_id")
    # Below the first word lie specials, bytes and syllables; a foreign small vocabulary has no words.
    first = FIRST_WORD_ID if vocab > 2 * FIRST_WORD_ID else vocab // 2
    return Oracle(
        vocab_size=vocab,
        first_id=first,
        eos_id=eos if isinstance(eos, int) and 0 <= eos < vocab else 2,
        mean_output_tokens=table.mean_output_tokens,
    )


def _address(given: argparse.Namespace) -> tuple[str, int] | None:
    if given.nnodes == 1:
        return None
    if given.dist_init_addr is None:
        raise Refused(f"{given.nnodes} nodes need --dist-init-addr host:port")
    host, colon, port = given.dist_init_addr.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise Refused(f"--dist-init-addr must read host:port, got {given.dist_init_addr!r}")
    return host.strip("[]"), int(port)
