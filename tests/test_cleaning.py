"""Each step drops what it names and nothing else; duplicates are exact; the report counts what was dropped."""

import json

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani import cleaning, plots
from vaswani.cleaning import clean, duplicates, hash_pairs, table
from vaswani.cleaning_steps import KEPT, NGRAM, STEPS, Batch, HeldOut, held_out, letters, reasons
from vaswani.run_config import DataConfig, UserError

TEN = "one two three four five six seven eight nine ten"
HELD = [
    ("Of four words then", "kurz"),
    ("The held-out line is long.", "Die Zeile ist ganz lang."),
    (f"x {TEN} y", "kurz"),
    ("Yes.", "Ja ja ja."),
]


def dataset(pairs: list[tuple[str, str]]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})


def texts(pairs: datasets.Dataset) -> list[tuple[str, str]]:
    return list(zip(pairs["source"], pairs["target"], strict=True))


# the step, its settings, pairs that it drops, pairs that it leaves
EACH = {
    "empty": ({}, [("", "a"), ("a", " \t\u3000"), ("", "")], [("a", "b"), ("\u200b", "."), ("a " * 999, "b")]),
    "too few words": ({"min_words": 3}, [("a b", "a b c"), ("a b c", "  a  ")], [("a b c", "c d e"), ("a-b c d", "e\u3000f g")]),
    "too many words": ({"max_words": 3}, [("a b c d", "a"), ("a", "a b c d ")], [(" a b c ", "d e f"), ("a" * 500, "b")]),
    "length ratio": (
        {"max_ratio": 1.5}, [("a b c d", "a b"), ("a b", "a b c d"), ("a", "b c")], [("a b c", "d e"), ("a b", "c d e"), ("a", "b")],
    ),
    "identical": ({"drop_identical": True}, [("a b", "a b"), ("a  b", " a b ")], [("a b", "A b"), ("a b", "ab"), ("b a", "a b")]),
    "wrong script": (
        {"min_script": 0.5}, [("Это по-русски", "deutsch"), ("english", "Это a"), ("中文", "ok")],
        [("Naïve cafés ½ ª µ", "Œuvre, ſtraße"), ("123 !", "…"), ("The word мир", "das Wort"), ("ab вг", "мм nn")],
    ),
    "overlap": (
        {"drop_overlap": "lines"}, [("the HELD-OUT  line is long.", "x"), ("x", "die zeile ist ganz lang. "), ("Of four words then", "x")],
        [("Yes.", "Ja ja ja."), ("The held-out line is", "x"), ("Die Zeile ist ganz lang.", "x"), (TEN, "x")],
    ),
    "duplicate": ({"drop_duplicates": True}, [("a", "b")], [("b", "a"), ("a", "B"), ("a ", "b"), ("a b", "c")]),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_each_step_drops_what_it_names_and_nothing_else(step):
    changes, dropped, left = EACH[step]
    pairs = [*left, *dropped] if step != "duplicate" else [*dropped, *left, *dropped, *dropped]
    kept, report = clean(dataset(pairs), DataConfig(**changes), [dataset(HELD[:1]), dataset(HELD[1:])])
    assert texts(kept) == (left if step != "duplicate" else [*dropped, *left])
    removed = {name: found["removed"] for name, found in report["steps"].items()}
    assert removed == {"empty": 0} | {step: len(pairs) - len(kept)}


def test_ten_words_in_a_row():
    overlap = {"drop_overlap": "10-grams"}
    for source, dropped in (
        (f"a b c {TEN.upper()} d", True), (TEN, True), (TEN.replace("ten", "x"), False), (f"two {TEN[4:]}", False),
        (" ".join(TEN.split()[1:]) + " y", True), ("The held-out line is long.", True), ("The held-out line is", False),
    ):  # fmt: skip
        kept, _ = clean(dataset([(source, "das")]), DataConfig(**overlap), [dataset(HELD)])
        assert len(kept) == (0 if dropped else 1), source
        assert len(clean(dataset([("das", source)]), DataConfig(**overlap), [dataset(HELD)])[0]) == 1  # by side


WORDS = st.lists(st.sampled_from("ab"), max_size=24)


@settings(max_examples=200, deadline=None)
@given(WORDS, st.lists(WORDS, max_size=3))
def test_shared_ngrams_by_brute_force(words, lines):
    held = HeldOut(frozenset(" ".join(line) for line in lines))
    inside = f" {' '.join(words)} "
    shared = any(
        f" {' '.join(line[i : i + NGRAM])} " in inside for line in lines for i in range(max(len(line) - NGRAM + 1, 0))
    )
    assert held.shares_ngram(words) == shared


def test_the_first_step_that_applies_is_counted():
    pairs = [
        ("", ""),
        ("a", "a"),
        ("a b c d", "a b c d"),
        ("a b", "а б в г"),
        ("a b c", "a b c"),
        ("a b c", "d e f"),
        ("a b c", "d e f"),
    ]
    data = DataConfig(
        min_words=2, max_words=3, max_ratio=1.5, drop_identical=True, min_script=0.5, drop_duplicates=True
    )
    kept, report = clean(dataset(pairs), data)
    assert texts(kept) == [("a b c", "d e f")]
    removed = {name: found["removed"] for name, found in report["steps"].items()}
    assert removed == {
        "empty": 1, "too few words": 1, "too many words": 2, "length ratio": 0, "identical": 1, "wrong script": 0, "duplicate": 1,
    }  # fmt: skip
    pairs[2:4] = [("a b", "a b")]
    assert clean(dataset(pairs), data)[1]["steps"]["identical"]["examples"][0] == {
        "pair": 3,
        "source": "a b",
        "target": "a b",
    }


TEXT = st.one_of(
    st.text(max_size=12), st.lists(st.sampled_from(["a", "b", "где", "x1", "日本"]), max_size=8).map(" ".join)
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8))
def test_a_pair_is_judged_alike_in_any_batch(pairs):
    data = DataConfig(
        min_words=2, max_words=6, max_ratio=2, drop_identical=True, min_script=0.7, drop_overlap="10-grams"
    )
    held = held_out([dataset([("a b a b", "b a b a")])])
    together = reasons(Batch(*map(list, zip(*pairs, strict=True))), data, held)
    assert together.dtype == np.int8
    assert together.tolist() == [int(reasons(Batch([s], [t]), data, held)[0]) for s, t in pairs]
    for (source, target), reason in zip(pairs, together, strict=True):
        lengths = [len(source.split()), len(target.split())]
        assert (reason == STEPS.index("empty")) == (min(lengths) == 0)
        if reason == KEPT:
            assert min(lengths) >= 2 and max(lengths) <= min(6, 2 * min(lengths)) and source.split() != target.split()


