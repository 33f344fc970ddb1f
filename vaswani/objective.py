"""Section 5.4: what training minimises, as one module: token ids in, loss sums out. Gradients are synchronised round it."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from .batching import by_length, collate
from .loss import Loss, chunked_cross_entropy, label_smoothed_cross_entropy
from .modeling_vaswani import VaswaniForSeq2SeqLM, shift_right


class Objective(nn.Module):
    """The label-smoothed loss of a model under teacher forcing.

    Args:
        model: whose parameters are trained; `self.model` is the same object.
        epsilon: smoothing mass. In evaluation mode there is none: the loss is then -log p.
        spread: the entries that share it, "all" or "others" (see `label_smoothed_cross_entropy`).
    """

    def __init__(self, model: VaswaniForSeq2SeqLM, epsilon: float = 0.1, spread: str = "all"):
        super().__init__()
        self.model, self.epsilon, self.spread = model, epsilon, spread

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Loss:
        """Sums over the target tokens; input_ids and attention_mask (B, S), labels (B, T) with -100 for padding."""
        hidden = self.model.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=shift_right(labels, self.model.config),
            use_cache=False,
        ).last_hidden_state  # (B, T, d)
        epsilon, device = self.epsilon if self.training else 0.0, labels.device.type
        half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
        if half:  # its gradients need the scale of the loss before they are rounded: autograd has to take them
            return label_smoothed_cross_entropy(self.model.lm_head(hidden), labels, epsilon, spread=self.spread)
        return chunked_cross_entropy(hidden, self.model.lm_head.weight, labels, epsilon, spread=self.spread)


def by_longer_side(dataset, max_tokens: int = 4096) -> list[np.ndarray]:
    """Rows of a tokenised dataset in batches of similar length, of at most `max_tokens` padded positions a side."""
    lengths = [dataset.data[f"{side}_length"].to_numpy() for side in ("source", "target")]
    return by_length(np.maximum(*lengths), max_tokens)


def on_device(dataset, rows: np.ndarray, pad_token_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Rows of a tokenised dataset as `Objective` takes them. To a GPU they travel while it computes."""
    tensors = collate(dataset, rows, pad_token_id)
    if device.type == "cuda":
        return {name: x.pin_memory().to(device, non_blocking=True) for name, x in tensors.items()}
    return {name: x.to(device) for name, x in tensors.items()}


@torch.no_grad()
def summed_nll(
    objective: Objective, dataset, batches: Iterable[np.ndarray], pad_token_id: int, other_sources: bool = False
) -> torch.Tensor:
    """Sum of -log p over the target tokens, EOS counted, without smoothing, and their number: (2,), in float64 where the
    device has it. The exponential of the quotient is the perplexity.

    With `other_sources` every target is given the source of its neighbour in length.
    """
    was_training = objective.training
    objective.eval()
    device = objective.model.device
    sums = torch.zeros(2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    for rows in batches:
        inputs = on_device(dataset, rows, pad_token_id, device)
        if other_sources:
            inputs |= {name: inputs[name].roll(1, dims=0) for name in ("input_ids", "attention_mask")}
        loss = objective(**inputs)
        sums += torch.stack((loss.nll, loss.tokens)).to(sums)
    objective.train(was_training)
    return sums
