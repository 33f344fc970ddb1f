"""Section 3 of "Attention Is All You Need" (Vaswani et al. 2017): the Transformer, post-norm, exactly as published.
Its embeddings and positions, sections 3.4 and 3.5, are in embedding_vaswani.py.

Shapes in trailing comments: B sentences, S source tokens, T target tokens, L either of them, d = d_model, h heads,
d_k and d_v the widths of keys and values in one head, V rows of the vocabulary.
"""

import math

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vaswani import VaswaniConfig
from .dropout_vaswani import VaswaniDropout
from .embedding_vaswani import VaswaniEmbedding, VaswaniSinusoids, positional_encoding
from .generation_vaswani import VaswaniGenerationMixin
from .packing_vaswani import projections

renamed_cache = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")  # transformers 5.24 renamed it


# ------------------------------------------------------------------------------ 3.2.1 Scaled dot-product attention
def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # (B, h, L, d_k)
    key: torch.Tensor,  # (B, h, S, d_k)
    value: torch.Tensor,  # (B, h, S, d_v)
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention(Q, K, V) = softmax(QK^T / sqrt(d_k)) V, equation (1). The mask is added: 0 keeps, -inf hides."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (B, h, L, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    output = torch.matmul(weights, value)  # (B, h, L, d_v)
    return output.transpose(1, 2).contiguous(), weights  # (B, L, h, d_v)


def in_autocast_type(x: torch.Tensor) -> torch.Tensor:
    """What the matrix products would make of x, each for itself: done once for all of them."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


# ------------------------------------------------------------------------------------- 3.2.2 Multi-head attention
class VaswaniAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int, is_causal: bool = False, is_cross: bool = False):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.is_causal, self.is_cross = is_causal, is_cross  # is_causal is read by the sdpa backend
        self.d_k, self.d_v = config.d_k, config.d_v
        self.scaling = config.d_k**-0.5
        h, bias = config.num_heads, config.attention_bias
        self.q_proj = nn.Linear(config.d_model, h * config.d_k, bias=bias)  # W^Q
        self.k_proj = nn.Linear(config.d_model, h * config.d_k, bias=bias)  # W^K
        self.v_proj = nn.Linear(config.d_model, h * config.d_v, bias=bias)  # W^V
        self.out_proj = nn.Linear(h * config.d_v, config.d_model, bias=bias)  # W^O
        fused = projections(self)
        for projection in fused:  # see _init_weights
            projection.fused_out_features = sum(linear.out_features for linear in fused)

    def forward(
        self,
        hidden_states: torch.Tensor,  # (B, L, d)
        key_value_states: torch.Tensor | None = None,  # (B, S, d): the memory, in encoder-decoder attention
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the output (B, L, d) and, from backends that compute them, the weights (B, h, L, S)."""
        hidden_states = in_autocast_type(hidden_states)
        q = self.q_proj(hidden_states).unflatten(-1, (-1, self.d_k)).transpose(1, 2)  # (B, h, L, d_k)
        keep = cache  # the half of the cache that belongs to this sub-layer
        if isinstance(cache, EncoderDecoderCache):
            keep = cache.cross_attention_cache if self.is_cross else cache.self_attention_cache
        if self.is_cross and keep is not None and cache.is_updated.get(self.layer_idx):
            k, v = keep.layers[self.layer_idx].keys, keep.layers[self.layer_idx].values  # computed once per sentence
        else:
            states = in_autocast_type(key_value_states) if self.is_cross else hidden_states
            k = self.k_proj(states).unflatten(-1, (-1, self.d_k)).transpose(1, 2)  # (B, h, S, d_k)
            v = self.v_proj(states).unflatten(-1, (-1, self.d_v)).transpose(1, 2)  # (B, h, S, d_v)
            if keep is not None:
                k, v = keep.update(k, v, self.layer_idx)
                if self.is_cross:
                    cache.is_updated[self.layer_idx] = True
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.out_proj(output.flatten(2)), weights  # Concat: (B, L, h, d_v) -> (B, L, h * d_v)


