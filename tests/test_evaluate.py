"""scripts/evaluate.py: one command, every score."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import sacrebleu
import torch
from load_script import ROOT, load_script

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.scoring import score_all
from vaswani.text_lines import write_lines
from vaswani.tokenization_vaswani import train_tokenizer

SOURCE = ["The man reads a book in the city.", "Two dogs run home.", "It rains today, they say."]
REFERENCE = ["Der Mann liest in der Stadt ein Buch.", "Zwei Hunde rennen nach Hause.", "Heute regnet es, sagen sie."]
GOOD = ["Der Mann liest in der Stadt ein Buch.", "Zwei Hunde laufen nach Hause.", "Es regnet heute, sagen sie."]
POOR = ["Der Mann.", "Zwei Hunde laufen.", "Es regnet heute."]


@pytest.fixture
def files(tmp_path):
    """A function: `files(source=lines, ...)` writes each and gives the options that name them."""

    def write(**texts: list[str]) -> list[str]:
        options = []
        for name, text in texts.items():
            write_lines(tmp_path / name, text)
            options += [f"--{name}", str(tmp_path / name)]
        return options

    return write


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Untrained: what it says is nonsense, the same each time."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(SOURCE + REFERENCE, 300)
    sizes = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = VaswaniConfig(vocab_size=len(tokenizer), source_lang="en", target_lang="de", **sizes)
    for part in (VaswaniForSeq2SeqLM(config), tokenizer):
        part.save_pretrained(path)
    return str(path)


@pytest.fixture
def evaluate(capsys):
    """A function: runs the script's main; its exit code, output and errors."""
    main = load_script("evaluate").main

    def run(*options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(list(options)), *capsys.readouterr()

    return run


def test_a_model_and_its_translations_have_the_same_scores(evaluate, model, files, tmp_path):
    texts = files(source=SOURCE, reference=REFERENCE)
    options = ["--num_beams", "2", "--generate", "max_new_tokens=6", "length_penalty=0.5", "--json"]
    code, out, _ = evaluate(model, *texts, *options, "--output", str(tmp_path / "hypothesis"))
    assert code == 0
    again = evaluate("--hypothesis", str(tmp_path / "hypothesis"), *texts, "--lang", "de", "--json")
    assert again[0] == 0
    ours, theirs = (text.splitlines() for text in (out, again[1]))
    assert theirs[:-1] == [line for line in ours[:-1] if not line.startswith("  ppl ")] != ours[:-1]
    last, other = json.loads(ours[-1]), json.loads(theirs[-1])
    assert last.pop("ppl") > 1 and other.pop("ppl") is None and last == other
    record = json.loads(out.splitlines()[-1])
    assert record["sentences"] == 3 and record["lang"] == "de" and record["baseline"] == {}
    assert record["sacrebleu"] == record["scores"]["sacrebleu"]["score"]
    assert record["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")


def test_every_score_is_printed_and_explained(evaluate, files):
    code, out, err = evaluate(*files(hypothesis=GOOD, reference=REFERENCE, baseline=POOR), "--lang", "de")
    assert code == 0 and not err
    for name, score in score_all(GOOD, REFERENCE, "de").items():
        assert f"  {name:<17}{score.score:7.2f}  {score.what}\n" in out
        assert score.signature in out
    table = out[out.index("against ") :].splitlines()
    assert (
        len(table) == 3 and "paired bootstrap" in table[0] and "bs:1000" in table[1] and table[2].startswith("  chrF2")
    )


def test_a_model_as_baseline(evaluate, model, files):
    options = ["--baseline", model, "--generate", "max_new_tokens=4", "--json"]
    code, out, _ = evaluate(model, *files(source=SOURCE, reference=REFERENCE), *options)
    comparison = json.loads(out.splitlines()[-1])["baseline"]["BLEU"]
    assert code == 0 and comparison["score"] == comparison["baseline"] and comparison["p_value"] == 1


def test_test_sets_by_name(evaluate, model, files, tmp_path, monkeypatch):
    dataset = sacrebleu.DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path / "wmt14"))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "wmt14" / "raw"))

    def no_network(*_):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    named = ["--testset", "wmt14/full"]
    code, _, err = evaluate(model, *named)
    assert code == 2 and err.startswith(
        "error: cannot get test set wmt14/full: <urlopen error Name or service not known>"
    )
    for field in dataset.fieldnames("en-de"):
        path = tmp_path / "wmt14" / f"wmt14_full.en-de.{field}"
        write_lines(path, {"src": SOURCE, "ref": REFERENCE}.get(field, []))
    code, out, _ = evaluate(*files(hypothesis=GOOD), *named, "--lang", "de")
    assert code == 0 and out.startswith("3 sentences, target language de")
    code, _, err = evaluate(model, *named, "--lang", "xx")
    assert code == 2 and "wmt14/full has no en-xx, but " in err
    code, _, err = evaluate(model, "--testset", "wmt14/ful")
    assert code == 2 and "has no test set 'wmt14/ful': try wmt14/full" in err


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ({"reference": REFERENCE, "hypothesis": GOOD}, [], "the target language is not known: add --lang"),
        ({"reference": REFERENCE, "hypothesis": GOOD[1:]}, ["--lang", "de"], "2 translations but 3 references"),
        ({"reference": REFERENCE, "source": SOURCE[1:]}, ["MODEL"], "2 source lines but 3 references"),
        ({"reference": ["a"] * 2737, "source": ["a"] * 2737}, ["MODEL"], "use wmt14/full"),
        ({"reference": REFERENCE, "hypothesis": ["&quot; x &quot;"] * 3}, ["--lang", "de"], "give plain text"),
        ({"reference": REFERENCE, "source": SOURCE}, ["MODEL", "--generate", "beams=3"], "beams"),
        ({"reference": REFERENCE, "hypothesis": GOOD}, ["--lang", "de", "--baseline", "no/where"], "add --source"),
        ({"reference": REFERENCE, "hypothesis": GOOD, "baseline": GOOD[1:]}, ["--lang", "de"], "2 translations but 3"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_and_code_2(evaluate, model, files, texts, options, message):
    options = [model if option == "MODEL" else option for option in options]
    code, _, err = evaluate(*options, *files(**texts))
    assert code == 2 and err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    ["", "m", "m --split test --testset t", "m --hypothesis h --reference r", "m --reference r", "m --testset t --source s",
     "m --source s --reference r --output no/where/out"],
)  # fmt: skip
def test_incomplete_command_lines(evaluate, options):
    with pytest.raises(SystemExit) as stopped:
        evaluate(*options.split())
    assert stopped.value.code == 2


