"""Section 6.1 without PyTorch: a trained model in CTranslate2's layout, and translation with it by the paper's penalty."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from .modeling_vaswani import VaswaniForSeq2SeqLM
from .run_config import UserError

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
POSITIONS = 4096  # rows of the table that stands for sinusoids, which have no limit here
PATIENCE = 2  # times beams: hypotheses that end before a search does, so that the paper's choice is among them
NEVER = -1e4  # a bias that leaves no probability, in half precision too


def _ctranslate2():
    try:
        import ctranslate2
    except ImportError:
        raise UserError('CTranslate2 is not installed: in the clone, pip install -e ".[ctranslate2]"') from None
    return ctranslate2


# -------------------------------------------------------------------------------------------------------------- export
@torch.no_grad()
def save_for_ctranslate2(
    model: VaswaniForSeq2SeqLM,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None = None,
) -> Path:
    """Writes `model.bin`, `config.json`, `shared_vocabulary.json`, the tokenizer, and the settings of the search.

    CTranslate2 starts from the zero vector, as we do, and not from the padding token's row; a bias keeps padding from
    being generated, so that the other probabilities share what it had. Sources are given without EOS: it is added.

    Args:
        quantization: of the weights, one of `QUANTIZATIONS`; None keeps float32.

    Raises:
        ValueError: for a model that CTranslate2 cannot express. UserError: CTranslate2 is not installed.
    """
    specs = _ctranslate2().specs
    config = model.config
    if config.d_k != config.d_v or config.d_k * config.num_heads != config.d_model:
        raise ValueError(
            f"CTranslate2 needs d_k = d_v = d_model / num_heads, not d_k={config.d_k} and d_v={config.d_v}"
        )
    if config.decoder_start_token_id != config.pad_token_id or not isinstance(config.eos_token_id, int):
        raise ValueError("CTranslate2 starts from the zero vector, our padding token's, and ends with one EOS token")
    if tokenizer.pad_token_id != config.pad_token_id or tokenizer.eos_token_id != config.eos_token_id:
        raise ValueError("the tokenizer's padding and EOS tokens are not the model's: export both from one run folder")
    spec = specs.TransformerSpec.from_config(
        (config.num_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=False,
        activation=specs.Activation.RELU,
    )
    stacks = ((spec.encoder, model.model.encoder), (spec.decoder, model.model.decoder))
    for target, stack in stacks:
        embeddings = target.embeddings[0] if isinstance(target.embeddings, list) else target.embeddings
        embeddings.weight = _array(stack.embed_tokens.weight)
        target.scale_embeddings = stack.embed_tokens.scale
        learned = config.position_encoding == "learned"
        rows = config.max_position_embeddings if learned else max(POSITIONS, config.max_position_embeddings)
        target.position_encodings.encodings = _array(stack.embed_positions(torch.arange(rows), rows))
        for part, layer in zip(target.layer, stack.layers, strict=True):
            _set_layer(part, layer)
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = _array(model.lm_head.weight)
    spec.decoder.projection.bias = np.zeros(config.vocab_size, dtype=np.float32)
    spec.decoder.projection.bias[config.pad_token_id] = NEVER

    pieces = tokenizer.convert_ids_to_tokens(range(min(len(tokenizer), config.vocab_size)))
    pieces += [f"<unused {i}>" for i in range(len(pieces), config.vocab_size)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    padding = tokenizer.pad_token
    spec.config.eos_token, spec.config.add_source_eos = tokenizer.eos_token, True
    spec.config.unk_token = spec.config.bos_token = spec.config.decoder_start_token = padding
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.config.add_attribute("positions", rows)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    tokenizer.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    return folder


def _array(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().float().cpu().numpy().copy()  # CTranslate2 quantises in place


def _set_linear(spec, *linears: torch.nn.Linear) -> None:
    """Several projections of one input are one matrix."""
    spec.weight = np.concatenate([_array(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = np.concatenate([_array(linear.bias) for linear in linears])


def _set_norm(spec, norm: torch.nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _set_layer(spec, layer) -> None:
    attention = layer.self_attn
    _set_linear(spec.self_attention.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _set_linear(spec.self_attention.linear[1], attention.out_proj)
    _set_norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
    if hasattr(layer, "encoder_attn"):
        attention = layer.encoder_attn
        _set_linear(spec.attention.linear[0], attention.q_proj)
        _set_linear(spec.attention.linear[1], attention.k_proj, attention.v_proj)
        _set_linear(spec.attention.linear[2], attention.out_proj)
        _set_norm(spec.attention.layer_norm, layer.encoder_attn_layer_norm)
    _set_linear(spec.ffn.linear_0, layer.fc1)
    _set_linear(spec.ffn.linear_1, layer.fc2)
    _set_norm(spec.ffn.layer_norm, layer.final_layer_norm)


# --------------------------------------------------------------------------------------------------------- translation
def load_translator(folder: str | Path, **options):
    """ctranslate2.Translator, made in a thread that ends: quantized weights start OpenMP's threads where they are read, and
    beside those the ones that translate would sleep at every step, as more threads than cores do (5 times slower)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_ctranslate2().Translator, str(folder), **options).result()