# ------------------------------------------------------------------------------------------------------------- duplicates
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xy")), max_size=30),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2**64 - 1)),
    st.integers(1, 5),
    st.data(),
)
def test_duplicates_are_exact_whatever_the_hashes(pairs, values, at_a_time, draw):
    """Pairs are given equal hashes by force; only equal text counts, and of that the first stays."""
    hashes = np.array([values.get(source, 0) for source, _ in pairs], dtype=np.uint64)
    rows = sorted(draw.draw(st.sets(st.integers(0, len(pairs) - 1)))) if pairs else []
    expected = [i in rows and pairs[i] in [pairs[j] for j in rows if j < i] for i in range(len(pairs))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "AT_A_TIME", at_a_time)
        assert duplicates(dataset(pairs), hashes, np.isin(np.arange(len(pairs)), rows)).tolist() == expected
        everywhere = duplicates(dataset(pairs), hashes).tolist()
    assert everywhere == [pair in pairs[:i] for i, pair in enumerate(pairs)]


@given(st.lists(st.tuples(st.text("ab \n", max_size=3), st.text("ab \n", max_size=3)), min_size=1))
def test_equal_pairs_have_equal_hashes(pairs):
    once, again = (hash_pairs(*map(list, zip(*pairs, strict=True))) for _ in range(2))
    assert once.dtype == np.uint64 and (once == again).all()
    assert len(set(once.tolist())) >= len({f"{s}\n{t}" for s, t in pairs})


def test_duplicates_in_a_file_of_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "AT_A_TIME", 100)
    numbers = np.random.default_rng(0).integers(0, 700, 2_000)
    dataset([(f"s{n}", f"t{n}") for n in numbers]).save_to_disk(tmp_path / "raw", num_shards=7)
    raw = datasets.load_from_disk(str(tmp_path / "raw"))
    kept, report = clean(raw, DataConfig(drop_duplicates=True), num_proc=2)
    assert kept["source"][:] == [f"s{n}" for n in dict.fromkeys(numbers.tolist())]
    assert report["steps"]["duplicate"]["removed"] == 2_000 - len(set(numbers.tolist()))


