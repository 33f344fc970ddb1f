"""What makes torch fast on CPU; none of it changes what is computed beyond the rounding of float32."""

import ctypes
import os
from pathlib import Path

import torch


def computes_bf16() -> bool:
    """Does the processor multiply bfloat16 by itself? (As told by Linux; elsewhere: no.)"""
    return "avx512_bf16" in _processor()


def computes_int8() -> bool:
    """Does the processor multiply 8-bit integers by itself, without overflow, and has torch products that use it?"""
    has_products = torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")
    processor = _processor()
    return has_products and any(name in processor for name in ("avx512_vnni", "avx_vnni"))


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    return told.read_text(encoding="utf-8", errors="replace") if told.exists() else ""


def keep_freed_memory() -> None:
    """Every step frees and asks for the same large tensors: let glibc keep them (fewer page faults, 1.2 times the speed
    on a small model)."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)
    except (OSError, AttributeError):  # another C library: nothing to tune
        return


def give_back_freed_memory() -> None:
    """What glibc keeps although it is free goes back to the system: for a process that rests beside others."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return


def bound_kernel_caches() -> None:
    """oneDNN writes machine code for every new shape of a product and keeps that of the last 1,024, twice, which is
    gigabytes where no two batches have the same shape. A step needs a few dozen: keep those (a small model trains in 1.3
    GB and not 5, and 6 % faster). Before the first product; what the user has set stays."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def large_pages() -> None:
    """Tensors of megabytes come on pages of 2 MB, where Linux gives them to those that ask (2 % more speed in translating
    with the base model). Before the first such tensor; what the user has set stays."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def fast_float32() -> bool:
    """Lets oneDNN multiply float32 matrices where it keeps float32's accuracy: twice as fast as MKL on AMD.

    torch calls this precision "medium", since a processor may then round to bfloat16 (those with AMX do). So it is tried
    on one product, and taken back unless that is right. Returns whether it was kept.
    """
    before = torch.get_float32_matmul_precision()
    x = torch.linspace(0.5, 1.5, 256 * 256).view(256, 256)
    exact = x.double() @ x.double()
    torch.set_float32_matmul_precision("medium")
    error = float(((x @ x - exact) / exact).abs().max())
    if error > 1e-5:  # float32 gives 1e-6, bfloat16 2e-3
        torch.set_float32_matmul_precision(before)
    return error <= 1e-5
