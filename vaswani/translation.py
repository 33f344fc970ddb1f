"""Section 6.1: sentences in, sentences out, in batches of similar length."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .batching import by_length
from .run_config import UserError


def load(name: str, device: str | None = None):
    """Model and tokenizer from a run folder, a checkpoint with its tokenizer, or the Hub; on a GPU where there is one.

    Raises:
        UserError: there is no such model, or it is not one that translates.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        asked = "" if Path(name).exists() else " (no folder here, so the Hub was asked)"
        raise UserError(f"cannot load a translation model from {name}{asked}: {reason}") from None
    return model.to(device).eval(), tokenizer


@torch.inference_mode()
def translate(model, tokenizer, sentences: Sequence[str], *, max_tokens: int = 4096, **generate_options) -> list[str]:
    """Translates each sentence by itself; batching by length changes the speed only.

    Args:
        model: a VaswaniForSeq2SeqLM (or any encoder-decoder of transformers).
        tokenizer: the tokenizer saved beside it.
        sentences: raw text, one sentence each.
        max_tokens: padded source positions in one batch, times the number of beams.
        generate_options: for `model.generate`: `num_beams=4`, ...

    Raises:
        ValueError: a sentence holds a lone surrogate, which is not text.
    """
    for number, sentence in enumerate(sentences, start=1):
        if any("\ud800" <= character <= "\udfff" for character in sentence):
            raise ValueError(f"sentence {number} holds a lone surrogate: it is not valid Unicode; remove it")
    translations = [""] * len(sentences)
    full = [i for i, sentence in enumerate(sentences) if sentence.strip()]  # an empty line stays one
    if not full:
        return translations
    was_training = model.training
    model.eval()
    ids = dict(zip(full, tokenizer([sentences[i] for i in full])["input_ids"], strict=True))
    beams = generate_options.get("num_beams") or model.generation_config.num_beams or 1
    for group in by_length(np.array([len(ids[i]) for i in full]), max(1, max_tokens // beams)):
        rows = [full[i] for i in group]
        batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt").to(model.device)
        output = model.generate(**batch, **generate_options)
        for i, text in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[i] = text
    model.train(was_training)
    return translations
