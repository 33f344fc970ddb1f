"""Section 6.1: decoding, as a mixin that changes transformers' `generate()` only where the paper needs it."""

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor

EXTRA_LENGTH = 50  # sec. 6.1: "we set the maximum output length during inference to input length + 50"


class SuppressPad(LogitsProcessor):
    """Padding is never generated: its row of the softmax is trained by label smoothing only and stands for no text."""

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores = scores.clone()
        scores[:, self.pad_token_id] = -float("inf")
        return scores


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's output length (input + `max_length_offset`) and without padding tokens."""

    def _default_generation_config(self) -> GenerationConfig:
        """What every new model carries. A fresh object: one derived from the model config loses its custom keys."""
        config = self.config
        return GenerationConfig(
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            max_length_offset=EXTRA_LENGTH,
        )

    def generate(self, inputs=None, generation_config=None, *args, attention_mask=None, **kwargs):
        """transformers' `generate()`; without an `attention_mask` padding in the source is hidden, as in `forward`."""
        input_ids = kwargs.get("input_ids") if inputs is None else inputs
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id).long()
        if attention_mask is not None:
            kwargs["attention_mask"] = attention_mask
        return super().generate(inputs, generation_config, *args, **kwargs)

    def _get_logits_processor(self, *args, **kwargs):
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.insert(0, SuppressPad(self.config.pad_token_id))  # first: top-k must not be left with padding alone
        return processors

    def _prepare_generated_length(self, generation_config, has_default_max_length, *args, **kwargs):
        """The length limit counts from the source, unless the caller set `max_length` or `max_new_tokens`."""
        if has_default_max_length and _counts_from_source(generation_config):
            limit = kwargs["inputs_tensor"].shape[1] + generation_config.max_length_offset
            generation_config.max_length = kwargs["input_ids_length"] + limit
            has_default_max_length = False
        return super()._prepare_generated_length(generation_config, has_default_max_length, *args, **kwargs)

    def _validate_generated_length(self, generation_config, input_ids_length, has_default_max_length):
        """transformers warns of its own default length; ours comes from the paper."""
        has_default_max_length = has_default_max_length and not _counts_from_source(generation_config)
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)


def _counts_from_source(generation_config: GenerationConfig) -> bool:
    offset = getattr(generation_config, "max_length_offset", None)
    return offset is not None and generation_config.max_new_tokens is None


__all__ = ["VaswaniGenerationMixin"]
