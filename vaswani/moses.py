"""Section 6.1: the text processing behind the paper's BLEU, as the Perl scripts of the Moses toolkit do it.

The rules are those of tokenizer.perl, written down here; of sacremoses we take the lists of abbreviations only. Its own
tokenizer splits no period off the abbreviation that ends a sentence, and knows fewer characters and languages.
"""

import functools

import regex  # unlike `re`, it knows the character properties that Perl calls IsAlnum, IsAlpha, IsN and IsLower
from sacremoses.corpus import NonbreakingPrefixes

ALPHA, NUMBER, LOWER = r"\p{Alphabetic}", r"\p{N}", r"\p{Lowercase}"
ALNUM = ALPHA + r"\p{Nd}"
SPACE = r"\p{White_Space}"
DOT = "\x01"  # one dot of several; cannot be in the text, which has lost its control characters by then

ESCAPES = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}

# What may stand inside a word, and is split off where no lower-case letter follows: Finnish "EU:ssa", Tetun "lae'n".
# (Perl reads its Catalan rule as bytes, so that it leaves every middle dot alone; so do we.)
INNER = {"fi": ":", "sv": ":", "tdt": "'"}

# replace-unicode-punctuation.perl, its full-width one included, which becomes a quotation mark.
PUNCTUATION = str.maketrans(
    dict(zip("，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％", ",,\"\"::?\"\")!(;\"\"\"03256978" "4~'-<>[]%", strict=True))
    | {"…": "..."}
)


def replace_unicode_punctuation(line: str) -> str:
    """Typographic and full-width punctuation as ASCII, as replace-unicode-punctuation.perl does it: “x” is "x"."""
    return regex.sub("[。．] *", ". ", line.translate(PUNCTUATION))


def split_compounds(line: bytes) -> bytes:
    """ "We ... split compounds": hyphens between non-spaces become the token ##AT##-##AT##, as in the authors' scripts.

    Their one-liner reads bytes and uses up one on each side: in b"a-b-c" the second hyphen stays.
    """
    return regex.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line)


@functools.cache
def _abbreviations(lang: str) -> tuple[frozenset[str], frozenset[str]]:
    """Words that keep their period; words that keep it before a number. English ones for languages without a list."""
    entries = set(NonbreakingPrefixes().words(lang))
    numeric = {entry for entry in entries if entry.endswith("#NUMERIC_ONLY#")}
    return frozenset(entries - numeric), frozenset(entry.split()[0] for entry in numeric)


@functools.cache
def _rules(lang: str, aggressive_hyphens: bool) -> list[tuple[regex.Pattern, str]]:
    """Pattern and replacement, in the order in which they apply."""
    inner = INNER.get(lang, "")
    rules = [(rf"([^{ALNUM}{SPACE}.'`,\-{inner}{'·' if lang == 'ca' else ''}])", r" \1 ")]
    if inner:
        rules.append((rf"{inner}(?=$|\P{{Ll}})", f" {inner} "))
    if aggressive_hyphens:
        rules.append((rf"([{ALNUM}])-(?=[{ALNUM}])", r"\1 @-@ "))
    rules.append((r"\.{2,}", lambda dots: f" {DOT * len(dots[0])} "))
    rules += [(rf"([^{NUMBER}]),", r"\1 , "), (rf",([^{NUMBER}])", r" , \1"), (rf"([{NUMBER}]),$", r"\1 ,")]
    before, after = rf"([^{ALPHA}])'", rf"([{ALPHA}])'"
    other, letter = rf"([^{ALPHA}])", rf"([{ALPHA}])"
    if lang == "en":  # it 's, 1990 's
        rules += [(before + other, r"\1 ' \2"), (rf"([^{ALPHA}{NUMBER}])'" + letter, r"\1 ' \2")]
        rules += [(after + other, r"\1 ' \2"), (after + letter, r"\1 '\2"), (rf"([{NUMBER}])'s", r"\1 's")]
    elif lang in ("fr", "it", "ga", "ca", "so", "tdt"):  # l' eau; Somali and Tetun keep the apostrophe of a word
        rules += [(before + other, r"\1 ' \2"), (before + letter, r"\1 ' \2"), (after + other, r"\1 ' \2")]
        rules += [(after + letter, r"\1' \2")] if lang not in ("so", "tdt") else []
    else:
        rules.append(("'", " ' "))
    return [(regex.compile(pattern), replacement) for pattern, replacement in rules]


def tokenize(line: str, lang: str, aggressive_hyphens: bool = False) -> str:
    """The line as `tokenizer.perl -l lang` prints it: tokens between single spaces, with & | < > ' " [ ] escaped.

    Args:
        line: raw text.
        lang: language code; its apostrophes and abbreviations matter.
        aggressive_hyphens: `-a`: "x-y" becomes "x @-@ y".
    """
    text = regex.sub(r"[\x00-\x1f]", "", regex.sub(rf"{SPACE}+", " ", line)).strip(" ")
    for pattern, replacement in _rules(lang, aggressive_hyphens):
        text = pattern.sub(replacement, text)
    always, before_number = _abbreviations(lang)
    words = text.split()
    for i, word in enumerate(words):
        stem, following = word[:-1], words[i + 1] if i + 1 < len(words) else None
        if not stem or word[-1] != ".":
            continue
        keeps = following is not None and (
            ("." in stem and regex.search(ALPHA, stem))
            or stem in always
            or regex.match(LOWER, following)
            or (stem in before_number and regex.match("[0-9]", following))
        )
        if not keeps:
            words[i] = f"{stem} ."
    text = regex.sub(r"\.' ?$", " . '", " ".join(words)).replace(DOT, ".")
    return "".join(ESCAPES.get(character, character) for character in text)