@pytest.mark.parametrize("options", ["--split test", "--record --source s --reference r"])
def test_what_is_no_model_of_a_run_is_named(evaluate, tmp_path, options):
    code, _, err = evaluate(str(tmp_path), *options.split())
    assert code == 2 and f"{tmp_path} is no model of a run (there is no config.yaml)" in err and err.count("\n") == 1


def test_swapped_source_and_reference_are_warned_of(evaluate, files):
    code, _, err = evaluate(*files(hypothesis=GOOD, source=REFERENCE, reference=SOURCE), "--lang", "en")
    assert code == 0 and err.startswith("warning: the translations look like the source language")


def test_the_script_does_not_hide_the_library_of_its_name(files):
    """Run as `python scripts/evaluate.py`, in its folder: python looks for `import evaluate` there first."""
    script = ROOT / "scripts" / "evaluate.py"
    program = f"""
import runpy, sys
sys.path.insert(0, {str(script.parent)!r})
from vaswani.scoring import VaswaniBleu
import evaluate
assert issubclass(VaswaniBleu, evaluate.Metric) and evaluate.__file__ != {str(script)!r}
sys.argv = [{str(script)!r}, *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    options = [*files(hypothesis=GOOD, reference=REFERENCE), "--lang", "de"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 sentences, target language de\n  paper_bleu ")
