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
    logits: torch.Tensor,
    labels: torch.LongTensor,
    epsilon: float = 0.1,
    *,
    spread: str = "all",
    ignore_index: int = IGNORE,
) -> Loss:
    """Cross entropy against a right token that has 1 - epsilon of the probability and others that share the rest.

    Args:
        logits: (..., V), any floating type; the softmax is taken in float32 at least.
        labels: (...), token ids; `ignore_index` marks what is not a target.
        epsilon: smoothing mass, 0.1 in the paper; in [0, 1).
        spread: "all" spreads epsilon over all V entries (right token 0.9000027, others 0.0000027 at V = 37,000);
            "others", as the authors' code, over the V - 1 wrong ones: less than 3e-6 apart.
    """
    if not 0 <= epsilon < 1:
        raise ValueError(f"label smoothing {epsilon} must lie in [0, 1)")
    if spread not in ("all", "others"):
        raise ValueError(f"label smoothing is spread over 'all' or 'others', not {spread!r}")
    if spread == "others":  # the same as spreading a little more over all
        epsilon *= logits.shape[-1] / (logits.shape[-1] - 1)
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    smoothed = F.cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=epsilon, reduction="sum")
    target = labels.ne(ignore_index)
    with torch.no_grad():  # smoothed = nll + epsilon * (logit of the right token - mean logit), token by token
        right = logits.gather(-1, labels.clamp_min(0)[:, None]).squeeze(-1)
        nll = smoothed - epsilon * ((right - logits.mean(-1)) * target).sum() if epsilon else smoothed.detach()
    return Loss(smoothed, nll, target.sum())
