"""Dropout with cheap masks: the same distribution as torch's, from torch's generator."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from vaswani.dropout_vaswani import VaswaniDropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_probability_scale_and_independence(p, dtype):
    torch.manual_seed(0)
    n = 2_000_000
    out = VaswaniDropout(p)(torch.ones(n, dtype=dtype))
    assert out.dtype == dtype
    zero = out.eq(0)
    share, deviation = float(zero.double().mean()), (p * (1 - p) / n) ** 0.5
    assert share == pytest.approx(p, abs=4 * deviation + 2e-5)
    values = out[~zero].unique()
    assert len(values) == 1 and float(values[0]) == pytest.approx(
        1 / (1 - p), rel=4e-3 if dtype == torch.bfloat16 else 2e-4
    )
    for distance in (1, 2, 3, 4, 8, 128):  # four come from one random number
        both = float((zero[distance:] & zero[:-distance]).double().mean())
        assert both == pytest.approx(share**2, abs=5 * deviation)


def test_the_residual_is_added_in_its_own_type_and_gradients_follow_the_mask():
    torch.manual_seed(0)
    x = torch.randn(5, 33, dtype=torch.bfloat16, requires_grad=True)
    residual = torch.randn(5, 33, requires_grad=True)
    dropout = VaswaniDropout(0.5)
    state = torch.get_rng_state()
    out = dropout(x, residual=residual)
    torch.set_rng_state(state)
    alone = dropout(x.float())
    torch.testing.assert_close(out, residual + alone)
    out.sum().backward()
    kept = alone.ne(0)
    torch.testing.assert_close(x.grad, kept.bfloat16() * 2)
    torch.testing.assert_close(residual.grad, torch.ones_like(residual))


def test_the_same_generator_gives_the_same_mask_and_the_next_another():
    x = torch.ones(4, 1000)
    dropout = VaswaniDropout(0.3)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    torch.testing.assert_close(dropout(x), first, rtol=0, atol=0)
    assert not torch.equal(first, second)


def test_checkpointed_layers_drop_the_same_units_again():
    dropout, x = VaswaniDropout(0.5), torch.ones(50, 40, requires_grad=True)
    torch.manual_seed(1)
    plain = dropout(x).pow(2)
    expected = torch.autograd.grad(plain.sum(), x)
    torch.manual_seed(1)
    again = checkpoint(lambda x: dropout(x).pow(2), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x), expected)


def test_nothing_and_everything_dropped_and_evaluation():
    x, residual = torch.randn(3, 5), torch.randn(3, 5)
    assert torch.equal(VaswaniDropout(0.0)(x), x)
    assert torch.equal(VaswaniDropout(1.0)(x, residual=residual), residual)
    torch.testing.assert_close(VaswaniDropout(0.4).eval()(x, residual=residual), x + residual)
    assert VaswaniDropout(0.4)(torch.empty(0, 5)).shape == (0, 5)
