"""Section 6.1: loading a trained model, and sentences in, sentences out."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .pipeline_vaswani import VaswaniTranslationPipeline
from .run_config import UserError


def load(name: str, device: str | None = None):
    """Model and tokenizer from a run folder, a checkpoint with its tokenizer, or the Hub; on a GPU where there is one.

    Raises:
        UserError: there is no such model, or it is not one that translates.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(name)
    if not folder.is_dir() and (folder.is_absolute() or name.startswith(".") or len(folder.parts) > 2):
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
        found = pipe(list(sentences), max_tokens=max_tokens, **generate_options)
    finally:
        model.train(was_training)
    return [translation["translation_text"] for translation in found]
