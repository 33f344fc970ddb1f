import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vaswani.cpu import computes_bf16, fast_float32, keep_freed_memory


def test_float32_products_stay_float32():
    before = torch.get_float32_matmul_precision()
    try:
        kept = fast_float32()
        assert torch.get_float32_matmul_precision() == ("medium" if kept else before)
        torch.manual_seed(0)
        x, y = torch.randn(300, 400), torch.randn(400, 200)
        torch.testing.assert_close(x @ y, (x.double() @ y.double()).float(), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_processor_that_rounds_is_left_alone(monkeypatch):
    """As one with AMX: its "medium" products are those of bfloat16."""
    before = torch.get_float32_matmul_precision()
    product = torch.Tensor.__matmul__
    rounded = lambda x, y: product(x.bfloat16(), y.bfloat16()).float() if x.dtype == torch.float32 else product(x, y)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not fast_float32()
    assert torch.get_float32_matmul_precision() == before


def test_the_rest_runs_anywhere():
    assert computes_bf16() in (True, False)
    keep_freed_memory()


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="no large pages here")
def test_large_tensors_come_on_large_pages():
    program = """
import os, re
from vaswani.cpu import keep_freed_memory, large_pages
keep_freed_memory()
large_pages()
import torch
x = torch.ones(2**24)
print(re.search(r"AnonHugePages:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])
"""
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    for setting, expected in ({}, True), ({"THP_MEM_ALLOC_ENABLE": "0"}, False):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment | setting, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        always = "[always]" in LARGE_PAGES.read_text()
        assert (int(done.stdout) > 2**14) == (expected or always)  # of 64 MiB, in KiB


@pytest.mark.skipif(not computes_bf16(), reason="oneDNN has no bfloat16 products here")
def test_new_shapes_do_not_fill_the_memory():
    """Each product of another shape is 0.7 MB of machine code: 300 of them are 200 MB where all are kept."""
    program = """
import os, re, torch
from vaswani.cpu import bound_kernel_caches
os.environ["LRU_CACHE_CAPACITY"] = "70"
bound_kernel_caches()
assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("70", "64")
torch.set_num_threads(1)
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
x, w = torch.randn(1000, 128, dtype=torch.bfloat16), torch.randn(128, 256, dtype=torch.bfloat16)
for n in range(1, 101):
    x[:n] @ w
before = resident()
for n in range(101, 401):
    x[:n] @ w
print(resident() - before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60