class CTranslate2Engine:
    """Translates with an exported folder. CTranslate2 searches with a penalty of its own, length^alpha; its list of
    finished hypotheses is put in the order of the paper's, ((5 + length) / 6)^alpha.

    Args:
        folder: written by `save_for_ctranslate2`.
        threads: on a CPU; None leaves it to CTranslate2.

    Raises:
        UserError: CTranslate2 is not installed, or the folder is no such model.
    """

    def __init__(self, folder: str | Path, device: str = "auto", threads: int | None = None):
        _ctranslate2()  # or the message that it is not installed, before others
        if not (Path(folder) / "model.bin").is_file():
            raise UserError(
                f"{folder} is no model of CTranslate2: write one with scripts/export.py MODEL OUT --to ctranslate2"
            )
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            self.settings = GenerationConfig.from_pretrained(folder)
            self.positions = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["positions"]
            self.translator = load_translator(folder, device=device, intra_threads=threads or 0)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(f"cannot load {folder} with CTranslate2: {' '.join(str(error).split())}") from None

    def translate(
        self,
        sentences: Sequence[str],
        *,
        num_beams: int | None = None,
        n_best: int | None = None,
        max_tokens: int = 4096,
    ) -> list[list[tuple[str, float]]]:
        """The `n_best` translations of each sentence (None: one) with their scores, best first; an empty one stays empty.

        Args:
            num_beams: default: the model's own, or 4.
            max_tokens: padded source tokens in one batch, times beams.
        """
        beams = num_beams or self.settings.num_beams or 4
        alpha = 1.0 if self.settings.length_penalty is None else self.settings.length_penalty
        offset = getattr(self.settings, "max_length_offset", None)
        ids = [self.tokenizer(sentence)["input_ids"][:-1] if sentence.strip() else [] for sentence in sentences]
        results: list[list[tuple[str, float]]] = [[("", 0.0)] for _ in sentences]
        waiting = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: -len(ids[i]))
        while waiting:
            longest = len(ids[waiting[0]]) + 1
            size = max(1, max_tokens // (beams * longest))
            rows, waiting = waiting[:size], waiting[size:]
            found = self.translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(ids[i]) for i in rows],
                beam_size=beams,
                num_hypotheses=beams,
                length_penalty=alpha,
                max_input_length=0,
                patience=PATIENCE if beams > 1 else 1,
                max_decoding_length=min(longest + (50 if offset is None else offset), self.positions),
                min_decoding_length=0,
                return_scores=True,
                return_end_token=True,
            )
            for i, result in zip(rows, found, strict=True):
                results[i] = self._ranked(result, alpha)[: n_best or 1]
        return results

    def _ranked(self, result, alpha: float) -> list[tuple[str, float]]:
        ranked = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            length = len(pieces)  # EOS counted
            total = score * length**alpha
            ids = self.tokenizer.convert_tokens_to_ids(pieces)
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            ended = ids[-1:] == [self.tokenizer.eos_token_id]
            ranked.append((ended, total / ((5 + length) / 6) ** alpha, text))
        ranked.sort(reverse=True)  # one that the limit cuts off counts only where nothing has ended
        return [(text, score) for _, score, text in ranked]


__all__ = ["QUANTIZATIONS", "CTranslate2Engine", "load_translator", "save_for_ctranslate2"]
