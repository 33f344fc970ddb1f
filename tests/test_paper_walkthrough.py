"""The walk through the paper: whole, in parts, quoting the code as it stands, and failing when the model is another."""

import builtins
import contextlib
import io
import re

import pytest
import torch
from load_script import ROOT, load_script

from vaswani import dropout_vaswani, embedding_vaswani, generation_vaswani, loss, modeling_vaswani, optim, paper

NUMBERS = ["3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4", "5.1", "5.3", "5.4", "6", "6.1", "6.2"]
SOURCE = ROOT / "scripts" / "paper_walkthrough.py"


def walk(script, *arguments: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = script.main([*arguments])
    return code, printed.getvalue()


def headings(printed: str) -> list[str]:
    return re.findall(r"^=+\n([\d.]+)  .+\n=+$", printed, re.MULTILINE)


@pytest.fixture(scope="module")
def script():
    return load_script("paper_walkthrough")


@pytest.fixture(scope="module")
def whole(script, tmp_path_factory):
    """Exit code, text and figures of the whole walk."""
    folder = tmp_path_factory.mktemp("figures")
    return *walk(script, "--figures", str(folder)), folder


def test_every_section_is_walked_and_holds(script, whole):
    code, printed, _ = whole
    assert code == 0 and printed.endswith("everything holds\n")
    assert headings(printed) == NUMBERS
    parts = dict(zip(NUMBERS, re.split(r"^=+\n[\d.]+  .+\n=+$", printed, flags=re.MULTILINE)[1:], strict=True))
    for number, part in parts.items():
        assert "  holds: " in part, number
        assert re.search(r"^ +\d+ \| ", part, re.MULTILINE), number


def test_quotes_are_the_lines_of_the_files(whole):
    path, quoted = None, {}
    for line in whole[1].splitlines():
        if named := re.fullmatch(r"  ((?:vaswani|scripts)/\w+\.py)", line):
            path = named[1]
        elif found := re.fullmatch(r" +(\d+) \| (.*)", line):
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
            assert found[2] == lines[int(found[1]) - 1].rstrip()
            quoted[path] = quoted.get(path, 0) + 1
    assert quoted["vaswani/modeling_vaswani.py"] > 40
    assert len(quoted) >= 8


def test_figures_are_drawn(whole):
    names = {path.name for path in whole[2].iterdir() if path.stat().st_size > 10_000}
    assert names == {"positional_encoding.png", "learning_rate.png", "attention.png"}


def test_sections_can_be_chosen(script):
    code, printed = walk(script, "--section", "3.3", "3.2")
    assert code == 0
    assert headings(printed) == ["3.2.1", "3.2.2", "3.2.3", "3.3"]


@pytest.mark.parametrize("number", ["7", "3.", "3.22"])
def test_a_section_that_is_not_there(script, number, capsys):
    assert script.main(["--section", number]) == 2
    assert f"there is no section {number} in the walk: choose from 3.1, 3.2.1" in capsys.readouterr().err


def test_a_quote_that_is_gone(script):
    attend = modeling_vaswani.eager_attention_forward
    for first, last in (("no such line", ""), ("softmax(scores", "no such line"), ("output =", "weights =")):
        with pytest.raises(AssertionError, match="eager_attention_forward has the quoted lines"):
            script.quote(attend, first, last)


def test_cells_run_in_a_notebook(monkeypatch):
    """A cell that defines a section runs it; nothing is read from the command line."""
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    cells = SOURCE.read_text(encoding="utf-8").split("# %%\n")
    namespace = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in [*cells[:4], cells[-1]]:
            exec(compile(cell, SOURCE.name, "exec"), namespace)
    assert headings(printed.getvalue()) == NUMBERS[:2]


# ---------------------------------------------------------------------------------------------- a model that is another
unscaled = property(lambda self: 1.0, lambda self, value: None)


def pre_norm(layer, x, attention_mask, **kwargs):
    x = x + layer.self_attn(layer.self_attn_layer_norm(x), attention_mask=attention_mask)[0]
    return x + layer.fc2(torch.relu(layer.fc1(layer.final_layer_norm(x))))


def without_relu(layer, x):
    return layer.final_layer_norm(x + layer.fc2(layer.fc1(x)))


def one_softmax_for_all_keys(module, query, key, value, attention_mask, scaling, **kwargs):
    weights = (query @ key.transpose(2, 3) * scaling).softmax(-2)  # over the queries
    return (weights @ value).transpose(1, 2).contiguous(), weights


def sines_and_cosines_apart(length, d_model, columns=embedding_vaswani.sinusoids):
    table = columns(length, d_model)
    return torch.cat((table[:, ::2], table[:, 1::2]), dim=-1)


BROKEN = {
    "pre-norm": ("3.1", modeling_vaswani.VaswaniEncoderLayer, "forward", pre_norm),
    "no scaling": ("3.2.1", modeling_vaswani.VaswaniAttention, "scaling", unscaled),
    "softmax over the queries": ("3.2.1", modeling_vaswani, "eager_attention_forward", one_softmax_for_all_keys),
    "no scaling, all heads": ("3.2.2", modeling_vaswani.VaswaniAttention, "scaling", unscaled),
    "no causal mask": ("3.2.3", modeling_vaswani, "create_causal_mask", lambda *args, **kwargs: None),
    "no padding mask": ("3.2.3", modeling_vaswani, "create_bidirectional_mask", lambda *args, **kwargs: None),
    "no ReLU": ("3.3", modeling_vaswani.VaswaniEncoderLayer, "feed_forward", without_relu),
    "embeddings not scaled": ("3.4", embedding_vaswani.VaswaniEmbedding, "forward", torch.nn.Embedding.forward),
    "sines and cosines apart": ("3.5", embedding_vaswani, "sinusoids", sines_and_cosines_apart),
    "no decay": ("5.3", optim, "learning_rate", lambda step, d_model, warmup_steps=4000: min(1, step / warmup_steps)),
    "Adam's usual beta2": ("5.3", optim, "adam", lambda parameters: torch.optim.Adam(parameters, eps=1e-9)),
    "dropout twice": ("5.4", dropout_vaswani.VaswaniDropout, "forward", lambda self, x: x * (torch.rand_like(x) > 0.2)),
    "no smoothing": ("5.4", loss, "spread_over_all", lambda epsilon, spread, vocab_size: 0.0),
    "no length penalty": ("6.1", generation_vaswani.GnmtPenalty, "at", lambda self, length: length / 1),
    "another vocabulary": ("6.2", paper, "TABLE3_VOCABULARY", 37_000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_another_model_does_not_pass(name, monkeypatch):
    number, where, attribute, other = BROKEN[name]
    monkeypatch.setattr(where, attribute, other, raising=other is not unscaled)  # which only objects have
    code, printed = walk(load_script("paper_walkthrough"), "--section", number)
    assert code == 1
    assert "  DOES NOT HOLD: " in printed and printed.endswith(f"does not hold: section {number}\n")
    assert "has the quoted lines" not in printed  # it is the result that is wrong
