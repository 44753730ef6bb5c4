"""SGLang's official plugin hook (entry-point group ``sglang.srt.plugins``), called once a process.

In the server process it mounts FlexPipe's gate in front of SGLang's HTTP app and has foreign token
ids refused; in the CPU form it puts right what stock SGLang 0.5.23 assumes about GPUs. SGLang logs
a plugin's exception and goes on, which for the gate would mean serving strays: so whatever fails
here ends the process.

Nothing here is imported by a control service. What it touches inside SGLang is pinned by
``requirements/engine-nodeps.txt`` and held by ``tests/contract/test_sglang_arguments.py``.
"""

# ruff: noqa: PLC0415 - SGLang is imported only in the processes that use the piece

import multiprocessing
import os
import sys
from typing import Any, Final

PLAN_VARIABLE: Final = "FLEXPIPE_PLAN_ID"
"""Set (even empty) on engines that FlexPipe launches. Without it SGLang stays as released."""


def activate() -> None:
    """Entry point. Ends the process with a one-line reason when a piece cannot be put in place."""
    try:
        if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
            _register_cpu_fixes(sys.argv)
        if PLAN_VARIABLE in os.environ and multiprocessing.parent_process() is None:
            _mount_gate()
            _refuse_foreign_tokens()
    except Exception as error:
        raise SystemExit(
            f"flexpipe plugin: cannot prepare SGLang: {type(error).__name__}: {error}"
        ) from error


def _mount_gate() -> None:
    """Wrap SGLang's HTTP app; it is built, not yet served, when plugins run.

    On node ranks above 0 the app is never served, so there the mount does nothing.
    """
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_manager import ServerStatus

    from flexpipe.engines.gate import Gate, GateMiddleware

    def starting() -> bool:
        # Until the warm-up request has passed, SGLang's own /ready says 503 as well.
        state = http_server._global_state
        return state is None or state.tokenizer_manager.server_status == ServerStatus.Starting

    http_server.app.add_middleware(GateMiddleware, gate=Gate.from_env(), starting=starting)


def _refuse_foreign_tokens() -> None:
    """Answer 400 to token ids outside the vocabulary: stock SGLang 0.5.23 dies of them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def check(manager: Any, request: Any, input_ids: Any) -> None:
        vocabulary = manager.model_config.vocab_size
        flat = input_ids if isinstance(input_ids, list) else []
        if flat and not (min(flat) >= 0 and max(flat) < vocabulary):
            raise ValueError(f"input_ids must lie in 0..{vocabulary - 1}, the model's vocabulary")

    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        check,
        HookType.BEFORE,
    )


def _register_cpu_fixes(arguments: list[str]) -> None:
    """Replace the GPU-only pieces that this launch will reach, by its flags.

    Spawned processes see the launcher's ``sys.argv``, and only schedulers and the launcher hold
    the modules concerned, so the detokenizer is spared their imports.
    """
    if "sglang.srt.managers.scheduler" not in sys.modules and multiprocessing.parent_process():
        return
    if "--enable-hierarchical-cache" in arguments:
        _fix_host_kv_pool()
    if "--disaggregation-mode" in arguments:
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

        # Host tensor indices wait on a torch.cuda.Event, which a CPU build does not have.
        MooncakeKVSender.supports_host_tensor_indices = False


def _fix_host_kv_pool() -> None:
    """Without pinned memory and sgl_kernel's copy, HiCache dies when it is built."""
    from sglang.srt.mem_cache.pool_host import mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.common._cuda_host_register",
        lambda *args, **kwargs: None,
        HookType.REPLACE,
    )

    def unpinned(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs | {"pin_memory": False}

    HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__", unpinned, HookType.BEFORE
    )
    # Not a hook: on CPU the name is never bound in the module, so there is nothing to replace.
    mha.transfer_kv_direct = transfer_kv_direct


def transfer_kv_direct(
    *,
    src_layers: list[Any],
    dst_layers: list[Any],
    src_indices: Any,
    dst_indices: Any,
    page_size: int,
) -> None:
    """Copy token slots from each source layer to its target, as sgl_kernel's op of that name.

    ``src_layers`` and ``dst_layers`` are tensors indexed by token slot first; the indices are
    whole pages of slots, in order, so ``page_size`` needs no part in a plain copy.
    """
    del page_size
    source, target = src_indices.long(), dst_indices.long()
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[target] = src[source]
