"""A corpus is prepared once, whole or not at all; every bad input ends with one clear sentence and exit code 2."""

import dataclasses
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from load_script import load_script
from small_corpus import ENGLISH, GERMAN, config, write
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vaswani.corpora import RESOLVED, with_recipe
from vaswani.prepared import load, prepare, processes
from vaswani.run_config import DataConfig, ModelSettings, RunConfig, TrainingConfig, UserError
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.wmt import RECIPES


def test_preparing_writes_tokens_once(folder):
    lines = []
    prepared = prepare(config(folder), lines.append)
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    train = datasets.load_from_disk(str(prepared / "train"))
    assert tokenizer.decode(train[1]["input_ids"], skip_special_tokens=True) == "Two dogs run."
    assert tokenizer.decode(train[1]["labels"], skip_special_tokens=True) == "Zwei Hunde rennen."
    assert train[1]["input_ids"][-1] == train[1]["labels"][-1] == tokenizer.eos_token_id
    assert train["target_length"] == [len(ids) for ids in train["labels"]]
    assert datasets.load_from_disk(str(prepared / "test"))["target"][0] == "Ein Haus."
    report = json.loads((prepared / "report.json").read_text())
    train = report["train"]
    assert train["read"] == 5 and train["removed"] == {"empty": 1, "too long": 0} and train["kept"] == 4
    assert any("empty                      1  20.00 %" in line for line in lines)
    removed = json.loads((prepared / "removed.json").read_text())  # apart: the report of a run quotes no corpus
    assert removed["train"] == {"empty": [{"pair": 3, "source": "", "target": "Leer."}]}
    assert (prepared / "lengths.png").read_bytes().startswith(b"\x89PNG")

    before = sorted(path.stat().st_mtime_ns for path in prepared.rglob("*"))
    assert prepare(config(folder), lines.append) == prepared and "prepared before" in lines[-1]
    assert before == sorted(path.stat().st_mtime_ns for path in prepared.rglob("*"))
    moved = folder / "elsewhere" / folder.name
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("prepared", "elsewhere"))  # other paths, times
    assert prepare(config(moved, prepared_dir=str(folder / "prepared")), lines.append) == prepared
    write(folder / "train.de", [line + "!" for line in GERMAN])
    assert prepare(config(folder), lines.append) != prepared


def test_long_training_pairs_are_dropped_and_counted(folder):
    write(folder / "train.en", [*ENGLISH, "a b c " * 100])
    write(folder / "train.de", [*GERMAN, "y"])
    prepared = prepare(config(folder, max_length=100), print)
    report = json.loads((prepared / "report.json").read_text())
    assert report["train"]["removed"]["too long"] == 1 and report["train"]["kept"] == 4
    saved = datasets.load_from_disk(str(prepared / "train"))
    assert report["train"]["source tokens"] == sum(saved["source_length"]) < 100  # those of the pairs that are left


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in (folder / "prepared").glob("*") if path.suffix not in (".lock", ".json")]


def test_several_processes_prepare_the_same(folder, monkeypatch):
    write(folder / "train.en", [f"The number {i} is written here." for i in range(300)])
    write(folder / "train.de", [f"Die Zahl {i} steht hier." for i in range(300)])
    one = datasets.load_from_disk(str(prepare(config(folder, drop_duplicates=True), print) / "train"))
    monkeypatch.setattr("vaswani.prepared.SHARD", 10)
    data = config(folder, drop_duplicates=True, num_workers=2, prepared_dir=str(folder / "other"))
    two = datasets.load_from_disk(str(prepare(data, print) / "train"))
    assert processes(data, one) == 2 and len(one) == 300
    assert one[:] == two[:]


