"""The table of devices: memory, bandwidths, peak arithmetic, and what share of them real kernels achieve.

Nominal figures are vendors' (per direction for links), collected from the public system files of aiconfigurator-
core 0.12.0 (Apache-2.0), LLM-Viewer's `hardware_params.py` and the vendors' data sheets. Achieved fractions were
measured: the medians of large bf16 GEMMs, of matrix-vector products and of decode attention over more than 1 GB of
KV, from aiconfigurator's public kernel measurements on A100 SXM, H100 SXM, L40S and B200; a device without
measurements takes those of its generation. Memory is what the driver reports (a vendor's GB is a GiB; GDDR cards
give up 1/16 to ECC).

`cpu` is one core of a small shared machine running float32: rough, enough to order plans, never to promise anything.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen

GIB: Final = 1 << 30
Fraction = Annotated[float, Field(gt=0, le=1)]


class Achieved(Frozen):
    """What share of the nominal figures real kernels reach."""

    gemm: Fraction  # of peak arithmetic, large matrix products
    weights: Fraction  # of memory bandwidth, reading weights in a decode step
    kv: Fraction  # of memory bandwidth, reading KV in decode attention


class DeviceFacts(Frozen):
    """One device model."""

    model: str
    memory_bytes: Annotated[int, Field(gt=0)]
    hbm_gb_s: Annotated[float, Field(gt=0)]
    tflops: Annotated[float, Field(gt=0)]  # dense, 16 bit; float32 on `cpu`
    float32_share: Fraction  # of `tflops` in float32 (TF32 on GPUs)
    link_gb_s: Annotated[float, Field(ge=0)]  # NVLink, one direction; 0 where there is none
    pcie_gb_s: Annotated[float, Field(gt=0)]  # one direction
    achieved: Achieved
    step_overhead_ms: Annotated[float, Field(ge=0)]  # of every step, besides reading and computing

    def flops(self, dtype: str) -> float:
        """Achieved operations a second in large matrix products."""
        share = self.float32_share if dtype == "float32" else 1.0
        return self.tflops * 1e12 * share * self.achieved.gemm

    @property
    def weights_bytes_per_s(self) -> float:
        """Achieved, reading weights."""
        return self.hbm_gb_s * 1e9 * self.achieved.weights

    @property
    def kv_bytes_per_s(self) -> float:
        """Achieved, reading KV."""
        return self.hbm_gb_s * 1e9 * self.achieved.kv


STEP_OVERHEAD_MS: Final = 1.5
"""Scheduling, sampling and launching of one step on a GPU with captured graphs: what is left of measured steps of
small models at batch one after their reads."""
CPU_STEP_OVERHEAD_MS: Final = 7.0
"""The same without graphs, on a core that the scheduler shares: a toy of 0.7 M parameters gives 131 tokens/s there."""

AMPERE: Final = Achieved(gemm=0.91, weights=0.73, kv=0.74)
HOPPER: Final = Achieved(gemm=0.80, weights=0.88, kv=0.93)
ADA: Final = Achieved(gemm=0.61, weights=0.85, kv=0.86)
BLACKWELL: Final = Achieved(gemm=0.69, weights=0.80, kv=0.92)


def _gpu(  # noqa: PLR0917  a row of the table
    model: str,
    gib: float,
    hbm_gb_s: float,
    tflops: float,
    links: tuple[float, float],
    achieved: Achieved,
) -> DeviceFacts:
    return DeviceFacts(
        model=model,
        memory_bytes=int(gib * GIB),
        hbm_gb_s=hbm_gb_s,
        tflops=tflops,
        float32_share=0.5,
        link_gb_s=links[0],
        pcie_gb_s=links[1],
        achieved=achieved,
        step_overhead_ms=STEP_OVERHEAD_MS,
    )


_ALL: Final = (
    # model, memory GiB, HBM GB/s, dense 16-bit TFLOP/s, (NVLink, PCIe) GB/s one direction, generation
    _gpu("V100-SXM2-32GB", 32, 900, 125, (150, 16), AMPERE),
    _gpu("V100-PCIe-32GB", 32, 900, 112, (0, 16), AMPERE),
    _gpu("A100-SXM4-40GB", 40, 1555, 312, (300, 32), AMPERE),
    _gpu("A100-SXM4-80GB", 80, 2039, 312, (300, 32), AMPERE),
    _gpu("A100-PCIe-80GB", 80, 1935, 312, (0, 32), AMPERE),
    _gpu("A30", 24, 933, 165, (0, 32), AMPERE),
    _gpu("A10", 22.5, 600, 125, (0, 32), AMPERE),
    _gpu("A40", 45, 696, 149.7, (56.25, 32), AMPERE),
    _gpu("RTX-A6000", 45, 768, 154.8, (56.25, 32), AMPERE),
    _gpu("L4", 22.5, 300, 121, (0, 32), ADA),
    _gpu("L40S", 45, 864, 362.05, (0, 32), ADA),
    _gpu("RTX4090", 24, 1008, 165.2, (0, 32), ADA),
    _gpu("H20-SXM5-96GB", 96, 4000, 148, (450, 64), HOPPER),
    _gpu("H100-SXM5-80GB", 80, 3350, 989, (450, 64), HOPPER),
    _gpu("H100-PCIe-80GB", 80, 2000, 756.5, (0, 64), HOPPER),
    _gpu("H800-SXM5-80GB", 80, 3350, 989, (200, 64), HOPPER),
    _gpu("H200-SXM5-141GB", 141, 4800, 989, (450, 64), HOPPER),
    _gpu("B200-SXM-180GB", 180, 7700, 2250, (900, 128), BLACKWELL),
    _gpu("RTX-PRO-6000-BSE", 96, 1792, 467.8, (0, 64), BLACKWELL),
    # One of two cores, as SGLang ran on them: SmolLM2-135M in float32 reads prompts at 300 tokens/s and gives 11.8
    # tokens/s alone.
    DeviceFacts(
        model="cpu",
        memory_bytes=4 * GIB,
        hbm_gb_s=14,
        tflops=0.12,
        float32_share=1.0,
        link_gb_s=0,
        pcie_gb_s=5,
        achieved=Achieved(gemm=0.8, weights=0.8, kv=0.5),
        step_overhead_ms=CPU_STEP_OVERHEAD_MS,
    ),
)

DEVICES: Final = MappingProxyType({facts.model: facts for facts in _ALL})
"""Every device model known, by its name."""


def device_facts(model: str) -> DeviceFacts:
    """The facts of one device model. Raises InvalidInput naming those that are known."""
    found = DEVICES.get(model)
    if found is None:
        raise InvalidInput("device model", model, "use one of " + ", ".join(DEVICES))
    return found
