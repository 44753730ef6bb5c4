"""What ranks of a group spend talking: latency + bytes / bandwidth, by path and width.

All-reduce figures are fits to public measurements (aiconfigurator's all-reduce tables in captured graphs, 2, 4 and
8 GPUs, 8 KiB to 512 MiB): H100 NVSwitch moves 167, 118 and 134 GB/s of payload, A100 NVLink 100, 74 and 65. For
PCIe the latency is that of the L40S table; its bandwidth is what TensorRT-LLM's public L40S rows (Llama-3.1-70B,
prompts of 2,048) need to be possible at all, since the machine of the table reached a tenth of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Talk(NamedTuple):
    """Cost of one all-reduce: `latency_us` whatever its size, and its payload's bandwidth as a share of one link."""

    latency_us: float
    share: float


_ALL_REDUCE: Final[dict[str, tuple[tuple[int, Talk], ...]]] = {
    # path: (widest group, cost), ascending
    "nvswitch": ((2, Talk(4.4, 0.37)), (4, Talk(5.0, 0.26)), (8, Talk(6.0, 0.30)), (64, Talk(9.0, 0.30))),
    "nvlink": ((2, Talk(5.2, 0.33)), (4, Talk(6.3, 0.25)), (8, Talk(7.5, 0.22)), (64, Talk(12.0, 0.18))),
    "pcie": ((2, Talk(6.2, 0.42)), (4, Talk(15.0, 0.34)), (8, Talk(27.0, 0.27)), (64, Talk(60.0, 0.15))),
    "host": ((2, Talk(100.0, 0.5)), (4, Talk(200.0, 0.25)), (64, Talk(400.0, 0.12))),
    "network": ((2, Talk(30.0, 0.5)), (4, Talk(60.0, 0.33)), (8, Talk(120.0, 0.28)), (64, Talk(300.0, 0.25))),
}  # fmt: skip

NOMINAL_GB_S: Final = {
    "none": 1.0,
    "nvswitch": 450.0,
    "nvlink": 300.0,
    "pcie": 32.0,
    "host": 5.0,
    "network": 25.0,
}
"""One direction between two ranks, where a plan does not say: H100 NVSwitch, A100 NVLink, PCIe gen 4, a core's
share of host memory, one 200G adapter."""

SEND_LATENCY_US: Final = {
    "none": 0.0,
    "nvswitch": 10.0,
    "nvlink": 10.0,
    "pcie": 15.0,
    "host": 200.0,
    "network": 40.0,
}
"""One send between two stages, with the synchronisation around it. `network`: RDMA between two nodes."""

SEND_SHARE: Final = {
    "none": 1.0,
    "nvswitch": 0.77,
    "nvlink": 0.76,
    "pcie": 0.7,
    "host": 0.5,
    "network": 0.7,
}
"""Of the nominal bandwidth that a send reaches: 348 of 450 GB/s on H100, 228 of 300 on A100, 35.9 of 50 between DGX
H100 (Vidur's public send_recv tables)."""


def all_reduce_ms(path: str, gb_s: float, width: int) -> tuple[float, float]:
    """(latency in ms, ms a byte of payload) of one all-reduce over `width` ranks; `gb_s` 0 takes the path's nominal."""
    if width == 1 or path == "none":
        return 0.0, 0.0
    talk = next(talk for widest, talk in _ALL_REDUCE[path] if width <= widest)
    return talk.latency_us / 1e3, 1e3 / (talk.share * (gb_s or NOMINAL_GB_S[path]) * 1e9)


def send_ms(path: str, gb_s: float) -> tuple[float, float]:
    """(latency in ms, ms a byte) of handing activations to the next stage."""
    return SEND_LATENCY_US[path] / 1e3, 1e3 / (
        SEND_SHARE[path] * (gb_s or NOMINAL_GB_S[path]) * 1e9
    )
