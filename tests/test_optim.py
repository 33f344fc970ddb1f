import pytest
import torch

from vaswani.optim import adam, learning_rate, set_rate


def test_papers_rates():
    assert learning_rate(4000, 512) == pytest.approx(6.988e-4, rel=1e-3)
    assert learning_rate(100_000, 512) == pytest.approx(1.398e-4, rel=1e-3)
    assert learning_rate(4000, 1024) == pytest.approx(4.941e-4, rel=1e-3)
    assert learning_rate(1, 512) == pytest.approx(512**-0.5 * 4000**-1.5)


def test_rises_linearly_then_falls_with_the_root():
    assert learning_rate(2000, 512) == pytest.approx(learning_rate(4000, 512) / 2)
    assert learning_rate(16_000, 512) == pytest.approx(learning_rate(4000, 512) / 2)
    assert max(range(1, 200), key=lambda step: learning_rate(step, 64, warmup_steps=77)) == 77
    assert learning_rate(10, 64, 20, factor=2.5) == pytest.approx(2.5 * learning_rate(10, 64, 20))


def test_no_step_zero():
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, 512)


def test_adam_is_the_papers():
    """Two steps by hand: m and v are running means, bias-corrected; no decay of the weights."""
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer, m, v, expected = adam([weight]), 0.0, 0.0, 1.0
    for step, gradient in enumerate([0.5, -0.25], start=1):
        set_rate(optimizer, 0.1)
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        expected -= 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)) ** 0.5 + 1e-9)
    assert weight.item() == pytest.approx(expected, rel=1e-12)
