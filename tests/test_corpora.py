"""Every bad input ends with one clear sentence, exit code 2 and nothing half-written."""

import shutil
from collections import Counter

import datasets
import pytest
from small_corpus import ENGLISH, GERMAN, config, write

from vaswani.corpora import read_pairs
from vaswani.prepared import prepare
from vaswani.run_config import DataConfig, UserError
from vaswani.text_lines import read_lines


def pairs(data: DataConfig) -> list[tuple[str, str]]:
    return [(pair["source"], pair["target"]) for pair in read_pairs(data, "train", Counter())]


ALL = list(zip(ENGLISH, GERMAN, strict=True))
KEPT = [(e, g) for e, g in ALL if e]


def test_prefix_two_files_gz_and_tsv_give_the_same_pairs(folder):
    assert pairs(config(folder)) == ALL
    assert pairs(config(folder, train_files=["train.en", "train.de"])) == ALL
    write(folder / "zipped.en.gz", ENGLISH)
    write(folder / "zipped.de.gz", GERMAN)
    assert pairs(config(folder, train_files=["zipped"])) == ALL
    write(folder / "pairs.tsv", [f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)])
    assert pairs(config(folder, train_files=["pairs.tsv"])) == ALL
    write(folder / "blank.tsv", [*(f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)), ""])
    assert pairs(config(folder, train_files=["blank.tsv"])) == [*ALL, ("", "")]
    write(folder / "pairs2.tsv.gz", [f"{e}\t{g}" for e, g in zip(ENGLISH, GERMAN, strict=True)])
    assert pairs(config(folder, train_files=["pairs2.tsv"])) == ALL


def test_the_other_direction(folder):
    swapped = [(g, e) for e, g in ALL]
    assert pairs(config(folder, source_lang="de", target_lang="en")) == swapped
    assert pairs(config(folder, reverse=True)) == swapped
    write(folder / "pairs.tsv", [f"{e}\t{g}" for e, g in ALL])
    assert pairs(config(folder, train_files=["pairs.tsv"], reverse=True)) == swapped  # columns name no language
    assert config(folder, reverse=True).languages == ("de", "en")


def test_several_corpora_are_one_training_set(folder):
    write(folder / "more.en", ["More."])
    write(folder / "more.de", ["Mehr."])
    assert pairs(config(folder, train_files=["train", "more", "train.en", "train.de"])) == [
        *ALL,
        ("More.", "Mehr."),
        *ALL,
    ]


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
    assert pairs(data) == ALL
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
