"""Sections 3.4 and 3.5: embeddings, scaled by sqrt(d_model), and positional encoding. B sentences, L tokens, d = d_model."""

import math

import torch
from torch import nn

from .configuration_vaswani import VaswaniConfig


class VaswaniEmbedding(nn.Embedding):
    """Token embeddings multiplied by sqrt(d_model). The padding token, with which the decoder starts, is the zero
    vector: masked here, because the tied matrix learns a row for it through the softmax."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config.vocab_size, config.d_model)
        self.pad_token_id, self.scale = config.pad_token_id, math.sqrt(config.d_model)

    def forward(self, input_ids: torch.LongTensor) -> torch.Tensor:  # (B, L) -> (B, L, d)
        padding = input_ids.eq(self.pad_token_id).unsqueeze(-1)
        return (super().forward(input_ids) * self.scale).masked_fill(padding, 0.0)


def sinusoids(length: int, d_model: int, layout: str = "interleaved") -> torch.Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same), pos from 0; float64 (length, d_model).

    `layout="tensor2tensor"` is what the authors' code did: wavelengths geometric with d_model/2 - 1 steps, and the
    sines in the first half of the columns, the cosines in the second.
    """
    half = torch.arange(d_model // 2, dtype=torch.float64)  # i
    exponent = half * 2 / d_model if layout == "interleaved" else half / max(d_model // 2 - 1, 1)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000**exponent  # (length, d/2)
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class VaswaniSinusoids(nn.Module):
    """Fixed positions. `max_position_embeddings` rows are kept; a longer sequence has its own computed."""

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.d_model, self.layout = config.d_model, config.position_encoding
        table = self.compute(config.max_position_embeddings).to(torch.get_default_dtype())
        self.weight = nn.Buffer(table, persistent=False)

    def compute(self, length: int) -> torch.Tensor:
        return sinusoids(length, self.d_model, self.layout)

    def _apply(self, fn, recurse=True):
        """`.double()` or `.bfloat16()` must round the true values, not values that were rounded to float32 before."""
        super()._apply(fn, recurse)
        if not self.weight.is_meta:
            self.weight.copy_(self.compute(len(self.weight)))
        return self

    def forward(self, positions: torch.LongTensor, end: int) -> torch.Tensor:  # (L,) -> (L, d); end: bound on positions
        weight = self.weight if end <= len(self.weight) else self.compute(end).to(self.weight)
        return nn.functional.embedding(positions, weight)


class VaswaniLearnedPositions(nn.Embedding):
    """Table 3, row (E): learned positional embeddings."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(self, positions: torch.LongTensor, end: int) -> torch.Tensor:
        if end > self.num_embeddings:
            raise ValueError(
                f"a sequence of {end} tokens is longer than the {self.num_embeddings} learned positions: truncate it, "
                f"or train with a larger max_position_embeddings or with sinusoids, which have no limit"
            )
        return super().forward(positions)


def positional_encoding(config: VaswaniConfig) -> nn.Module:
    return VaswaniLearnedPositions(config) if config.position_encoding == "learned" else VaswaniSinusoids(config)


__all__ = ["VaswaniEmbedding", "VaswaniLearnedPositions", "VaswaniSinusoids", "positional_encoding", "sinusoids"]