def test_a_killed_preparation_leaves_nothing_for_the_next(folder, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("vaswani.prepared.vocabulary", killed)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # no chance to tidy up
        with pytest.raises(Killed):
            prepare(config(folder), print)
    assert len(left_behind(folder)) == 1
    prepared = prepare(config(folder, vocab_size=290), print)  # also a preparation of something else tidies up
    assert left_behind(folder) == [prepared.name]


def test_a_second_process_waits_and_takes_the_result(folder):
    program = f"""
from vaswani.prepared import prepare
from vaswani.run_config import DataConfig
if __name__ == "__main__":
    print(prepare(DataConfig(**{vars(config(folder))!r}), lambda *_: None))
"""
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert said[0] == said[1] and [process.returncode for process in both] == [0, 0]
    assert left_behind(folder) == [Path(said[0].strip()).name]


def test_a_tokenizer_can_be_taken_over(folder):
    first = prepare(config(folder), print)
    lines = [line.upper() for line in ENGLISH]
    write(folder / "train.en", lines)
    second = prepare(config(folder, tokenizer=str(first / "tokenizer")), print)
    texts = [(path / "tokenizer" / "tokenizer.json").read_bytes() for path in (first, second)]
    assert texts[0] == texts[1]
    known = json.loads((second / "report.json").read_text())["vocabulary"]
    assert known["taken from"] == str(first / "tokenizer") and known["entries"] == 300 and known["unknown en"] == 0
    before = json.loads((first / "report.json").read_text())["vocabulary"]
    assert known["fertility en"] > before["fertility en"] > 1  # capitals are new to it
    assert before["reserved ids"] == {"<pad>": 0, "</s>": 1} and before["merges"] == 300 - 258
    again = train_tokenizer(["other", "words"] * 9, 300)
    again.save_pretrained(first / "tokenizer")  # another one under the same name
    assert prepare(config(folder, tokenizer=str(first / "tokenizer")), print) != second
    with pytest.raises(UserError, match="nowhere"):
        prepare(config(folder, tokenizer="nowhere"), print)
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), pad_token="<pad>", eos_token="</s>")
    plain.add_tokens(["a"])
    plain.save_pretrained(folder / "plain")
    with pytest.raises(UserError, match="end every sentence with its EOS token"):
        prepare(config(folder, tokenizer=str(folder / "plain")), print)


def test_the_vocabulary_is_learned_from_a_stated_sample(folder):
    write(folder / "train.en", ["common words"] * 99 + ["strange things"])
    write(folder / "train.de", ["wort"] * 100)
    report = json.loads((prepare(config(folder, vocab_sample=10), print) / "report.json").read_text())
    assert report["vocabulary"]["pairs learned from"] == 10


def test_literal_special_tokens_in_a_corpus_are_text(folder):
    write(folder / "train.en", ["A </s> in <pad> text."] * 5)
    prepared = prepare(config(folder), print)
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    ids = datasets.load_from_disk(str(prepared / "train"))[0]["input_ids"]
    assert ids.count(0) == 0 and ids.count(1) == 1
    assert tokenizer.decode(ids[:-1]) == "A </s> in <pad> text."


@pytest.mark.parametrize("what", ["arrow", "tokenizer"])
def test_damaged_prepared_data_is_named(folder, what):
    prepared = prepare(config(folder), print)
    if what == "arrow":
        (path,) = (prepared / "train").glob("*.arrow")
        path.write_bytes(path.read_bytes()[:300])
    else:
        shutil.rmtree(prepared / "tokenizer")
    with pytest.raises(UserError, match=r"is damaged .*: delete it, and it is prepared again"):
        load(prepared)


def test_a_language_is_no_path():
    with pytest.raises(UserError, match="no language code"):
        DataConfig(target_lang="../de")


