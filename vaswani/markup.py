"""Parallel text in markup: translation memories (TMX 1.4b, XML) and the test sets of WMT (SGM).

Both are read safely. The XML parser fetches nothing: entities that a file declares (which could read other files, or
grow without bound) are refused. SGM is matched by patterns and knows only the named characters of HTML.
"""

import codecs
import html
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from .run_config import UserError
from .text_lines import decode, open_file

Languages = tuple[str, str]  # source, target
NATIVE_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})  # hold the formatting of some program, not text
BAD_BYTES = "\ufdd0"  # stands for bytes that are no text: a character that no text may use, but XML lets through


class _TmxUnits:
    """Handlers that collect the segments of each translation unit, as (language, text)."""

    def __init__(self, path: Path):
        self.path, self.units = path, []
        self.segments, self.language, self.text, self.codes = [], "", None, 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler, self.parser.EndElementHandler = self.start, self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.parser.SkippedEntityHandler = self.refuse

    def refuse(self, name: str, *_):
        raise UserError(
            f"{self.path} uses an entity of its own, &{name};, which is not read because entities can fetch other files "
            f"and fill the memory: write its text in its place"
        )

    def start(self, tag: str, attributes: dict):
        if tag == "tu":
            self.segments = []
        elif tag == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif tag == "seg":
            self.text, self.codes = [], 0
        elif tag in NATIVE_CODES:
            self.codes += 1

    def end(self, tag: str):
        if tag == "seg":
            self.segments.append((self.language.lower().replace("_", "-"), "".join(self.text)))
            self.text = None
        elif tag == "tu":
            self.units.append(self.segments)
        elif tag in NATIVE_CODES:
            self.codes -= 1

    def characters(self, text: str):
        if self.text is not None and not self.codes:
            self.text.append(text)

    def feed(self, text: str, final: bool = False) -> list:
        try:
            self.parser.Parse(text, final)
        except expat.ExpatError as error:
            raise UserError(f"{self.path} is not well-formed XML: {error}") from None
        units, self.units = self.units, []
        return units


def read_tmx(path: Path, languages: Languages, on_bad_utf8: str, counts: Counter) -> Iterator[tuple]:
    """The text of the units that have both languages, in blocks: memory holds one block.

    "en" takes a segment marked "en" before one marked "EN-us", and "en-GB" takes "en-gb" before other English. Inline
    tags vanish and the text round and inside them stays, but for the native codes (bpt, ept, it, ph, ut).
    """
    parser = _TmxUnits(path)
    with open_file(path) as file:
        for text in _characters(file, path, on_bad_utf8):
            for segments in parser.feed(text):
                pair = tuple(_choose(segments, language) for language in languages)
                if None in pair:
                    missing = " and ".join(lang for lang, text in zip(languages, pair, strict=True) if text is None)
                    counts[f"units without {missing}"] += 1
                    continue
                yield tuple(_by_policy(text, on_bad_utf8, counts) for text in pair)
    parser.feed("", final=True)


def _choose(segments: list[tuple[str, str]], language: str) -> str | None:
    wanted = language.lower().replace("_", "-")
    exact = [text for name, text in segments if name == wanted]
    primary = [text for name, text in segments if name.split("-")[0] == wanted.split("-")[0]]
    return next(iter(exact + primary), None)


def _characters(file: BinaryIO, path: Path, on_bad_utf8: str) -> Iterator[str]:
    """Blocks of text in the encoding that the file declares; bytes that are none become `BAD_BYTES`."""
    head = file.peek(200)[:200]
    declared = re.search(rb"""^[^>]*encoding=["']([\w.-]+)["']""", head)
    name = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else declared[1].decode() if declared else "utf-8"
    line = 1
    try:
        decoder = codecs.getincrementaldecoder(name)("strict" if on_bad_utf8 == "error" else "surrogateescape")
        for block in itertools.chain(iter(lambda: file.read(1 << 16), b""), [b""]):
            text = decoder.decode(block, final=not block)
            line += text.count("\n")
            yield re.sub("[\udc80-\udcff]+", BAD_BYTES, text)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise UserError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not {name.upper()}; "
            f"convert the file to UTF-8, or choose --on_bad_utf8 skip or replace"
        ) from None
    except LookupError as error:
        raise UserError(f"{path} declares the encoding {name}: {error}; convert the file to UTF-8") from None


def _by_policy(text: str, on_bad_utf8: str, counts: Counter) -> str | None:
    if BAD_BYTES not in text:
        return text
    counts[f"bad UTF-8: {on_bad_utf8}"] += 1
    return None if on_bad_utf8 == "skip" else text.replace(BAD_BYTES, "\ufffd")


def read_sgm(source: Path, target: Path, on_bad_utf8: str, counts: Counter) -> Iterator[tuple]:
    """The segments of a test set's two files, in the order of the source, matched by document and segment.

    Test sets have a few thousand lines: both files are held in memory.
    """
    texts, references = (_sgm_segments(path, on_bad_utf8, counts) for path in (source, target))
    for here, there, names in ((texts, references, (source, target)), (references, texts, (target, source))):
        if lonely := [key for key in here if key not in there]:
            raise UserError(
                f"{names[0]} has segments that {names[1]} has not, {len(lonely)} of {len(here)}, the first of them "
                f"document {lonely[0][0]!r} segment {lonely[0][1]!r}: are they the two sides of one test set?"
            )
    yield from ((text, references[key]) for key, text in texts.items())


SGM_PART = re.compile(rb"<doc\b([^>]*)>|<seg\b([^>]*)>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)


def _sgm_segments(path: Path, on_bad_utf8: str, counts: Counter) -> dict[tuple[str, str], str | None]:
    """Text by (document, segment)."""
    segments, document = {}, ""
    with open_file(path) as file:
        parts = SGM_PART.finditer(file.read())
    for doc, seg, raw in (part.groups() for part in parts):
        if doc is not None:
            document = _attribute("docid", doc)
            continue
        key = (document, _attribute("id", seg))
        if key in segments:
            raise UserError(f"{path} has document {key[0]!r} segment {key[1]!r} twice: give one reference a file")
        text = decode(raw, f"{path}, document {key[0]}, segment {key[1]}", on_bad_utf8, counts)
        segments[key] = text and re.sub(r"&#?\w+;", lambda entity: html.unescape(entity[0]), text).strip()
    if not segments:
        raise UserError(f"{path} has no <seg>: is it one of WMT's test sets?")
    return segments


def _attribute(name: str, attributes: bytes) -> str:
    found = re.search(rb"\b%s\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|(\S+))" % name.encode(), attributes, re.IGNORECASE)
    return next(value for value in found.groups() if value is not None).decode(errors="replace") if found else ""
