"""The paper's tables as data: against models that are built, against the paper's own arithmetic, against the configs."""

import pytest
import torch
from load_script import ROOT

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, paper
from vaswani.run_config import flat, read_config


def sizes(row: paper.Variation) -> dict:
    own = {key: value for key, value in (paper.BASE | row.changes).items() if key != "label_smoothing"}
    return own


@pytest.mark.parametrize("row", paper.TABLE3, ids=lambda row: row.name)
def test_every_model_of_table_3(row):
    """Built without memory: the count of its parameters is the formula's and, rounded to millions, the paper's."""
    options = sizes(row)
    with torch.device("meta"):
        model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=paper.TABLE3_VOCABULARY, **options))
    learned = options["position_encoding"] == "learned"
    formula = {key: options[key] for key in ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v")}
    count = model.num_parameters()
    assert count == paper.parameters(**formula, learned_positions=1024 if learned else 0)
    if row.name == "big":
        assert round(count / 1e6, 1) == 218.3  # the paper prints 213, which needs 36,000 rows
        assert round(paper.parameters(**formula, vocab_size=36_000) / 1e6) == row.parameters
    elif row.parameters:
        assert round(count / 1e6) == row.parameters


@pytest.mark.parametrize("row", paper.TABLE3, ids=lambda row: row.name)
def test_the_config_of_every_row_says_what_the_row_says(row):
    settings = flat(read_config([str(ROOT / "configs" / "table3" / f"{row.name}.yaml")]))
    expected = paper.BASE | row.changes | {"max_steps": row.steps, "vocab_size": 37_000, "tokens_per_batch": 25_000}
    assert {key: settings[key] for key in expected} == expected
    assert (settings["warmup_steps"], settings["lr_factor"], settings["adam_beta2"]) == (4000, 1.0, 0.98)


def test_table_3_holds_all_rows():
    groups = [row.group for row in paper.TABLE3]
    assert {group: groups.count(group) for group in groups} == {
        "base": 1,
        "A": 4,
        "B": 2,
        "C": 7,
        "D": 4,
        "E": 1,
        "big": 1,
    }
    configs = {path.stem for path in (ROOT / "configs" / "table3").glob("*.yaml")}
    assert configs == {row.name for row in paper.TABLE3}
    for row in paper.TABLE3:  # (A) keeps the amount of computation: h * d_k is d_model, as it is in (C) and big
        options = paper.BASE | row.changes
        assert row.group == "B" or options["num_heads"] * options["d_k"] == options["d_model"]


def test_parameters_of_untied_models_and_without_biases():
    options = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 8, "d_v": 8}
    for more in ({"attention_bias": False}, {"tie_word_embeddings": False}):
        model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=100, **options, **more))
        formula = {"attention_bias": more.get("attention_bias", True), "tied": more.get("tie_word_embeddings", True)}
        assert sum(p.numel() for p in model.parameters()) == paper.parameters(vocab_size=100, **options, **formula)


def test_flops():
    assert paper.hardware_flops(12) == pytest.approx(3.3e18, rel=0.01)
    assert paper.hardware_flops(3.5 * 24) == pytest.approx(2.3e19, rel=0.01)
    big = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
    assert paper.model_flops() == pytest.approx(381e6, rel=0.002)
    assert paper.model_flops(**big) == pytest.approx(1291e6, rel=0.002)
    assert paper.model_flops(vocab_size=32_000) == pytest.approx(366e6, rel=0.002)
    assert paper.model_flops(**big, vocab_size=32_000) == pytest.approx(1260e6, rel=0.002)
    # sec. 4: what the runs needed is 3.5 (base) and 2.4 (big) times less than what the hardware could
    assert 3.3e18 / (paper.model_flops() * 25_000 * 100_000) == pytest.approx(3.5, abs=0.05)
    assert 2.3e19 / (paper.model_flops(**big) * 25_000 * 300_000) == pytest.approx(2.4, abs=0.05)


def test_table_1_crosses_at_n_equals_d():
    for n, cheaper in ((100, True), (512, None), (1000, False)):
        ours, theirs = (paper.operations_per_layer(layer, n, 512) for layer in ("self-attention", "recurrent"))
        assert (ours < theirs) is cheaper if cheaper is not None else ours == theirs
    assert len(paper.TABLE1) == 4


def test_headline_numbers():
    scores = {row.model: (row.bleu_en_de, row.bleu_en_fr) for row in paper.TABLE2}
    assert scores["Transformer (base)"] == (27.3, 38.1)
    assert scores["Transformer (big)"] == (28.4, 41.8)
    assert 28.4 - max(row.bleu_en_de or 0 for row in paper.TABLE2[:8]) > 2.0  # the abstract: "by over 2 BLEU"
    assert set(paper.EN_FR_BIG.values()) == {41.8, 41.0, 41.1}
    assert [row.f1 for row in paper.TABLE4 if row.parser.startswith("Transformer")] == [91.3, 92.7]