def test_recipes_by_name(folder):
    recipe = RECIPES["wmt14_en_de"]
    for corpus in recipe.train:
        for name, lines in zip(corpus.members, (ENGLISH, GERMAN), strict=True):
            side = "en" if lines is ENGLISH else "de"
            write(folder / Path(name.format(lang="de", side=side)).name, lines)
    for split in ("valid", "test"):
        corpus = getattr(recipe, split)
        for name, side, text in zip(corpus.members, ("en", "de"), ("Dogs run.", "Hunde."), strict=True):
            segments = "".join(f'<seg id="{i}">{text}</seg>\n' for i in range(1, corpus.lines["de"] + 1))
            path = folder / Path(name.format(lang="de", side=side)).name
            path.write_text(f'<srcset setid="s"><doc docid="d">\n{segments}</doc></srcset>\n')
    data = config(
        folder, train_files=None, valid_files=None, test_files=None, recipe="wmt14_en_de", recipe_source="files"
    )
    report = json.loads((prepare(data, print) / "report.json").read_text())
    assert [corpus["lines"] for corpus in report["corpora"]] == [5, 5, 5, 3000, 3003]
    assert report["train"]["read"] == 15 and report["test"]["kept"] == 3003
    name = next(folder.glob("europarl*.de"))
    write(name, [*GERMAN[:-1], "Es schneit."])
    RESOLVED.clear()  # as another process
    assert json.loads((prepare(data, print) / "report.json").read_text())["test"]["kept"] == 3003
    assert len(left_behind(folder)) == 2  # changed text is another corpus
    for wrong, message in (({"target_lang": "fr"}, "is English and de"), ({"train_files": ["train"]}, "brings its own text"),
                           ({"recipe": "wmt14"}, "choose one of wmt14_en_de")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            prepare(dataclasses.replace(data, **wrong), print)
    config_of_run = RunConfig(
        "", DataConfig(recipe="wmt14_en_fr"), ModelSettings(), TrainingConfig(), frozenset({"max_ratio"})
    )
    filled = with_recipe(config_of_run).data
    assert (filled.target_lang, filled.vocab_size, filled.max_words, filled.max_ratio) == ("fr", 32000, 175, None)
    swapped = datasets.load_from_disk(str(prepare(dataclasses.replace(data, reverse=True), print) / "test"))
    assert swapped[0]["source"] == "Hunde." and swapped[0]["target"] == "Dogs run."


BROKEN = {
    "unequal lines": (lambda f: write(f / "train.de", [*GERMAN, "mehr", "und mehr"]), {}, "train.en has 5 lines but .*train.de has 7"),
    "unequal lines, the other way": (lambda f: write(f / "val.en", [*ENGLISH, "more"]), {}, "val.de has 5 lines but .*val.en has 6"),
    "bad bytes": (lambda f: write(f / "test.de", b"\xc3\x28\n" * 5), {}, "test.de, line 1: byte 0xc3"),
    "empty corpus": (lambda f: [write(f / f"train.{lang}", []) for lang in ("en", "de")], {}, "train text, .*train.en.* has no pair of en and de left"),
    "only empty lines": (lambda f: write(f / "train.en", [" "] * 5), {}, "train text, .*train.en.* has no pair of en and de left"),
    "missing file": (lambda f: (f / "val.de").unlink(), {}, r"there is no file .*val\.de \(nor val\.de\.gz"),
    "missing folder": (lambda f: None, {"data_dir": "/no/such/folder"}, "there is no file|no file"),
    "no gzip": (lambda f: [(f / "train.en").rename(f / "t.en.gz"), write(f / "t.de", GERMAN)], {"train_files": ["t"]}, "cannot read .*t.en.gz"),
    "cut gzip": (
        lambda f: [(f / "t.en.gz").write_bytes(gzip.compress(b"a\n" * 9999)[:-20]), write(f / "t.de", GERMAN)],
        {"train_files": ["t"]}, "cannot read .*t.en.gz",
    ),
    "damaged gzip": (
        lambda f: [
            (f / "t.en.gz").write_bytes(gzip.compress(bytes(range(256)) * 99)[:40] + b"garbage" * 30),
            write(f / "t.de", GERMAN),
        ],
        {"train_files": ["t"]}, "cannot read .*t.en.gz|not UTF-8",
    ),
    "tsv with one column": (lambda f: write(f / "p.tsv", ["a\tb", "only one"]), {"train_files": ["p.tsv"]}, "p.tsv, line 2: 1 column"),
    "tsv with three": (lambda f: write(f / "p.tsv", ["a\tb\tc"]), {"train_files": ["p.tsv"]}, "p.tsv, line 1: 3 column"),
    "three files": (lambda f: None, {"train_files": ["train.en", "train.de", "val.en"]}, "val.en holds one side: the name after it"),
    "nothing named": (lambda f: None, {"valid_files": None}, "names no valid text"),
    "a step that drops everything": (lambda f: None, {"min_words": 99}, r"left \(5 pairs read, 1 dropped: empty, 4 dropped: too few words"),
    "small vocabulary": (lambda f: None, {"vocab_size": 17}, "vocab_size=17 is too small"),
    "all too long": (lambda f: None, {"max_length": 2}, "longer than max_length=2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, case, capsys):
    spoil, changes, message = BROKEN[case]
    spoil(folder)
    settings = {key: value for key, value in vars(config(folder, **changes)).items() if value is not None}
    (folder / "config.yaml").write_text(json.dumps(settings))
    assert load_script("prepare_data").main([str(folder / "config.yaml")]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    with pytest.raises(UserError, match=message):
        prepare(config(folder, **changes), print)
    assert not left_behind(folder)
