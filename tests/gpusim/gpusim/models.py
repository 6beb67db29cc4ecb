"""The card models that a node description can name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One product, as NVML and the CUDA driver describe it.

    Figures are those of NVIDIA's data sheets; `memory_mib` is what `nvidia-smi` prints as total.
    """

    name: str
    memory_mib: int
    reserved_mib: int
    sm_count: int
    fp32_tflops: float
    compute: tuple[int, int]
    threads_per_sm: int
    shared_per_sm_kib: int
    l2_mib: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_width: int
    power_w: int
    pci_device_id: int
    architecture: int
    brand: int
    nvlinks: int = 0


MODELS: Final[dict[str, Model]] = {
    "NVIDIA-T4": Model(
        name="Tesla T4",
        memory_mib=15360,
        reserved_mib=425,
        sm_count=40,
        fp32_tflops=8.1,
        compute=(7, 5),
        threads_per_sm=1024,
        shared_per_sm_kib=64,
        l2_mib=4,
        clock_mhz=1590,
        memory_clock_mhz=5001,
        bus_width=256,
        power_w=70,
        pci_device_id=0x1EB810DE,
        architecture=6,
        brand=2,
    ),
    "NVIDIA-A10": Model(
        name="NVIDIA A10",
        memory_mib=23028,
        reserved_mib=512,
        sm_count=72,
        fp32_tflops=31.2,
        compute=(8, 6),
        threads_per_sm=1536,
        shared_per_sm_kib=100,
        l2_mib=6,
        clock_mhz=1695,
        memory_clock_mhz=6251,
        bus_width=384,
        power_w=150,
        pci_device_id=0x223610DE,
        architecture=7,
        brand=14,
    ),
    "NVIDIA-A100-40GB": Model(
        name="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        reserved_mib=512,
        sm_count=108,
        fp32_tflops=19.5,
        compute=(8, 0),
        threads_per_sm=2048,
        shared_per_sm_kib=164,
        l2_mib=40,
        clock_mhz=1410,
        memory_clock_mhz=1215,
        bus_width=5120,
        power_w=400,
        pci_device_id=0x20B010DE,
        architecture=7,
        brand=14,
        nvlinks=12,
    ),
    "NVIDIA-H100-80GB": Model(
        name="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        reserved_mib=512,
        sm_count=132,
        fp32_tflops=66.9,
        compute=(9, 0),
        threads_per_sm=2048,
        shared_per_sm_kib=228,
        l2_mib=50,
        clock_mhz=1980,
        memory_clock_mhz=2619,
        bus_width=5120,
        power_w=700,
        pci_device_id=0x233010DE,
        architecture=9,
        brand=14,
        nvlinks=18,
    ),
    "NVIDIA-H200-141GB": Model(
        name="NVIDIA H200",
        memory_mib=143771,
        reserved_mib=600,
        sm_count=132,
        fp32_tflops=66.9,
        compute=(9, 0),
        threads_per_sm=2048,
        shared_per_sm_kib=228,
        l2_mib=60,
        clock_mhz=1980,
        memory_clock_mhz=3201,
        bus_width=6144,
        power_w=700,
        pci_device_id=0x233510DE,
        architecture=9,
        brand=14,
        nvlinks=18,
    ),
}
