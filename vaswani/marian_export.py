"""The same Transformer in the Marian layout, for those who run no remote code."""

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from .modeling_vaswani import VaswaniForSeq2SeqLM

EMBEDDINGS = (
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
READS_MODEL_DIMENSIONS = (*EMBEDDINGS, "q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight")
WRITES_MODEL_DIMENSIONS = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias")


@torch.no_grad()
def to_marian(model: VaswaniForSeq2SeqLM) -> MarianMTModel:
    """The same Transformer as a `MarianMTModel`, which every transformers loads.

    Marian's sinusoids come in two blocks, all sines, then all cosines: one permutation of the d_model dimensions, even
    columns before odd, applied to everything that reads or writes them, turns interleaved ones into these. Marian starts
    from its padding row, so the input side's row is zeroed, and a bias keeps padding from being generated: the logits are
    ours but for that one, and the probabilities share out what padding had. Marian's LayerNorm adds 1e-5 to the variance.

    Raises:
        ValueError: for a model that Marian cannot express.
    """
    config = model.config
    if config.position_encoding != "interleaved":
        raise ValueError(f"Marian knows the paper's sinusoids only, not position_encoding={config.position_encoding!r}")
    if not config.tie_word_embeddings or not config.attention_bias:
        raise ValueError("Marian shares one matrix for both embeddings and has attention biases: this model differs")
    if config.d_k != config.d_v or config.d_k * config.num_heads != config.d_model:
        raise ValueError(f"Marian needs d_k = d_v = d_model / num_heads, not d_k={config.d_k} and d_v={config.d_v}")
    if config.layer_norm_eps > 1e-5:
        raise ValueError(
            f"Marian's LayerNorm adds 1e-5 to the variance, far from layer_norm_eps={config.layer_norm_eps}"
        )
    order = torch.cat((torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)))
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            dropout=config.dropout,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=config.max_position_embeddings,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True,
            source_lang=config.source_lang,
            target_lang=config.target_lang,
        )
    )
    state = {}
    for name, weight in model.state_dict().items():
        if name.endswith(READS_MODEL_DIMENSIONS):
            weight = weight[:, order]
        elif "layer_norm" in name or name.endswith(WRITES_MODEL_DIMENSIONS):
            weight = weight[order]
        state[name] = weight.clone()
    for name in EMBEDDINGS:
        state[name][config.pad_token_id] = 0
    missing, unexpected = marian.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith(("embed_positions.weight", "final_logits_bias")) for name in missing):
        raise ValueError(f"this model and Marian differ in {unexpected or missing}")
    marian.tie_weights()
    marian.final_logits_bias[0, config.pad_token_id] = -1e9
    generation = model.generation_config.to_dict()
    kept = ("num_beams", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    marian.generation_config = GenerationConfig(
        **{key: generation[key] for key in kept if generation.get(key) is not None}, max_length=512
    )
    return marian.eval()
