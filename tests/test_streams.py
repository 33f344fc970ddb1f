import threading
from collections import Counter

import pytest

from vaswani.streams import as_they_arrive, cut_to_length, named
from vaswani.text_lines import decode_lines
from vaswani.tokenization_vaswani import train_tokenizer


def test_lines_come_as_they_arrive():
    """A line that is there is passed on before the next one is; what has piled up comes together."""
    gate = threading.Semaphore(0)

    def typed():
        for line in ("a", "b"):
            gate.acquire()
            yield line
        yield from (str(i) for i in range(25))

    windows = as_they_arrive(typed(), most=10)
    gate.release()
    assert next(windows) == ["a"]
    gate.release()
    rest = list(windows)
    assert [line for window in rest for line in window] == ["b", *(str(i) for i in range(25))]
    assert all(0 < len(window) <= 10 for window in rest)


def test_errors_and_the_end():
    def broken():
        yield "a"
        raise ValueError("no more")

    windows = as_they_arrive(broken(), most=10)
    with pytest.raises(ValueError, match="no more"):
        assert [line for window in windows for line in window] == ["a"]
    assert list(as_they_arrive([], most=3)) == []


def test_each_fault_of_a_line_is_named_there(capsys):
    counts = Counter()
    lines = [b"\xef\xbb\xbfone\r\n", b"two\r\n", b"th\0ree\n", b"four\n"]
    assert list(named(decode_lines(lines, "x", "replace", counts), counts)) == ["one", "two", "three", "four"]
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "line 1: CRLF line ends, byte order marks removed",
        "line 2: CRLF line ends",
        "line 3: NUL characters removed",
    ]


def test_faulty_lines_are_named(capsys):
    counts = Counter()
    lines = [b"fine\n", b"bad \xff\n", b"fine\n", *[b"\xfe\n"] * 20]
    assert len(list(named(decode_lines(lines, "x", "replace", counts), counts))) == 23
    notes = capsys.readouterr().err.splitlines()
    assert notes[0] == "line 2: bad UTF-8: replace" and notes[1].startswith("line 4:") and len(notes) == 10
    assert list(named(decode_lines([b"\xff\n"], "x", "skip", Counter()), Counter())) == [""]


def test_long_lines(capsys):
    tokenizer = train_tokenizer(["one two three four five six seven"] * 9, 300)
    lines = ["", "one two", "one two three four five six seven", "é" * 50_000]
    for limit in (3, 5, 8, 1000):
        counts = Counter()
        cut = cut_to_length(lines, tokenizer, limit, "truncate", 10, counts)
        assert all(len(tokenizer(line)["input_ids"]) <= limit for line in cut)
        assert all(line.startswith(part) for line, part in zip(lines, cut, strict=True)) and cut[3]
        skipped = cut_to_length(lines, tokenizer, limit, "skip", 10, Counter())
        assert skipped[3] == "" and all(s == c or s == "" for s, c in zip(skipped, cut, strict=True))
        assert counts.total() == skipped.count("") - 1
    assert "line 13: " in capsys.readouterr().err
