"""Section 3 and Table 3 of "Attention Is All You Need" as a configuration. The defaults are the paper's base model."""

import copy
import difflib
from dataclasses import fields
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class VaswaniConfig(PreTrainedConfig):
    r"""Configuration of the Transformer of Vaswani et al. 2017. Keyword arguments only; the defaults are *base*.

    Args:
        vocab_size: rows of the one matrix shared by source, target and softmax (sec. 3.4; "about 37000" in sec. 5.1).
        d_model: width of every sub-layer output (sec. 3.1).
        d_ff: inner width of the position-wise feed-forward network (sec. 3.3).
        num_layers: N, encoder layers, and decoder layers unless `num_decoder_layers` says otherwise (sec. 3.1).
        num_decoder_layers: decoder layers; `None` follows `num_layers`.
        num_heads: h (sec. 3.2.2).
        d_k: width of a query or key in one head; `None` is `d_model / num_heads`. Table 3 (B) varies it alone.
        d_v: width of a value in one head; `None` is `d_model / num_heads`.
        dropout: P_drop, on each sub-layer output and on the sums of embeddings and positions (sec. 5.4).
        position_encoding: `"interleaved"`, the paper's text: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), cosines at
            the odd columns (sec. 3.5); `"tensor2tensor"`, the authors' code: all sines, then all cosines, with
            d_model/2 - 1 in the exponent; `"learned"`: Table 3 (E).
        max_position_embeddings: rows of a learned table, a limit then. Sinusoids are computed to any length: for
            them it is only how many rows are kept ready.
        attention_bias: biases in the four attention projections. The text writes none; the authors' code has them,
            and Table 3's parameter column needs them.
        layer_norm_eps: added to the variance (the authors' code: 1e-6; the text gives none).
        tie_word_embeddings: one matrix for both embeddings and the softmax (sec. 3.4); if false, three matrices.
        source_lang, target_lang: language codes, for the tools that translate and score; the model ignores them.

    `hidden_size`, `num_hidden_layers`, `num_attention_heads` and `intermediate_size` are accepted as other names.

    Raises:
        ValueError: for sizes that no Transformer can have, and for a misspelt option.
    """

    model_type = "vaswani"
    attribute_map = {
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "layer_norm_epsilon": "layer_norm_eps",
    }
    keys_to_ignore_at_inference = ["cache"]

    vocab_size: int = 37000
    d_model: int = 512
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    position_encoding: Literal["interleaved", "tensor2tensor", "learned"] = "interleaved"
    max_position_embeddings: int = 1024
    attention_bias: bool = True
    layer_norm_eps: float | int = 1e-6
    tie_word_embeddings: bool = True
    source_lang: str | None = None
    target_lang: str | None = None
    pad_token_id: int = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int = 0
    is_encoder_decoder: bool = True
    is_decoder: bool = False
    use_cache: bool = True

    def __post_init__(self, **kwargs):
        self._refuse_misspelt(kwargs)
        self.validate_architecture()  # here too, for a plain ValueError, and before the divisions below
        super().__post_init__(**kwargs)
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None:
                if self.d_model % self.num_heads:
                    raise ValueError(
                        f"d_model={self.d_model} is not a multiple of num_heads={self.num_heads}: "
                        f"change one of them, or set d_k and d_v"
                    )
                setattr(self, name, self.d_model // self.num_heads)

    def _refuse_misspelt(self, kwargs):
        """transformers stores unknown keyword arguments; one that almost is an option of ours is a slip of the pen."""
        own = [field.name for field in fields(VaswaniConfig) if field.name not in PreTrainedConfig.__dataclass_fields__]
        for name in kwargs.keys() - self.attribute_map.keys():
            if close := difflib.get_close_matches(name, own, n=1, cutoff=0.85):
                raise ValueError(f"VaswaniConfig has no option {name!r}: did you mean {close[0]!r}?")

    def validate_architecture(self):
        """Runs at construction and before saving. Raises ValueError naming the option to change."""
        sizes = ("vocab_size", "d_model", "d_ff", "num_layers", "num_heads", "max_position_embeddings")
        for name in (*sizes, "num_decoder_layers", "d_k", "d_v"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name}={size} must be at least 1")
        if self.d_model % 2 and self.position_encoding != "learned":
            raise ValueError(f"d_model={self.d_model} must be even: half the sinusoids are sines, half cosines")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        if not self.is_encoder_decoder:
            raise ValueError("the Transformer of the paper is an encoder-decoder: leave is_encoder_decoder=True")
        if self.pad_token_id == self.eos_token_id:
            raise ValueError(f"pad_token_id and eos_token_id are both {self.pad_token_id}: no output could ever end")
        for name in ("pad_token_id", "decoder_start_token_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(f"{name}={getattr(self, name)} is outside the vocabulary of {self.vocab_size}")

    def get_text_config(self, decoder=None, encoder=None):
        """Caches and `generate` size themselves from the decoder's side: let them see its number of layers."""
        config = super().get_text_config(decoder=None, encoder=None)
        if decoder and not encoder and self.num_decoder_layers != self.num_layers:
            config = copy.deepcopy(self)
            config.num_layers = self.num_decoder_layers
        return config


__all__ = ["VaswaniConfig"]
