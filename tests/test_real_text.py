"""Real parallel text, where it lies beside the repository (../shared/data): nothing of it is in the repository."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from load_script import ROOT

from vaswani.batching import TokenBatches
from vaswani.text_lines import read_lines
from vaswani.tokenization_vaswani import train_tokenizer

DATA = Path(os.environ.get("VASWANI_SHARED", ROOT.parent / "shared")) / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="no development data: set VASWANI_SHARED to its folder"),
]


def lines(*names: str, each: int) -> list[str]:
    return [line for name in names for line in itertools.islice(read_lines(DATA / name), each)]


def test_a_hundred_thousand_lines_survive_the_tokenizer():
    texts = lines("en-fr/train.en.xz", "en-fr/train.fr.xz", "en-de/train.en.xz", "en-de/train.de.xz", each=25_000)
    tokenizer = train_tokenizer(texts[::5], 8000)
    assert len(texts) == 100_000
    for start in range(0, len(texts), 1000):
        some = texts[start : start + 1000]
        assert tokenizer.batch_decode(tokenizer(some)["input_ids"], skip_special_tokens=True) == some


@pytest.mark.parametrize("language", ["de", "fr"])
def test_little_padding_on_multi30k(language):
    sides = [lines(f"multi30k/train.{side}.gz", each=29_000) for side in ("en", language)]
    tokenizer = train_tokenizer(itertools.chain(*sides), 10_000)
    source, target = (np.array([len(ids) for ids in tokenizer(side)["input_ids"]]) for side in sides)
    plan = TokenBatches(source, target, tokens_per_batch=4096).plan(0)
    for lengths in (source[plan.order], target[plan.order]):
        padded = np.maximum.reduceat(lengths, plan.starts[:-1]) * np.diff(plan.starts)
        assert 1 - lengths.sum() / padded.sum() < 0.06
