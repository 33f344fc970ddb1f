"""Section 6.1: the text behind the paper's BLEU: Moses tokens, compounds split at hyphens, as the Perl scripts make them.

The rules are those of Moses' tokenizer.perl, written down anew, and agree with it token for token; sacremoses gives the
lists of abbreviations. Its own tokenizer leaves the period on an abbreviation that ends a sentence (up to 0.04 BLEU), and
has a fixed list of letters and fewer languages: the rules are shorter than their repair.
"""

import functools
import re

import regex  # `re` with the character properties that Perl calls IsAlpha, IsAlnum, IsN, IsLower and IsSpace
from sacremoses.corpus import NonbreakingPrefixes

ALPHA, ALNUM, NUMBER = r"\p{Alphabetic}", r"\p{Alphabetic}\p{Nd}", r"\p{N}"
LOWER, SPACE = r"\p{Lowercase}", r"\p{White_Space}"
DOT = "\x01"  # one of several dots in a row; control characters are no longer in the text by then
COLON_INSIDE = ("fi", "sv")  # EU:ssa
APOSTROPHE_LEFT = ("fr", "it", "ga", "ca")  # l' eau
APOSTROPHE_INSIDE = ("so", "tdt")  # a sound of the language
ESCAPES = str.maketrans(
    {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
)
# A full-width 1 becomes a quotation mark: a slip in the Perl script, and part of every score made with it.
ASCII_PUNCTUATION = str.maketrans(
    "，、∶：；？！（）％～━’“”「」《》〈〉【】０１２３４５６７８９", ',,::;?!()%~-\'""""""<>[]0"23456789'
) | {ord("…"): "..."}


def replace_unicode_punctuation(line: str) -> str:
    """Typographic punctuation as ASCII, as replace-unicode-punctuation.perl does it: “x” becomes "x"; „ stays."""
    return re.sub("[。．] *", ". ", line.translate(ASCII_PUNCTUATION))


def split_compounds(line: bytes) -> bytes:
    """Each hyphen between two non-spaces becomes the token ##AT##-##AT##, as in the authors' scripts.

    Their one-liner reads bytes, and uses up one on each side of a hyphen: in b"a-b-c" the second hyphen stays.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line)


def tokenize(line: str, lang: str, *, aggressive_hyphens: bool = False, split_last_period: bool = True) -> str:
    """The tokens that `tokenizer.perl -l lang` prints, between single spaces, with & | < > ' " [ ] escaped.

    Args:
        line: raw text, one sentence.
        lang: language code; apostrophes and abbreviations depend on it. One without a list has the English ones.
        aggressive_hyphens: `-a`: "x-y" becomes "x @-@ y".
        split_last_period: the period that ends the line is a token, even in "5 p.m."; False is the script as it was in
            2017 and before, which made the reference of the authors' archive (63,078 tokens; today's makes 63,086).
    """
    text = " ".join(regex.sub(r"[\x00-\x1f]", "", regex.sub(SPACE, " ", line)).split())
    for pattern, replacement in _rules(lang, aggressive_hyphens):
        text = pattern.sub(replacement, text)
    words = text.split()
    for i, word in enumerate(words):
        stem, at_end = word[:-1], i == len(words) - 1
        if word[-1] == "." and stem:
            following = "" if at_end else words[i + 1]
            if (at_end and split_last_period) or not _keeps_period(stem, following, lang):
                words[i] = f"{stem} ."
    text = re.sub(r"\.'$", " . '", " ".join(words))
    return text.replace(DOT, ".").translate(ESCAPES)


@functools.cache
def _rules(lang: str, aggressive_hyphens: bool) -> list[tuple[regex.Pattern, str]]:
    """Patterns and what replaces them, in their order."""
    inside = ":" if lang in COLON_INSIDE else "·" if lang == "ca" else ""
    rules = [(rf"([^{ALNUM}{SPACE}.'`,\-{inside}])", r" \1 ")]
    if lang in COLON_INSIDE:
        rules += [(r":(?=$|\P{Ll})", " : ")]
    if lang == "tdt":
        rules += [(r"'(?=$|\P{Ll})", " ' ")]
    if aggressive_hyphens:
        rules += [(rf"([{ALNUM}])-(?=[{ALNUM}])", r"\1 @-@ ")]
    rules += [(r"\.\.+", lambda dots: f" {DOT * len(dots[0])} ")]
    rules += [(rf"([^{NUMBER}]),", r"\1 , "), (rf",([^{NUMBER}])", r" , \1"), (rf"([{NUMBER}]),$", r"\1 , ")]
    letter, other = rf"([{ALPHA}])", rf"([^{ALPHA}])"
    if lang == "en":
        rules += [(f"{other}'{other}", r"\1 ' \2"), (rf"([^{ALPHA}{NUMBER}])'{letter}", r"\1 ' \2")]
        rules += [(f"{letter}'{other}", r"\1 ' \2"), (f"{letter}'{letter}", r"\1 '\2"), (rf"([{NUMBER}])'s", r"\1 's")]
    elif lang in APOSTROPHE_LEFT + APOSTROPHE_INSIDE:
        rules += [
            (f"{other}'{other}", r"\1 ' \2"),
            (f"{other}'{letter}", r"\1 ' \2"),
            (f"{letter}'{other}", r"\1 ' \2"),
        ]
        rules += [(f"{letter}'{letter}", r"\1' \2")] if lang in APOSTROPHE_LEFT else []
    else:
        rules += [("'", " ' ")]
    return [(regex.compile(pattern), replacement) for pattern, replacement in rules]


@functools.cache
def _abbreviations(lang: str) -> tuple[frozenset[str], frozenset[str]]:
    """Words that keep their period anywhere; words that keep it before a number."""
    entries = set(NonbreakingPrefixes().words(lang))
    numeric = {entry for entry in entries if entry.endswith("#NUMERIC_ONLY#")}
    return frozenset(entries - numeric), frozenset(entry.split()[0] for entry in numeric)


def _keeps_period(word: str, following: str, lang: str) -> bool:
    """Whether the period after `word` belongs to it: "z.B.", a known abbreviation, a word that continues in lower case."""
    always, before_number = _abbreviations(lang)
    return bool(
        ("." in word and regex.search(ALPHA, word))
        or word in always
        or regex.match(LOWER, following)
        or (word in before_number and re.match("[0-9]", following))
    )
