"""Section 5.4: label-smoothed cross entropy, as a sum and a token count so that any split of a batch adds up."""

from typing import NamedTuple

import torch
from torch.nn import functional as F

IGNORE = -100


class Loss(NamedTuple):
    """Sums over the target tokens of a batch, in nats."""

    smoothed: torch.Tensor  # what is minimised
    nll: torch.Tensor  # -log p(token): its mean's exponential is the perplexity, which knows no smoothing
    tokens: torch.Tensor  # how many targets were not ignored


def label_smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.LongTensor, epsilon: float = 0.1, ignore_index: int = IGNORE
) -> Loss:
    """Cross entropy against (1 - epsilon) on the right token and epsilon spread evenly over all V entries.

    The right token so has 1 - epsilon + epsilon/V: 0.9000027 at V = 37,000. (The authors' code spreads epsilon over the
    other V - 1: less than 3e-6 apart.)

    Args:
        logits: (..., V), any floating type; the softmax is taken in float32 at least.
        labels: (...), token ids; `ignore_index` marks what is not a target.
        epsilon: smoothing mass, 0.1 in the paper; in [0, 1).
    """
    if not 0 <= epsilon < 1:
        raise ValueError(f"label smoothing {epsilon} must lie in [0, 1)")
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    smoothed = F.cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=epsilon, reduction="sum")
    target = labels.ne(ignore_index)
    with torch.no_grad():  # smoothed = nll + epsilon * (logit of the right token - mean logit), token by token
        right = logits.gather(-1, labels.clamp_min(0)[:, None]).squeeze(-1)
        nll = smoothed - epsilon * ((right - logits.mean(-1)) * target).sum() if epsilon else smoothed.detach()
    return Loss(smoothed, nll, target.sum())
