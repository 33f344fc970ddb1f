"""The training benchmark: what it counts, and that every contender takes its turns."""

import argparse
import sys

import numpy as np
import pytest
from load_script import ROOT

sys.path.append(str(ROOT / "scripts"))
from benchmarks import train
from benchmarks.contenders import CONTENDERS, DESCRIPTIONS, Work
from datasets import Dataset


def test_arithmetic_of_a_target_token():
    assert train.flops_per_target_token(train.SIZES["base"], 0.975) / 1e6 == pytest.approx(375, abs=1)
    assert train.flops_per_target_token(train.SIZES["tiny"], 0.975) / 1e6 == pytest.approx(15.5, abs=0.1)


def test_invented_pairs_are_as_long_as_multi30ks():
    source, target = train.invented_pairs(5000)
    lengths = [np.array([len(ids) for ids in side]) for side in (source, target)]
    assert [side.mean() for side in lengths] == pytest.approx([15.0, 15.4], abs=0.3)
    assert np.corrcoef(*lengths)[0, 1] == pytest.approx(0.864, abs=0.03)
    assert all(ids[-1] == 1 and ids[:-1].min(initial=2) >= 2 and ids.max() < 10_000 for ids in source + target)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_trains_and_counts_target_tokens(name):
    counts = []

    class EnoughError(Exception):
        pass

    def turn(tokens: int) -> None:
        counts.append(tokens)
        if len(counts) == 2:
            raise EnoughError

    rows = [[5, 6, 7, 1], [8, 9, 1]] * 20
    sizes = {"vocab_size": 20, "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    options = argparse.Namespace(tokens_per_batch=70, attention=None, compile=False, gradient_checkpointing=False)
    with pytest.raises(EnoughError):
        CONTENDERS[name](Work(sizes, Dataset.from_dict({"input_ids": rows, "labels": rows}), turn, "cpu", options))
    assert all(40 <= tokens <= 100 for tokens in counts)
    assert name in DESCRIPTIONS and (name == "ours" or name in train.RATIOS.values())