# ------------------------------------------------------------------------------------------------------------- the whole
MANY = [("a b c", "d e f"), ("", "x"), ("a " * 300, "b"), ("same", "same"), ("Это я", "ja"), (f"{TEN} !", "x")] * 40


def test_processes_do_not_change_the_result(tmp_path):
    dataset(MANY).save_to_disk(tmp_path / "raw")
    raw = datasets.load_from_disk(str(tmp_path / "raw"))
    data = DataConfig(max_words=250, drop_identical=True, min_script=0.5, drop_overlap="10-grams", drop_duplicates=True)
    kept, report = clean(raw, data, [dataset(HELD)], num_proc=2)
    alone, alone_report = clean(raw, data, [dataset(HELD)])
    assert texts(kept) == texts(alone) == [("a b c", "d e f")] and report == alone_report
    assert report["read"] == 240 and report["kept"] == 1
    assert sum(step["removed"] for step in report["steps"].values()) == 239


def test_other_columns_stay():
    raw = datasets.Dataset.from_dict({"source": ["a", "", "c"], "target": ["x", "y", "z"], "kind": ["1", "2", "3"]})
    assert clean(raw, None)[0]["kind"][:] == ["1", "3"]


def test_without_settings_only_empty_pairs_go():
    for data in (None, DataConfig()):
        kept, report = clean(dataset(MANY), data, [dataset(HELD)])
        assert texts(kept) == [pair for pair in MANY if pair[0]] and list(report["steps"]) == ["empty"]
    full = dataset(HELD)
    assert clean(full, None)[0] is full


@pytest.mark.parametrize("data", [None, DataConfig(drop_duplicates=True)])
def test_nothing_left_and_nothing_there(data):
    kept, report = clean(dataset([("", "")] * 3), data)
    assert len(kept) == 0 and report["kept"] == 0 and report["read"] == 3
    kept, report = clean(dataset([]), data)
    assert len(kept) == 0 and report["read"] == 0 and "0.00 %" in table(report)


def test_report(tmp_path):
    data = DataConfig(max_words=250, drop_identical=True)
    _, report = clean(dataset(MANY), data)
    assert json.loads(json.dumps(report)) == report
    assert [example["pair"] for example in report["steps"]["empty"]["examples"]] == [2, 116, 236]  # first, middle, last
    (example, *_) = report["steps"]["too many words"]["examples"]
    assert example == {"pair": 3, "source": "a " * 28 + "a...", "target": "b"}
    lengths = report["lengths"]["source"]
    assert sum(lengths["before"]) == 240 and lengths["before"][0] == 40 and lengths["before"][250] == 40
    assert lengths["after"] == [0, 0, 40, 40, *[0] * 7, 40]
    lines = table(report).splitlines()
    assert lines[0].split() == ["read", "240", "100.00", "%"] and lines[-1].split() == ["kept", "120", "50.00", "%"]
    assert lines[1].split() == ["empty", "40", "16.67", "%"] and lines[2].strip() == "2: '' | 'x'"
    plots.length_histograms(report["lengths"], tmp_path / "lengths.png", "words")
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    nothing = clean(dataset([]), None)[1]
    plots.length_histograms(nothing["lengths"], tmp_path / "none.png", "words")


def test_scripts_of_languages():
    for language, own, other in (
        ("en", "é", "ж"), ("ru", "ж", "a"), ("zh", "中", "か"), ("ja", "か", "ж"), ("ko", "한", "か"), ("el", "α", "a"),
        ("ar", "ع", "a"), ("sr", "ж", "a"), ("sr-Latn", "a", "ж"), ("zh_TW", "中", "a"), ("pt-BR", "ã", "ж"), ("hi", "ह", "a"),
    ):  # fmt: skip
        inside, outside = letters(language)
        assert inside.search(own) and not outside.search(own), language
        assert outside.search(other) and not inside.search(other), language
        assert not inside.search("1 – ʹ") and not outside.search("1 – ʹ"), language
    with pytest.raises(UserError, match="no script is known for the language 'q0'"):
        clean(dataset(HELD), DataConfig(target_lang="q0", min_script=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_words": 0}, "min_words=0 must be at least 1"),
        ({"min_words": 5, "max_words": 4}, "max_words=4 is less than min_words=5"),
        ({"max_ratio": 0.5}, "max_ratio=0.5 must be at least 1"),
        ({"min_script": 1.5}, r"min_script=1.5 is a share of letters and must lie in \(0, 1\]"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**changes)
