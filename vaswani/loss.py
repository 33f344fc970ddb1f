"""Section 5.4: label-smoothed cross entropy, as a sum and a token count so that any split of a batch adds up."""

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

IGNORE = -100
CHUNK = 1 << 24  # logits that exist at a time, in `chunked_cross_entropy`


class Loss(NamedTuple):
    """Sums over the target tokens of a batch, in nats."""

    smoothed: torch.Tensor  # what is minimised
    nll: torch.Tensor  # -log p(token): its mean's exponential is the perplexity, which knows no smoothing
    tokens: torch.Tensor  # how many targets were not ignored


def perplexity(nll: float) -> float:
    """exp of a mean -log p, up to e^50: a number also where training has gone astray."""
    return math.exp(min(nll, 50))


def spread_over_all(epsilon: float, spread: str, vocab_size: int) -> float:
    """The smoothing mass that, spread over all V entries, is the same as `epsilon` spread over "all" or "others"."""
    if not 0 <= epsilon < 1:
        raise ValueError(f"label smoothing {epsilon} must lie in [0, 1)")
    if spread not in ("all", "others"):
        raise ValueError(f"label smoothing is spread over 'all' or 'others', not {spread!r}")
    return epsilon * vocab_size / (vocab_size - 1) if spread == "others" else epsilon


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
    epsilon = spread_over_all(epsilon, spread, logits.shape[-1])
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    smoothed = F.cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=epsilon, reduction="sum")
    target = labels.ne(ignore_index)
    with torch.no_grad():  # smoothed = nll + epsilon * (logit of the right token - mean logit), token by token
        right = logits.gather(-1, labels.clamp_min(0)[:, None]).squeeze(-1)
        nll = smoothed - epsilon * ((right - logits.mean(-1)) * target).sum() if epsilon else smoothed.detach()
    return Loss(smoothed, nll, target.sum())


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.LongTensor,
    epsilon: float = 0.1,
    *,
    spread: str = "all",
    chunk: int = CHUNK,
) -> Loss:
    """`label_smoothed_cross_entropy` of the logits hidden @ weight.T, which never exist all at once.

    Gradients are computed chunk by chunk in the forward pass, while the logits are at hand. Matrix products are taken in
    autocast's type where it is on, the softmax and all sums in float32 at least.

    Args:
        hidden: (..., d), output of the decoder.
        weight: (V, d), the softmax matrix.
        labels: (...), token ids; -100 marks what is not a target.
        epsilon, spread: as there.
        chunk: logits that exist at a time.
    """
    epsilon = spread_over_all(epsilon, spread, len(weight))
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    tokens = labels.ne(IGNORE).sum()
    if labels.device.type == "cpu":  # elsewhere it would wait for the device; there ignored rows count for nothing
        rows = labels.ne(IGNORE).nonzero().squeeze(-1)
        hidden, labels = hidden.index_select(0, rows), labels[rows]
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):
        rows = max(1, chunk // len(weight))
        smoothed, nll = ChunkedCrossEntropy.apply(hidden, weight, labels, epsilon, dtype, rows, torch.is_grad_enabled())
    return Loss(smoothed, nll, tokens)


def _logsumexp(logits: torch.Tensor, p: torch.Tensor, target: torch.LongTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The right tokens' logits and the logsumexp of each row, both (n, 1), from p = softmax(logits): a token's logit less
    its log p is the logsumexp. The likeliest one's p never vanishes; the right one is found without reading the row."""
    right, p_right = logits.gather(1, target).to(p.dtype), p.gather(1, target)
    rows = (p_right < 1e-30).squeeze(1) if p.device.type == "cpu" else slice(None)  # elsewhere looking would wait
    logsumexp = right - p_right.log()
    logsumexp[rows] = logits[rows].amax(-1, keepdim=True).to(p.dtype) - p[rows].amax(-1, keepdim=True).log()
    return right, logsumexp


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sums of smoothed loss and -log p over the rows of hidden (N, d), for weight (V, d) and labels (N,).

    With p = softmax(h W^T), W_y the right token's row and eps the smoothing mass, the smoothed loss of a row is
    logsumexp(h W^T) - (1 - eps) h W_y - eps h mean(W), and its gradients are

        in h:  sum of p_v W_v - (1 - eps) W_y - eps mean(W)
        in W:  p_v h in row v, - (1 - eps) h in row y, - eps / V h in every row.

    Only the terms in p need matrices as wide as the vocabulary, and p is rounded to the type of the products but for p_y:
    where a model is sure of the right token, p_y - (1 - eps) is a small difference.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, epsilon, dtype, rows, with_gradients):
        wide = torch.promote_types(torch.float32, hidden.dtype)
        w, mean = weight.to(dtype), weight.mean(0, dtype=wide)  # (V, d), (d,)
        d_hidden = torch.empty_like(hidden, dtype=wide) if with_gradients else None
        d_weight = torch.zeros_like(weight, dtype=wide) if with_gradients else None
        smoothed, nll = (hidden.new_zeros((), dtype=wide) for _ in range(2))
        for start in range(0, len(hidden), rows):
            target = labels[start : start + rows, None]  # (n, 1)
            real, target = target.ne(IGNORE), target.clamp_min(0)
            h = hidden[start : start + rows] * real  # (n, d)
            h, h_wide = h.to(dtype), h.to(wide)
            logits = h @ w.t()  # (n, V)
            p = torch.softmax(logits, dim=-1, dtype=wide)  # (n, V)
            right, logsumexp = _logsumexp(logits, p, target)
            nll = nll + ((logsumexp - right) * real).sum()
            smoothed = smoothed + ((logsumexp - (1 - epsilon) * right) * real).sum() - epsilon * (h_wide @ mean).sum()
            if not with_gradients:
                continue
            p = p.to(dtype)
            at = torch.arange(len(p), device=p.device) * p.shape[1] + target.squeeze(1)
            p.view(-1).index_fill_(0, at, 0)  # scatter_ would copy p first
            d_right = (right - logsumexp).exp() - (1 - epsilon)  # (n, 1)
            d_h = (p @ w).to(wide) + d_right * weight[target.squeeze(1)] - epsilon * mean
            d_hidden[start : start + rows] = d_h * real
            d_weight += p.t() @ h
            d_weight.index_add_(0, target.squeeze(1), d_right * h_wide)
            d_weight -= h_wide.sum(0) * (epsilon / len(weight))
        if with_gradients:
            ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx, d_smoothed, _):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_smoothed, d_weight * d_smoothed, None, None, None, None, None
