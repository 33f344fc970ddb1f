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
