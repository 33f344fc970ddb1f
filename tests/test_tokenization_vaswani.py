import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from vaswani.tokenization_vaswani import SMALLEST_VOCABULARY, train_tokenizer

LINES = ["Das ist ein Haus .", "This is a house .", "Die Häuser sind groß .", "The houses are big .", "1 2 34 567"] * 3
TRICKY = [
    "",
    " ",
    "  leading, trailing and   repeated  spaces  ",
    "tab\tand\nnewline\r\nand\x00null",
    "literal </s> and <pad> stay text </s>",
    "<pad></s>",
    "ﬁ ligature, e\u0301 decomposed, é composed",
    "emoji 👩‍👩‍👧‍👦, 漢字, العربية, \u2028 line separator, \u00a0 no-break, \ufeff BOM",
    "don't they're I'LL 1,234.50 $ % €",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(LINES, 300).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def round_trip(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids[-1] == tokenizer.eos_token_id
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", TRICKY)
def test_text_survives(tokenizer, text):
    assert round_trip(tokenizer, text) == text
    assert tokenizer.eos_token_id not in tokenizer(text).input_ids[:-1]
    assert tokenizer.pad_token_id not in tokenizer(text).input_ids


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_unicode_survives(tokenizer, text):
    assert round_trip(tokenizer, text) == text


def test_split_digits_survives_and_splits():
    tokenizer = train_tokenizer(LINES + ["2026 2026 2026"] * 9, 320, split_digits=True)
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]
    for text in TRICKY:
        assert round_trip(tokenizer, text) == text


def test_reserved_ids_and_padding(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.unk_token is None
    batch = tokenizer(["This is", "This is a house ."], text_target=["Das", "Das ist"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch.input_ids[0][-1] == 0 and batch.attention_mask[0][-1] == 0
    assert all(row[-1] == 1 for row in tokenizer(["Das ist", ""]).input_ids)


def test_literal_specials_survive_saving(folder, tokenizer):
    assert tokenizer.split_special_tokens
    again = AutoTokenizer.from_pretrained(folder)
    assert again("a </s> b").input_ids == tokenizer("a </s> b").input_ids
    assert type(again).__module__.startswith("transformers.")


def test_training_is_identical_from_run_to_run():
    """Also between processes, each of which hashes strings in its own way, and with words that occur equally often."""
    program = """
import hashlib, itertools
from vaswani.tokenization_vaswani import train_tokenizer
words = ["".join(letters) for letters in itertools.product("abcde", repeat=4)]
print(hashlib.sha256(train_tokenizer([" ".join(words)], 700).backend_tokenizer.to_str().encode()).hexdigest())
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout and len(runs[0].stdout) == 65


def test_vocabulary_size(tokenizer):
    assert len(tokenizer) == 300
    assert len(train_tokenizer(["ab"], 5000)) < 300  # no more pieces in the text than that


def test_errors_name_the_line():
    with pytest.raises(ValueError, match=r"line 2 holds a lone surrogate, U\+D83D"):
        train_tokenizer(["fine", "broken \ud83d"], 300)
    with pytest.raises(ValueError, match=f"{SMALLEST_VOCABULARY} entries"):
        train_tokenizer(LINES, 100)
    with pytest.raises(ValueError, match="no text"):
        train_tokenizer(["", ""], 300)