# ------------------------------------------------------------------------------ 3.1 and 3.3 Encoder and decoder layers
class VaswaniEncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then feed-forward, each inside LayerNorm(x + Dropout(Sublayer(x))): normalisation comes last."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__()
        self.self_attn = VaswaniAttention(config, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)  # W_1, b_1
        self.fc2 = nn.Linear(config.d_ff, config.d_model)  # W_2, b_2
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = VaswaniDropout(config.dropout)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, L, d)
        """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2), and the residual and normalisation around it."""
        return self.final_layer_norm(self.dropout(self.fc2(torch.relu(self.fc1(x))), residual=x))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs) -> torch.Tensor:  # x: (B, S, d)
        attended, _ = self.self_attn(x, attention_mask=attention_mask, **kwargs)
        x = self.self_attn_layer_norm(self.dropout(attended, residual=x))
        return self.feed_forward(x)


class VaswaniDecoderLayer(VaswaniEncoderLayer):
    """An encoder layer whose self-attention is masked, with attention over the encoder's output in between."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.self_attn.is_causal = True
        self.encoder_attn = VaswaniAttention(config, layer_idx, is_cross=True)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        x: torch.Tensor,  # (B, T, d)
        attention_mask: torch.Tensor | None,
        memory: torch.Tensor,  # (B, S, d), the encoder's output
        memory_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        attended, _ = self.self_attn(x, attention_mask=attention_mask, cache=cache, **kwargs)
        x = self.self_attn_layer_norm(self.dropout(attended, residual=x))
        attended, _ = self.encoder_attn(x, memory, attention_mask=memory_mask, cache=cache, **kwargs)
        x = self.encoder_attn_layer_norm(self.dropout(attended, residual=x))
        return self.feed_forward(x)


# --------------------------------------------------------------------------------------- 3.1 Encoder and decoder stacks
class VaswaniPreTrainedModel(PreTrainedModel):
    config_class = VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]

    def _init_weights(self, module: nn.Module):
        """tensor2tensor v1.0.3: Glorot uniform, zero biases, embeddings and softmax N(0, 1/d_model).

        There the projections of one input were one matrix (Q|K|V of self-attention, K|V of encoder-decoder attention),
        so its Glorot bound counts all their columns: plain Glorot for each of them is too large for post-norm, which
        then learns fluent output that ignores the source.
        """
        if module is getattr(self, "lm_head", None):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            fan_out = getattr(module, "fused_out_features", module.out_features)
            bound = math.sqrt(6 / (module.in_features + fan_out))
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            if isinstance(module, VaswaniEmbedding) and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.pad_token_id])  # what the input side makes of it anyway
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, VaswaniSinusoids):
            init.copy_(module.weight, module.compute(len(module.weight)))

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """transformers resizes one input matrix and the softmax; untied, the decoder has a third matrix of its own."""
        embeddings = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.get_decoder()
        if not self.config.tie_word_embeddings and decoder is not self:
            self._get_resized_embeddings(decoder.embed_tokens, len(embeddings.weight), mean_resizing=mean_resizing)
        return embeddings


class VaswaniEncoder(VaswaniPreTrainedModel):
    """A stack of `num_layers` encoder layers over the source; no normalisation after the last one."""

    _can_record_outputs = {
        "hidden_states": VaswaniEncoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.embed_tokens = VaswaniEmbedding(config)
        self.embed_positions = positional_encoding(config)
        self.dropout = VaswaniDropout(config.dropout)
        self.layers = nn.ModuleList(VaswaniEncoderLayer(config, i) for i in range(config.num_layers))
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,  # (B, S)
        attention_mask: torch.Tensor | None = None,  # (B, S): 1 for a token, 0 for padding
        inputs_embeds: torch.Tensor | None = None,  # (B, S, d): what embed_tokens returns, already scaled
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give the encoder exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        length = inputs_embeds.shape[1]
        positions = torch.arange(length, device=inputs_embeds.device)
        x = self.dropout(inputs_embeds + self.embed_positions(positions, length))  # (B, S, d)
        mask = create_bidirectional_mask(self.config, in_autocast_type(inputs_embeds), attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class VaswaniDecoder(VaswaniPreTrainedModel):
    """A stack of `num_decoder_layers` decoder layers over the target, shifted right; a position sees earlier ones."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(VaswaniDecoderLayer, num_hidden_layers_key="num_decoder_layers"),
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.embed_tokens = VaswaniEmbedding(config)
        self.embed_positions = positional_encoding(config)
        self.dropout = VaswaniDropout(config.dropout)
        self.layers = nn.ModuleList(VaswaniDecoderLayer(config, i) for i in range(config.num_decoder_layers))
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @renamed_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,  # (B, T): the target, shifted right
        attention_mask: torch.Tensor | None = None,  # (B, T + what the cache holds)
        encoder_hidden_states: torch.Tensor | None = None,  # (B, S, d)
        encoder_attention_mask: torch.Tensor | None = None,  # (B, S)
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,  # (B, T, d): what embed_tokens returns, already scaled
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give the decoder exactly one of decoder_input_ids and decoder_inputs_embeds (or labels)")
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states: every layer attends over the encoder's output")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        if cache is not None and not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))

        past = None if cache is None else cache.self_attention_cache
        length, start = inputs_embeds.shape[1], 0 if past is None else past.get_seq_length()
        # In a static cache the start is a tensor, so that compiled code serves every step: its capacity bounds it.
        end = past.get_max_length() if isinstance(start, torch.Tensor) else start + length
        positions = torch.arange(length, device=inputs_embeds.device) + start
        x = self.dropout(inputs_embeds + self.embed_positions(positions, end))  # (B, T, d)

        like = in_autocast_type(inputs_embeds)
        mask = create_causal_mask(self.config, like, attention_mask, cache=past)
        memory_mask = create_bidirectional_mask(
            self.config, like, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        for layer in self.layers:
            x = layer(x, mask, encoder_hidden_states, memory_mask=memory_mask, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, cache=cache)


# --------------------------------------------------------------------------------------------- 3 The model, figure 1
def shift_right(labels: torch.LongTensor, config: VaswaniConfig) -> torch.LongTensor:
    """The decoder's input: the target behind the start token, one position later; ignored labels (-100) are padding."""
    shifted = labels.new_full(labels.shape, config.decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, config.pad_token_id)


class VaswaniModel(VaswaniPreTrainedModel):
    """Encoder and decoder without the softmax: returns the decoder's last hidden states (B, T, d)."""

    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        if config.tie_word_embeddings:
            self.shared = VaswaniEmbedding(config)  # sec. 3.4: the same weight matrix for both and the softmax
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.shared = self.decoder.embed_tokens = value

    @can_return_tuple
    @renamed_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,  # (B, S)
        attention_mask: torch.Tensor | None = None,  # (B, S); without one, padding tokens in input_ids are hidden
        decoder_input_ids: torch.LongTensor | None = None,  # (B, T)
        decoder_attention_mask: torch.Tensor | None = None,  # (B, T)
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VaswaniForSeq2SeqLM(VaswaniPreTrainedModel, VaswaniGenerationMixin):
    """The Transformer with its softmax layer: logits = decoder output times the shared matrix, without a bias."""

    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # plain cross entropy: the labels are not shifted, the decoder input is
        self.generation_config = self._default_generation_config()
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.LongTensor) -> torch.LongTensor:
        """What `DataCollatorForSeq2Seq(model=...)` calls."""
        return shift_right(labels, self.config)

    @can_return_tuple
    @renamed_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,  # (B, S), ends with EOS
        attention_mask: torch.Tensor | None = None,  # (B, S)
        decoder_input_ids: torch.LongTensor | None = None,  # (B, T); made from the labels where it is missing
        decoder_attention_mask: torch.Tensor | None = None,  # (B, T)
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,  # (B, T), ends with EOS; -100 is ignored
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Returns logits (B, T, V) and, given labels, the mean cross entropy (their sum over `num_items_in_batch`)."""
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = shift_right(labels, self.config)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        states = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **states)


__all__ = ["VaswaniForSeq2SeqLM", "VaswaniModel", "VaswaniPreTrainedModel"]
