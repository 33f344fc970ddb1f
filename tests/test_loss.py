import math

import pytest
import torch

from vaswani.loss import IGNORE, label_smoothed_cross_entropy


def smoothed_distribution(target: int, size: int, epsilon: float, spread: str = "all") -> torch.Tensor:
    """The distribution of section 5.4, written out: epsilon spread over all entries, or over all but the right one."""
    distribution = torch.full((size,), epsilon / (size if spread == "all" else size - 1), dtype=torch.float64)
    distribution[target] = 1 - epsilon + (epsilon / size if spread == "all" else 0)
    return distribution


@pytest.mark.parametrize("spread", ["all", "others"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.2])
def test_equals_the_closed_form(epsilon, spread):
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (2, 5))
    labels[0, 3] = labels[1, 4] = IGNORE
    loss = label_smoothed_cross_entropy(logits, labels, epsilon, spread=spread)
    smoothed = nll = 0.0
    gradient = torch.zeros_like(logits)
    for b in range(2):
        for t in range(5):
            if labels[b, t] == IGNORE:
                continue
            log_p = logits[b, t].detach() - torch.logsumexp(logits[b, t].detach(), 0)
            q = smoothed_distribution(int(labels[b, t]), 11, epsilon, spread)
            smoothed -= float((q * log_p).sum())
            nll -= float(log_p[labels[b, t]])
            gradient[b, t] = log_p.exp() - q
    assert loss.tokens == 8
    assert loss.smoothed.item() == pytest.approx(smoothed, rel=1e-12)
    assert float(loss.nll) == pytest.approx(nll, rel=1e-12)
    loss.smoothed.backward()
    torch.testing.assert_close(logits.grad, gradient, rtol=0, atol=1e-12)


def test_papers_smoothed_targets_at_37000():
    q = smoothed_distribution(5, 37_000, 0.1)
    assert float(q[5]) == pytest.approx(0.9000027, abs=1e-8)
    assert float(q[6]) == pytest.approx(0.0000027, abs=1e-8)
    # the loss is least for logits log q, where it is the entropy of q
    loss = label_smoothed_cross_entropy(q.log()[None], torch.tensor([5]), 0.1)
    assert float(loss.smoothed) == pytest.approx(float(-(q * q.log()).sum()), rel=1e-9)


def test_batches_without_targets_and_without_padding():
    logits = torch.randn(3, 7)
    nothing = label_smoothed_cross_entropy(logits, torch.full((3,), IGNORE), 0.1)
    assert float(nothing.smoothed) == float(nothing.nll) == 0 and nothing.tokens == 0
    everything = label_smoothed_cross_entropy(logits, torch.tensor([0, 1, 2]), 0.1)
    assert math.isfinite(everything.smoothed) and everything.tokens == 3


def test_half_precision_logits_are_summed_in_float32():
    logits, labels = torch.randn(64, 1000).bfloat16(), torch.randint(0, 1000, (64,))
    loss = label_smoothed_cross_entropy(logits, labels, 0.1)
    exact = label_smoothed_cross_entropy(logits.double(), labels, 0.1)
    assert loss.smoothed.dtype == torch.float32
    assert float(loss.smoothed) == pytest.approx(float(exact.smoothed), rel=1e-6)
    assert float(loss.nll) == pytest.approx(float(exact.nll), rel=1e-5)


def test_a_batch_is_the_sum_of_its_parts():
    logits, labels = torch.randn(10, 9, dtype=torch.float64), torch.randint(0, 9, (10,))
    whole = label_smoothed_cross_entropy(logits, labels)
    parts = [label_smoothed_cross_entropy(logits[i::2], labels[i::2]) for i in range(2)]
    for i in range(3):
        assert float(whole[i]) == pytest.approx(sum(float(part[i]) for part in parts), rel=1e-12)


def test_bad_options():
    with pytest.raises(ValueError, match="'all' or 'others', not 'some'"):
        label_smoothed_cross_entropy(torch.randn(1, 3), torch.tensor([0]), 0.1, spread="some")
    with pytest.raises(ValueError, match="must lie in"):
        label_smoothed_cross_entropy(torch.randn(1, 3), torch.tensor([0]), 1.0)
