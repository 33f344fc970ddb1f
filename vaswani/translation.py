"""Section 6.1: loading a trained model, and sentences in, sentences out."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .cpu import bound_kernel_caches, computes_bf16, computes_int8, keep_freed_memory, large_pages
from .packing_vaswani import packed_linears
from .pipeline_vaswani import VaswaniTranslationPipeline
from .run_config import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"  # of the products with weights alone


def load(name: str, device: str | None = None):
    """Model and tokenizer from a run folder, a checkpoint with its tokenizer, or the Hub; on a GPU where there is one.

    Raises:
        UserError: there is no such model, or it is not one that translates.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(name)
    is_path = folder.is_absolute() or name.startswith(".") or len(folder.parts) > 2
    if not folder.is_dir() and (is_path or (len(folder.parts) == 2 and folder.parent.is_dir())):
        raise UserError(f"there is no folder {name}: give a run folder, or the name of a model on the Hub")
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = " ".join((str(error) or type(error).__name__).split())[:200]
        what = "give a run folder or a model's" if folder.is_dir() else "no folder here, so the Hub was asked"
        raise UserError(f"cannot load a translation model from {name} ({what}): {reason}") from None
    return model.to(device).eval(), tokenizer


def translate(model, tokenizer, sentences: Sequence[str], *, max_tokens: int = 4096, **generate_options) -> list[str]:
    """Translates each sentence by itself; batching by length changes the speed only. The model's mode is kept.

    Args:
        model: a VaswaniForSeq2SeqLM (or any encoder-decoder of transformers).
        tokenizer: the tokenizer saved beside it.
        sentences: raw text, one sentence each; an empty one stays empty.
        max_tokens: padded source positions in one batch, times the number of beams.
        generate_options: for `model.generate`: `num_beams=4`, ...

    Raises:
        ValueError: a sentence holds a lone surrogate, which is not text.
    """
    pipe = VaswaniTranslationPipeline(model, tokenizer, device=model.device)
    was_training = model.training
    model.eval()
    try:
        found = pipe(list(sentences), max_tokens=max_tokens, **generate_options | {"num_return_sequences": 1})
    finally:
        model.train(was_training)
    return [translation["translation_text"] for translation in found]


def set_up_process() -> None:
    """What makes a process that translates fast, before it loads a model."""
    bound_kernel_caches()
    keep_freed_memory()
    large_pages()


def in_arithmetic(model, dtype: str):
    """The model, changed to compute fast in one of `DTYPES` or `INT8`; the latter's products are those of `packed_linears`.

    Raises:
        UserError: int8 is asked for on a GPU or a processor without VNNI, where it is slow or overflows.
    """
    on_cpu = model.device.type == "cpu"
    if dtype == INT8:
        if not on_cpu:
            raise UserError(f"int8 is for CPUs, and the model is on {model.device}: choose float16 or bfloat16")
        if not computes_int8():
            raise UserError("int8 needs a processor with VNNI and PyTorch with oneDNN: choose float32 or bfloat16")
        dtype = "bfloat16" if computes_bf16() else "float32"  # of all else
    if on_cpu and dtype != "float32":
        model.set_attn_implementation("eager")  # sdpa is slow there in half precision
    return model.to(DTYPES[dtype])


class PyTorchEngine:
    """Translates with PyTorch: what `CTranslate2Engine` is for an exported model.

    Args:
        name: a run folder, a checkpoint with its tokenizer, or a model on the Hub.
        dtype: of the weights and the arithmetic, one of `DTYPES`, or `INT8`.

    Raises:
        UserError: there is no such model or dtype, or int8 is asked for where it cannot be had.
    """

    def __init__(self, name: str, device: str | None = None, dtype: str = "float32"):
        if dtype not in (*DTYPES, INT8):
            raise UserError(f"dtype={dtype!r}: choose one of {', '.join((*DTYPES, INT8))}")
        set_up_process()
        model, self.tokenizer = load(name, device)
        self.int8 = dtype == INT8
        self.pipe = VaswaniTranslationPipeline(in_arithmetic(model, dtype), self.tokenizer, device=model.device)
        learned = getattr(model.config, "position_encoding", None) == "learned"
        self.positions = model.config.max_position_embeddings if learned else None  # the longest input

    def translate(
        self,
        sentences: Sequence[str],
        *,
        num_beams: int | None = None,
        n_best: int | None = None,
        max_tokens: int = 4096,
    ) -> list[list[tuple[str, float]]]:
        """The `n_best` translations of each sentence with their scores, best first, or the best alone, whose score is left
        at 0; an empty sentence stays empty."""
        count = n_best or 1
        options = {"num_return_sequences": count, "return_scores": n_best is not None}
        if num_beams:
            options["num_beams"] = num_beams
        with torch.no_grad(), packed_linears(self.pipe.model, self.int8):
            found = self.pipe(list(sentences), max_tokens=max_tokens, **options)
        lists = found if count > 1 else [[result] for result in found]
        return [[(result["translation_text"], result.get("score", 0.0)) for result in results] for results in lists]
