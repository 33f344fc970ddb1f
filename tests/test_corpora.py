"""Every bad input ends with one clear sentence, exit code 2 and nothing half-written."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import datasets
import pytest
from load_script import load_script
from transformers import AutoTokenizer

from vaswani.corpora import prepare, read_pairs
from vaswani.run_config import DataConfig, UserError
from vaswani.text_lines import read_lines

ENGLISH = ["A house.", "Two dogs run.", "", "The man reads a book.", "It rains."]
GERMAN = ["Ein Haus.", "Zwei Hunde rennen.", "Leer.", "Der Mann liest ein Buch.", "Es regnet."]


def write(path: Path, lines: list[str] | bytes) -> Path:
    data = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path / f"{split}.en", ENGLISH)
        write(tmp_path / f"{split}.de", GERMAN)
    return tmp_path


def config(folder: Path, **changes) -> DataConfig:
    files = {"train_files": ["train"], "valid_files": ["val"], "test_files": ["test"]}
    values = {"data_dir": str(folder), "vocab_size": 300, "prepared_dir": str(folder / "prepared"), **files, **changes}
    return DataConfig(**values)


def pairs(data: DataConfig) -> list[tuple[str, str]]:
    return [(pair["source"], pair["target"]) for pair in read_pairs(data, "train", Counter())]


KEPT = [(e, g) for e, g in zip(ENGLISH, GERMAN, strict=True) if e]


def test_prefix_two_files_gz_and_tsv_give_the_same_pairs(folder):
    assert pairs(config(folder)) == KEPT
    assert pairs(config(folder, train_files=["train.en", "train.de"])) == KEPT
    write(folder / "zipped.en.gz", ENGLISH)
    write(folder / "zipped.de.gz", GERMAN)
    assert pairs(config(folder, train_files=["zipped"])) == KEPT
    write(folder / "pairs.tsv", [f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)])
    assert pairs(config(folder, train_files=["pairs.tsv"])) == KEPT
    write(folder / "blank.tsv", [*(f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)), ""])
    assert pairs(config(folder, train_files=["blank.tsv"])) == KEPT
    write(folder / "pairs2.tsv.gz", [f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)])
    assert pairs(config(folder, train_files=["pairs2.tsv"])) == KEPT


def test_the_other_direction(folder):
    assert pairs(config(folder, source_lang="de", target_lang="en")) == [(g, e) for e, g in KEPT]


def test_only_line_feeds_end_lines(folder):
    write(folder / "train.en", "\ufeffone\u2028still one\r\ntwo\x0b two\x85\r\nthree\x1c".encode())
    write(folder / "train.de", b"eins\r\nzwei\r\ndrei\n")
    assert pairs(config(folder)) == [("one\u2028still one", "eins"), ("two\x0b two\x85", "zwei"), ("three\x1c", "drei")]


@pytest.mark.parametrize("columns", ["languages", "translation"])
def test_dataset_from_disk(folder, columns):
    rows = (
        {"en": ENGLISH, "de": GERMAN}
        if columns == "languages"
        else {"translation": [{"en": e, "de": g} for e, g in zip(ENGLISH, GERMAN, strict=True)]}
    )
    rows = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict(train=rows, validation=rows, test=rows).save_to_disk(folder / "saved")
    data = config(folder, data_dir=None, dataset=str(folder / "saved"))
    assert pairs(data) == KEPT
    prepared = prepare(data, print)
    assert prepared.name.startswith("saved-en-de-") and prepare(data, print) == prepared
    rows = rows.select(range(3))
    shutil.rmtree(folder / "saved")
    datasets.DatasetDict(train=rows, validation=rows, test=rows).save_to_disk(folder / "saved")
    assert prepare(data, print) != prepared  # another corpus under the same name


def test_dataset_of_the_hub_by_name(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"translation": [{"en": e, "de": g} for e, g in KEPT]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = DataConfig(dataset="wmt/wmt14", dataset_config="de-en")
    assert pairs(data) == KEPT
    assert [p["target"] for p in read_pairs(data, "valid", Counter())] == [g for _, g in KEPT]
    assert asked == [("wmt/wmt14", "de-en", "train"), ("wmt/wmt14", "de-en", "validation")]


def test_dataset_errors(folder):
    rows = datasets.Dataset.from_dict({"fr": ["x"], "de": ["y"]})
    rows.save_to_disk(folder / "one")
    with pytest.raises(UserError, match="one split only, and the test set must not be the training set"):
        pairs(DataConfig(dataset=str(folder / "one")))
    datasets.DatasetDict(train=rows).save_to_disk(folder / "saved")
    with pytest.raises(UserError, match=r"has the columns \['fr', 'de'\]"):
        pairs(DataConfig(dataset=str(folder / "saved")))
    rows = datasets.Dataset.from_dict(
        {"en": ["x"], "de": [None]},
        features=datasets.Features({"en": datasets.Value("string"), "de": datasets.Value("string")}),
    )
    datasets.DatasetDict(train=rows).save_to_disk(folder / "saved2")
    with pytest.raises(UserError, match="row without text"):
        pairs(DataConfig(dataset=str(folder / "saved2")))
    with pytest.raises(UserError, match=r"no split 'validation': set valid_split to one of \['train'\]"):
        list(read_pairs(DataConfig(dataset=str(folder / "saved2")), "valid", Counter()))
    with pytest.raises(UserError, match="cannot load dataset no/such_dataset"):
        pairs(DataConfig(dataset="no/such_dataset"))


def test_bad_utf8_is_named_skipped_or_replaced(folder):
    write(folder / "train.en", b"fine\nbroken \xff here\nfine too\n")
    write(folder / "train.de", ["gut", "kaputt", "auch gut"])
    with pytest.raises(UserError, match=r"train\.en, line 2: byte 0xff at position 7 is not UTF-8"):
        pairs(config(folder))
    counts = Counter()
    kept = list(read_pairs(config(folder, on_bad_utf8="skip"), "train", counts))
    assert [pair["target"] for pair in kept] == ["gut", "auch gut"] and counts["bad UTF-8: skip"] == 1
    assert pairs(config(folder, on_bad_utf8="replace"))[1] == ("broken \ufffd here", "kaputt")


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
    assert report["train"]["read"] == 5 and report["train"]["empty"] == 1 and report["train"]["kept"] == 4
    assert any("1 empty" in line for line in lines)

    before = sorted(path.stat().st_mtime_ns for path in prepared.rglob("*"))
    assert prepare(config(folder), lines.append) == prepared and "prepared before" in lines[-1]
    assert before == sorted(path.stat().st_mtime_ns for path in prepared.rglob("*"))
    write(folder / "train.de", [line + "!" for line in GERMAN])
    assert prepare(config(folder), lines.append) != prepared


def test_long_training_pairs_are_dropped_and_counted(folder):
    write(folder / "train.en", [*ENGLISH, "a b c " * 100])
    write(folder / "train.de", [*GERMAN, "y"])
    prepared = prepare(config(folder, max_length=100), print)
    report = json.loads((prepared / "report.json").read_text())
    assert report["train"]["too long"] == 1 and report["train"]["kept"] == 4


BROKEN = {
    "unequal lines": (lambda f: write(f / "train.de", [*GERMAN, "mehr", "und mehr"]), {}, "train.en has 5 lines but .*train.de has 7"),
    "unequal lines, the other way": (lambda f: write(f / "val.en", [*ENGLISH, "more"]), {}, "val.de has 5 lines but .*val.en has 6"),
    "bad bytes": (lambda f: write(f / "test.de", b"\xc3\x28\n" * 5), {}, "test.de, line 1: byte 0xc3"),
    "empty corpus": (lambda f: [write(f / f"train.{lang}", []) for lang in ("en", "de")], {}, "train text, .*train.en.* has no pair with text on both sides"),
    "only empty lines": (lambda f: write(f / "train.en", [" "] * 5), {}, "train text, .*train.en.* has no pair with text on both sides"),
    "missing file": (lambda f: (f / "val.de").unlink(), {}, r"there is no file .*val\.de \(nor val\.de\.gz"),
    "missing folder": (lambda f: None, {"data_dir": "/no/such/folder"}, "there is no file"),
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
    assert not list((folder / "prepared").glob("*")) and not list((folder / "prepared").glob(".*"))


def test_read_lines_of_a_folder(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        list(read_lines(tmp_path))


def test_embedded_corpus_goes_both_ways(tmp_path):
    forth = list(read_pairs(DataConfig(dataset="cldr"), "valid", Counter()))
    back = list(read_pairs(DataConfig(dataset="cldr", source_lang="de", target_lang="en"), "valid", Counter()))
    assert [(p["source"], p["target"]) for p in forth] == [(p["target"], p["source"]) for p in back]
    assert {pair["kind"] for pair in forth} == {"number", "date", "name"}
    with pytest.raises(UserError, match="only English and German"):
        list(read_pairs(DataConfig(dataset="cldr", target_lang="fr"), "valid", Counter()))
