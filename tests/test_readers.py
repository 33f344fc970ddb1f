"""Text as people have it: whatever the file holds, source n stays beside target n, and what was mended is counted."""

import bz2
import gzip
import json
import lzma
import tracemalloc
import unicodedata
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from vaswani.readers import group_files, read_pairs
from vaswani.run_config import UserError
from vaswani.text_lines import write_lines

PAIRS = [
    ("A house.", "Ein Haus."),
    ("Two dogs & a <cat>.", "Zwei Hunde & eine <Katze>."),
    ("It rains.", "Es regnet – schön."),
]


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstd}


def read(folder: Path, *names: str, source="en", target="de", on_bad_utf8="error", form="none", counts=None) -> list:
    counts = Counter() if counts is None else counts
    groups = group_files(list(names), folder, source, target)
    return [pair for files in groups for pair in read_pairs(files, source, target, on_bad_utf8, form, counts)]


def aligned(folder: Path, source: bytes, target: bytes) -> None:
    (folder / "x.en").write_bytes(source)
    (folder / "x.de").write_bytes(target)


# ------------------------------------------------------------------------------------------------------------- nastiness
IN_LINE = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj"  # everything but LF at which str.splitlines() divides
DECOMPOSED = unicodedata.normalize("NFD", "schön")

# source, target, options, pairs, counts
NASTY = {
    "line breaks of Unicode": (
        f"one\n{IN_LINE}\nlast\n", "eins\nzwei\nende\n", {}, [("one", "eins"), (IN_LINE, "zwei"), ("last", "ende")], {},
    ),
    "BOM": ("\ufeffone\n\ufefftwo\n", "\ufeffeins\nzwei\n", {}, [("one", "eins"), ("\ufefftwo", "zwei")], {"byte order marks removed": 2}),
    "CRLF on one side": ("one\r\ntwo\r\n", "eins\nzwei\n", {}, [("one", "eins"), ("two", "zwei")], {"CRLF line ends": 2}),
    "CR CR LF": ("one\r\r\n", "eins\r \n", {}, [("one\r", "eins\r ")], {"CRLF line ends": 1}),
    "no LF at the end": ("one\ntwo", "eins\nzwei\n", {}, [("one", "eins"), ("two", "zwei")], {}),
    "NUL": ("o\0n\0e\ntwo\n", "eins\n\0\n", {}, [("one", "eins"), ("two", "")], {"NUL characters removed": 3}),
    "blank line within": ("one\n\nthree\n", "eins\nzwei\ndrei\n", {}, [("one", "eins"), ("", "zwei"), ("three", "drei")], {}),
    "blank lines at the end": (
        "one\ntwo\n", "eins\nzwei\n\n \t\n\u3000\n", {}, [("one", "eins"), ("two", "zwei")],
        {"blank lines at the end of one side": 3},
    ),
    "NFD left": (f"one\n{DECOMPOSED}\n", "eins\nschön\n", {}, [("one", "eins"), (DECOMPOSED, "schön")], {"not in NFC, left so": 1}),
    "NFD into NFC": (f"one\n{DECOMPOSED}\n", "eins\nschön\n", {"form": "NFC"}, [("one", "eins"), ("schön", "schön")], {"put in NFC": 1}),
    "NFKC": ("ﬁne\nx²\n", "a\nb\n", {"form": "NFKC"}, [("fine", "a"), ("x2", "b")], {"put in NFKC": 2}),
    "bad UTF-8 skipped": (
        b"one\ntw\xff\nthree\n", "eins\nzwei\ndrei\n", {"on_bad_utf8": "skip"},
        [("one", "eins"), (None, "zwei"), ("three", "drei")], {"bad UTF-8: skip": 1},
    ),
    "bad UTF-8 replaced": (
        b"one\ntw\xff\n", b"eins\n\xed\xa0\x80\n", {"on_bad_utf8": "replace"},
        [("one", "eins"), ("tw\ufffd", "\ufffd\ufffd\ufffd")], {"bad UTF-8: replace": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("case", NASTY)
def test_nasty_text_keeps_its_alignment_and_is_counted(tmp_path, case, suffix):
    source, target, options, pairs, expected = NASTY[case]
    for lang, text in (("en", source), ("de", target)):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / f"x.{lang}{suffix}").write_bytes(COMPRESS[suffix](data))
    counts = Counter()
    assert read(tmp_path, "x", counts=counts, **options) == pairs
    assert counts == expected


REFUSED = {
    "bad byte": (b"one\ntw\xff\n", b"eins\nzwei\n", r"x\.en, line 2: byte 0xff at position 2 is not UTF-8; convert"),
    "surrogates in bytes": (b"one\n", b"\xed\xa0\x80\n", r"x\.de, line 1: byte 0xed"),
    "UTF-16": ("one\n".encode("utf-16"), b"eins\n", r"x\.en, line 1: byte 0x.. at position . is not UTF-8"),
    "nothing on one side": (b"", b"eins\n", r"x\.en is empty, .*x\.de is not"),
    "a line too many": (b"one\n", b"eins\n\nzwei\n", r"x\.en has 1 lines but .*x\.de has 3: line n"),
    "a line too many, the other way": (b"one\ntwo\n", b"eins\n", r"x\.de has 1 lines but .*x\.en has 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_text_is_named(tmp_path, case):
    source, target, message = REFUSED[case]
    aligned(tmp_path, source, target)
    with pytest.raises(UserError, match=message):
        read(tmp_path, "x")


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
@pytest.mark.parametrize("damage", ["cut", "plain"])
def test_damaged_compression_is_one_sentence(tmp_path, suffix, damage):
    text = b"".join(b"%d\n" % i for i in range(20_000))
    (tmp_path / "x.de").write_bytes(text)
    (tmp_path / f"x.en{suffix}").write_bytes(text if damage == "plain" else COMPRESS[suffix](text)[:-30])
    with pytest.raises(
        UserError, match=rf"cannot read .*x\.en{suffix}: .*is it whole, and compressed as its name says"
    ):
        read(tmp_path, "x")


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_files_compressed_in_parts_are_read_to_the_end(tmp_path, suffix):
    (tmp_path / f"x.en{suffix}").write_bytes(COMPRESS[suffix](b"one\nt") + COMPRESS[suffix](b"wo\nthree\n"))
    (tmp_path / "x.de").write_bytes(b"1\n2\n3\n")
    assert [source for source, _ in read(tmp_path, "x")] == ["one", "two", "three"]


TEXT = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])).filter(
    lambda text: not text.startswith("\ufeff") and not text.endswith("\r")
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT)))
def test_what_was_written_is_read(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("text")
    for i, lang in enumerate(("en", "de")):
        write_lines(folder / f"x.{lang}", [pair[i] for pair in pairs])
    jsonl(folder / "x.jsonl", [{"en": source, "de": target} for source, target in pairs])
    parquet.write_table(
        pa.table({"en": [p[0] for p in pairs], "de": [p[1] for p in pairs]}, TYPES), folder / "x.parquet"
    )
    for name in ("x", "x.jsonl", "x.parquet"):
        assert read(folder, name) == pairs


# ---------------------------------------------------------------------------------------------------------------- formats
TYPES = pa.schema({"en": pa.string(), "de": pa.string()})


def jsonl(path: Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tmx(path: Path, units: str, head: str = '<?xml version="1.0"?>', encoding: str = "utf-8") -> None:
    path.write_text(f'{head}\n<tmx version="1.4"><header/><body>{units}</body></tmx>', encoding=encoding)


def unit(**segments: str) -> str:
    sides = "".join(f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>' for lang, text in segments.items())
    return f"<tu>\n{sides}</tu>"


def sgm(path: Path, kind: str, documents: dict[str, list[str]]) -> None:
    docs = ""
    for name, texts in documents.items():
        segs = "\n".join(f'<seg id="{i}"> {escape(text)} </seg>' for i, text in enumerate(texts, start=1))
        docs += f'<doc sysid="x" docid={quoteattr(name)} genre="news">\n<p>\n{segs}\n</p>\n</doc>\n'
    path.write_text(f'<{kind} setid="newstest2014" srclang="any">\n{docs}</{kind}>\n')


def write_all_formats(folder: Path) -> list[str]:
    for i, lang in enumerate(("en", "de")):
        write_lines(folder / f"plain.{lang}", [pair[i] for pair in PAIRS])
        texts = [pair[i] for pair in PAIRS]
        for kind in ("src", "ref"):  # as WMT gives them: both languages in both roles
            sgm(folder / f"set-{kind}.{lang}.sgm", kind + "set", {"a": texts[:1], "b": texts[1:]})
    write_lines(folder / "t.tsv", ["\t".join(pair) for pair in PAIRS])
    dicts = [{"en": source, "de": target, "fr": "x", "id": 1} for source, target in PAIRS]
    jsonl(folder / "languages.jsonl", dicts)
    jsonl(folder / "translation.jsonl", [{"translation": row} for row in dicts])
    parquet.write_table(pa.Table.from_pylist(dicts), folder / "languages.parquet")
    parquet.write_table(
        pa.table({"translation": dicts, "de": [1, 2, 3]}), folder / "translation.parquet", row_group_size=2
    )
    tmx(folder / "t.tmx", "".join(unit(de=escape(target), en=escape(source)) for source, target in PAIRS))
    return ["plain", "set", "languages.jsonl", "translation.jsonl", "languages.parquet", "translation.parquet", "t.tmx"]


def test_every_format_gives_the_same_pairs_either_way(tmp_path):
    names = write_all_formats(tmp_path)
    for name in names:
        assert read(tmp_path, name) == PAIRS, name
        assert read(tmp_path, name, source="de", target="en") == [(t, s) for s, t in PAIRS], name
    assert read(tmp_path, "t.tsv") == PAIRS
    for name in ("t.tsv", "languages.jsonl", "t.tmx"):
        for suffix, compress in COMPRESS.items():
            (tmp_path / f"z.{suffix}.{name}{suffix}").write_bytes(compress((tmp_path / name).read_bytes()))
            assert read(tmp_path, f"z.{suffix}.{name}") == read(tmp_path, f"z.{suffix}.{name}{suffix}") == PAIRS


def test_columns_named_source_and_target_go_the_way_they_say(tmp_path):
    rows = [{"source": source, "target": target} for source, target in PAIRS]
    jsonl(tmp_path / "x.jsonl", rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert read(tmp_path, "x.jsonl", "x.parquet") == PAIRS + PAIRS


def test_several_corpora_are_read_one_after_another(tmp_path):
    names = write_all_formats(tmp_path)
    assert read(tmp_path, *names, "plain.en", "plain.de", "t.tsv") == PAIRS * 9


def test_line_feeds_inside_a_text_become_spaces(tmp_path):
    jsonl(tmp_path / "x.jsonl", [{"en": "one\r\n  two\n\nthree", "de": "eins"}])
    tmx(
        tmp_path / "x.tmx",
        "<tu><tuv lang='en'><seg>\n  one\n  two\n</seg></tuv><tuv lang='de'><seg>eins</seg></tuv></tu>",
    )
    counts = Counter()
    assert read(tmp_path, "x.jsonl", "x.tmx", counts=counts) == [("one two three", "eins"), ("one two", "eins")]
    assert counts == {"texts of several lines joined": 2}


def test_lone_surrogates_of_json_follow_the_policy(tmp_path):
    (tmp_path / "x.jsonl").write_text(
        '{"en": "\\ud83d\\ude00 one", "de": "ei\\ud800ns"}\n\n{"en": "two", "de": "zwei"}\n'
    )
    with pytest.raises(
        UserError, match=r"x\.jsonl, line 1: U\+D800, half of a surrogate pair, at position 2 is not UTF-8"
    ):
        read(tmp_path, "x.jsonl")
    for policy, german in (("skip", None), ("replace", "ei\ufffdns")):
        counts = Counter()
        pairs = read(tmp_path, "x.jsonl", on_bad_utf8=policy, counts=counts)
        assert pairs == [("😀 one", german), ("two", "zwei")] and counts["bad UTF-8: " + policy] == 1


def test_bad_bytes_follow_the_policy_in_every_format(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b"o\xffne\teins\ntwo\tzwei\n")
    (tmp_path / "x.jsonl").write_bytes(b'{"en": "o\xffne", "de": "eins"}\n{"en": "two", "de": "zwei"}\n')
    units = (unit(en="o?ne", de="eins") + unit(en="two", de="zwei")).encode().replace(b"?", b"\xff")
    (tmp_path / "x.tmx").write_bytes(b"<tmx>\n<body>" + units + b"</body></tmx>")
    texts = pa.array([b"o\xffne", b"two"]).view(pa.string())
    parquet.write_table(pa.table({"en": texts, "de": ["eins", "zwei"]}), tmp_path / "x.parquet")
    for name, where in (("x.tsv", "line 1"), ("x.jsonl", "line 1"), ("x.tmx", "line 3"), ("x.parquet", "row 1")):
        with pytest.raises(UserError, match=rf"{name}, {where}: byte 0xff .*is not UTF-8; convert"):
            read(tmp_path, name)
        counts = Counter()
        assert read(tmp_path, name, on_bad_utf8="replace", counts=counts) == [("o\ufffdne", "eins"), ("two", "zwei")]
        assert counts == {"bad UTF-8: replace": 1}
        first, second = read(tmp_path, name, on_bad_utf8="skip", counts=counts)
        assert None in first and second == ("two", "zwei") and counts["bad UTF-8: skip"] == 1


# -------------------------------------------------------------------------------------------------------------------- TMX
def test_languages_of_a_translation_memory(tmp_path):
    tmx(
        tmp_path / "x.tmx",
        unit(**{"EN-us": "color", "en-GB": "colour", "DE": "Farbe"})
        + unit(**{"EN-us": "gray", "en": "grey", "de-AT": "grau"})
        + unit(en="alone", fr="seul")
        + unit(fr="deux", eng="other"),
    )
    counts = Counter()
    assert read(tmp_path, "x.tmx", counts=counts) == [("color", "Farbe"), ("grey", "grau")]
    assert counts == {"units without de": 1, "units without en and de": 1}
    assert read(tmp_path, "x.tmx", source="en_GB") == [("colour", "Farbe"), ("gray", "grau")]


def test_inline_tags_vanish_and_their_text_stays(tmp_path):
    tmx(tmp_path / "x.tmx", unit(
        en='Press <bpt i="1">&lt;b&gt;</bpt>OK<ept i="1">&lt;/b&gt;</ept> <hi>now <hi>or</hi></hi> never<ph x="1"/>&#33;',
        de="Jetzt &amp; hier &lt;<!-- not this -->&gt;<![CDATA[<x>]]>",
    ))  # fmt: skip
    assert read(tmp_path, "x.tmx") == [("Press OK now or never!", "Jetzt & hier <><x>")]


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1", "utf-8-sig"])
def test_translation_memories_in_other_encodings(tmp_path, encoding):
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    tmx(tmp_path / "x.tmx", unit(en="Why?", de="Schön"), head, encoding)
    assert read(tmp_path, "x.tmx") == [("Why?", "Schön")]


BILLION_LAUGHS = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
BROKEN_XML = {
    "billion laughs": (BILLION_LAUGHS, "&b;", r"uses an entity of its own, &a;, which is not read"),
    "another file": ('<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/hostname">]>', "&x;", "entity of its own, &x;"),
    "parameter entity": ('<!DOCTYPE tmx [<!ENTITY % x SYSTEM "file:///etc/hostname"> %x;]>', "x", "entity of its own, &x;"),
    "entity of an unread DTD": ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', "a&eacute;b", "entity of its own, &eacute;"),
    "unknown entity": ("", "a&eacute;b", "not well-formed XML: undefined entity: line 3"),
    "a bare ampersand": ("", "a & b", "not well-formed XML"),
    "unknown encoding": ('<?xml version="1.0" encoding="klingon"?>', "x", "declares the encoding klingon"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_XML)
def test_dangerous_and_broken_xml_is_refused(tmp_path, case):
    head, text, message = BROKEN_XML[case]
    tmx(tmp_path / "x.tmx", unit(en=text, de="x"), head)
    with pytest.raises(UserError, match=message):
        read(tmp_path, "x.tmx")


def test_a_cut_translation_memory_is_refused(tmp_path):
    tmx(tmp_path / "x.tmx", unit(en="one", de="eins"))
    (tmp_path / "x.tmx").write_bytes((tmp_path / "x.tmx").read_bytes()[:-20])
    with pytest.raises(UserError, match="not well-formed XML: unclosed token"):
        read(tmp_path, "x.tmx")


def test_translation_memories_are_read_in_bounded_memory(tmp_path):
    (tmp_path / "x.tmx").write_text(f"<tmx><body>{unit(en='one ' * 300, de='eins ' * 300) * 2_000}</body></tmx>")
    groups = group_files(["x.tmx"], tmp_path, "en", "de")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(groups[0], "en", "de", "error", "none", Counter())) == 2_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 < (tmp_path / "x.tmx").stat().st_size
    finally:
        tracemalloc.stop()


# -------------------------------------------------------------------------------------------------------------- test sets
def test_segments_are_matched_by_document_and_number(tmp_path):
    sgm(tmp_path / "s-src.en.sgm", "srcset", {"a": ["one", "two"], "b & c": ["AT&T <three>"]})
    sgm(tmp_path / "s-ref.de.sgm", "refset", {"b & c": ["drei"], "a": ["eins", "zwei"]})
    expected = [("one", "eins"), ("two", "zwei"), ("AT&T <three>", "drei")]
    assert read(tmp_path, "s") == read(tmp_path, "s-src.en.sgm", "s-ref.de.sgm") == expected
    raw = "<DOC docid=a><hl><SEG id=1>x &quot;&#228;&apos; &copy=1 &amp;lt;</SEG></hl></DOC>"
    (tmp_path / "t-src.en.sgm").write_text(raw)
    (tmp_path / "t-ref.de.sgm").write_text(raw.replace("x", "\n y"))
    assert read(tmp_path, "t") == [("x \"ä' &copy=1 &lt;", "y \"ä' &copy=1 &lt;")]


def test_sides_that_are_not_of_one_test_set_are_refused(tmp_path):
    sgm(tmp_path / "s-src.en.sgm", "srcset", {"a": ["one", "two"]})
    for documents, message in (
        (
            {"a": ["eins"]},
            r"src\.en\.sgm has segments that .*ref\.de\.sgm has not, 1 of 2, .* document 'a' segment '2'",
        ),
        ({"a": ["eins", "zwei", "drei"]}, r"ref\.de\.sgm has segments that .*src\.en\.sgm has not, 1 of 3"),
        ({"b": ["eins", "zwei"]}, "are they the two sides of one test set"),
        ({}, "has no <seg>"),
    ):
        sgm(tmp_path / "s-ref.de.sgm", "refset", documents)
        with pytest.raises(UserError, match=message):
            read(tmp_path, "s")
    (tmp_path / "s-ref.de.sgm").write_text(
        '<doc docid="a"><seg id="1">x</seg></doc><doc docid="a"><seg id="1">y</seg></doc>'
    )
    with pytest.raises(UserError, match="document 'a' segment '1' twice"):
        read(tmp_path, "s")


# ------------------------------------------------------------------------------------------------------------------ names
def test_names_become_groups_of_files(tmp_path):
    for name in ("a.en", "a.de.xz", "b.en.gz", "b.de", "c.tsv.zst", "one", "two", "train"):
        (tmp_path / name).touch()
    names = ["a", "b.de", "b.en.gz", "c.tsv", "one", "two", "a.en", "a.de"]
    groups = group_files(names, tmp_path, "en", "de")
    found = [tuple(path.name for path in files) for files in groups]
    ordered = ("b.en.gz", "b.de")  # by their language, not as they were named
    assert found == [("a.en", "a.de.xz"), ordered, ("c.tsv.zst",), ("one", "two"), ("a.en", "a.de.xz")]
    assert group_files(["a"], tmp_path, "de", "en") == [(tmp_path / "a.de.xz", tmp_path / "a.en")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["one"], "one holds one side: the name after it must be that of its translation"),
        (["one", "c.tsv"], "one holds one side"),
        (["one", "three"], r"there is no file .*three \(nor three\.gz, \.xz, \.bz2, \.zst beside it\)"),
        (["nothing"], r"there is no file .*nothing, nor the pair nothing\.en and nothing\.de"),
        (["half"], r"there is no file .*half\.de \(nor half\.de\.gz"),
        (["no.tmx"], r"there is no file .*no\.tmx"),
        (["one", "s.de.sgm"], "a test set in SGM needs the other side in SGM too"),
    ],
)
def test_names_without_files(tmp_path, names, message):
    for name in ("one", "half.en", "c.tsv", "s.de.sgm"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        group_files(names, tmp_path, "en", "de")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.tsv", b"a\tb\nc\n", r"x\.tsv, line 2: 1 column\(s\)"),
        ("x.tsv", b"a\tb\tc\n", r"x\.tsv, line 1: 3 column\(s\)"),
        ("x.jsonl", b'{"en": "a", "de": "b"}\n{"en": \n', r"x\.jsonl, line 2: no JSON object"),
        ("x.jsonl", b"[" * 100_000, r"x\.jsonl, line 1: no JSON object"),
        ("x.jsonl", b'["a", "b"]\n', r"x\.jsonl, line 1: no text for en and de"),
        ("x.jsonl", b'{"en": "a", "fr": "b"}\n', r"line 1: no text for en and de, nor for source and target: .*'fr'"),
        ("x.jsonl", b'{"translation": {"en": "a", "de": null}}\n', "no text for en and de"),
        ("x.parquet", b"no", r"cannot read .*x\.parquet as Parquet"),
    ],
)
def test_broken_tables_are_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        read(tmp_path, name)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"en": ["a"], "fr": ["b"]}, r"has the columns \['en', 'fr'\]: neither"),
        ({"en": ["a"], "de": [1]}, "as Parquet with text columns"),
        ({"en": ["a", None], "de": ["b", "c"]}, r"x\.parquet, row 2: no text for en and de"),
        ({"translation": [{"en": "a", "fr": "b"}]}, "as Parquet with text columns"),
    ],
)
def test_parquet_without_the_text(tmp_path, columns, message):
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=message):
        read(tmp_path, "x.parquet")
