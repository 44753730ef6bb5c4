"""A stand-in for SGLang's CPU kernel wheel, which no package registry carries.

The adapter puts this folder's parent on PYTHONPATH in the CPU form only. SGLang imports names
ending in ``_cpu`` from here at import time; with the ``torch_native`` attention backend only one of
them runs. It registers no torch ops on purpose: SGLang takes registered ops as proof of AMX kernels.
"""

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 - SGLang calls it by position
    req_pool_indices: "torch.Tensor",
    req_to_token: "torch.Tensor",
    start_offset: "torch.Tensor",
    end_offset: "torch.Tensor",
    out_cache_loc: "torch.Tensor",
    pool_len: int,
) -> None:
    """Write each request's new KV slots into its row of ``req_to_token``.

    Row ``req_pool_indices[i]`` gets, at columns ``start_offset[i]:end_offset[i]``, the next
    ``end - start`` values of ``out_cache_loc``: what SGLang's Triton kernel of the same name does.
    """
    del pool_len
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        count = end - start
        req_to_token[row, start:end] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def __getattr__(name: str) -> "Callable[..., NoReturn]":
    if not name.endswith("_cpu"):
        raise AttributeError(f"module 'sgl_kernel' (CPU stand-in) has no attribute {name!r}")

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not part of the CPU stand-in")

    missing.__name__ = name
    return missing
