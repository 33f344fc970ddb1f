"""Section 5.4: what training minimises, as one module: token ids in, loss sums out. Gradients are synchronised round it."""

import torch
from torch import nn

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
