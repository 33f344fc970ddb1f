"""Section 5.1: cleaning parallel text in named, counted steps, in parallel and in bounded memory.

Each pair is dropped by the first step of `STEPS` that applies to it. All steps but the last look at one pair, so they run
over batches in several processes (`reasons`); duplicates are found afterwards among what is left (`duplicates`).
"""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import datasets
import numpy as np

from .run_config import DataConfig, UserError

STEPS = (
    "empty",
    "too few words",
    "too many words",
    "length ratio",
    "identical",
    "wrong script",
    "overlap",
    "duplicate",
)
DUPLICATE = STEPS.index("duplicate")
KEPT = -1
NGRAM = 10  # words
SHORT = 4  # words: shorter lines, as "Yes." or "Thank you.", are no sign that a held-out sentence was seen
LONGEST = 250  # words: the last entry of a length histogram counts these and longer ones


@dataclass(frozen=True)
class Batch:
    """Pairs as columns, with their words: what white space divides."""

    sources: list[str]
    targets: list[str]

    @functools.cached_property
    def words(self) -> tuple[list[list[str]], list[list[str]]]:
        return tuple([text.split() for text in texts] for texts in (self.sources, self.targets))

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Words, as [2, pairs]."""
        return np.array([[len(words) for words in side] for side in self.words], dtype=np.int32)


@dataclass(frozen=True)
class HeldOut:
    """The lines of the validation and test text, white space normalised and lower-cased."""

    sources: frozenset[str]
    targets: frozenset[str]

    @classmethod
    def of(cls, splits: Iterable[datasets.Dataset]) -> "HeldOut":
        splits = list(splits)
        return cls(
            *(frozenset(_plain(text.split()) for s in splits for text in s[side]) for side in ("source", "target"))
        )


def _plain(words: list[str]) -> str:
    return " ".join(words).lower()


# --------------------------------------------------------------------------------------------------------------- steps
def _steps(settings: DataConfig | None, heldout: HeldOut | None) -> dict[str, Callable[[Batch], np.ndarray]]:
    """The steps that the settings ask for: functions of a batch, True where a pair is dropped."""
    steps = {"empty": lambda batch: batch.lengths.min(axis=0) == 0}
    if settings is None:
        return steps
    if settings.min_words > 1:
        steps["too few words"] = lambda batch: batch.lengths.min(axis=0) < settings.min_words
    if settings.max_words is not None:
        steps["too many words"] = lambda batch: batch.lengths.max(axis=0) > settings.max_words
    if settings.max_ratio is not None:
        steps["length ratio"] = lambda batch: batch.lengths.max(axis=0) > settings.max_ratio * batch.lengths.min(axis=0)
    if settings.drop_identical:
        steps["identical"] = lambda batch: np.array([s == t for s, t in zip(*batch.words, strict=True)], dtype=bool)
    if settings.min_script is not None:
        scripts = [letters(language) for language in (settings.source_lang, settings.target_lang)]
        steps["wrong script"] = functools.partial(_wrong_script, scripts=scripts, least=settings.min_script)
    if settings.drop_overlap != "none" and heldout is not None:
        ngrams = settings.drop_overlap == "10-grams"
        steps["overlap"] = functools.partial(_overlaps, heldout=heldout, ngrams=ngrams)
    return steps


def reasons(batch: Batch, settings: DataConfig | None, heldout: HeldOut | None = None) -> np.ndarray:
    """For each pair the index in `STEPS` of the first step that drops it, or `KEPT`; int8. Duplicates are not looked for."""
    reason = np.full(len(batch.sources), KEPT, dtype=np.int8)
    for name, drops in _steps(settings, heldout).items():
        reason[(reason == KEPT) & drops(batch)] = STEPS.index(name)
    return reason


@functools.cache
def letters(language: str) -> tuple[re.Pattern, re.Pattern]:
    """Patterns of a letter of the language's script (as CLDR has it), and of a letter of any other script.

    Letters that belong to no script or to all, as the ordinal signs and modifier letters, are neither.

    Raises:
        UserError: CLDR does not know the language.
    """
    import regex
    from babel.core import get_global

    subtags = language.replace("_", "-").split("-")
    likely = get_global("likely_subtags").get("_".join(subtags)) or get_global("likely_subtags").get(subtags[0], "")
    script = next((tag.title() for tag in [*subtags[1:], *likely.split("_")] if len(tag) == 4 and tag.isalpha()), None)
    if script is None:
        raise UserError(f"min_script: no script is known for the language {language!r}: leave min_script out")
    several = {"Hans": ("Hani",), "Hant": ("Hani",), "Jpan": ("Hani", "Hira", "Kana"), "Kore": ("Hang", "Hani")}
    own = "".join(rf"\p{{Script={name}}}" for name in several.get(script, (script,)))
    neutral = r"\p{Script=Zyyy}\p{Script=Zinh}"
    return tuple(regex.compile(rf"[\p{{L}}&&{side}]", regex.V1) for side in (f"[{own}]", f"[^{own}{neutral}]"))


def _wrong_script(batch: Batch, scripts: list, least: float) -> np.ndarray:
    wrong = np.zeros(len(batch.sources), dtype=bool)
    for texts, (own, other) in zip((batch.sources, batch.targets), scripts, strict=True):
        latin = own.match("a") is not None
        for i, text in enumerate(texts):
            if (latin and text.isascii()) or not other.search(text):
                continue  # nearly all text, and quick to tell
            in_script, foreign = len(own.findall(text)), len(other.findall(text))
            wrong[i] |= in_script < least * (in_script + foreign)
    return wrong


def _overlaps(batch: Batch, heldout: HeldOut, ngrams: bool) -> np.ndarray:
    overlaps = np.zeros(len(batch.sources), dtype=bool)
    for side, lines in zip(batch.words, (heldout.sources, heldout.targets), strict=True):
        for i, words in enumerate(side):
            if len(words) >= SHORT and not overlaps[i]:
                line = _plain(words)
                overlaps[i] = line in lines or (ngrams and _shares_ngram(line.split(" "), lines))
    return overlaps


def _shares_ngram(words: list[str], lines: frozenset[str]) -> bool:
    """Ten words in a row hold one of the fives that the line divides into, so few lines need the longer look."""
    fives = zip(*[iter(words)] * (NGRAM // 2), strict=False)
    if _all_ngrams(lines, NGRAM // 2).isdisjoint(fives):
        return False
    return not _all_ngrams(lines, NGRAM).isdisjoint(_ngrams(words, NGRAM))


def _ngrams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(n)), strict=False)


@functools.lru_cache(maxsize=4)  # made once in each process: too large to be sent
def _all_ngrams(lines: frozenset[str], n: int) -> frozenset[tuple[str, ...]]:
    return frozenset(ngram for line in lines for ngram in _ngrams(line.split(" "), n))


# ---------------------------------------------------------------------------------------------------------- duplicates
def hash_pairs(sources: list[str], targets: list[str]) -> np.ndarray:
    """64 bits a pair; uint64."""
    digests = (
        hashlib.blake2b(f"{s}\n{t}".encode(), digest_size=8).digest() for s, t in zip(sources, targets, strict=True)
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def duplicates(pairs: datasets.Dataset, hashes: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """True for each pair whose text, both sides, occurred before among `rows` (ascending; none: all).

    Exact: pairs of equal hash are compared as text. Holds some 20 bytes a pair, and the text of `at_a_time` pairs.
    """
    at_a_time = 20_000
    found = np.zeros(len(hashes), dtype=bool)
    rows = np.arange(len(hashes)) if rows is None else rows
    values = np.sort(hashes[rows])
    repeated = np.unique(values[1:][values[1:] == values[:-1]])
    del values
    if not len(repeated):
        return found
    position = np.searchsorted(repeated, hashes[rows]).clip(max=len(repeated) - 1)
    rows = rows[repeated[position] == hashes[rows]]
    del position
    rows = rows[np.argsort(hashes[rows], kind="stable")]  # groups of equal hash, each in the order of the text
    starts = np.flatnonzero(np.diff(hashes[rows], prepend=~hashes[rows[:1]]))
    cuts = [
        *starts[np.unique(np.searchsorted(starts, np.arange(0, len(rows), at_a_time)).clip(max=len(starts) - 1))],
        len(rows),
    ]
    for start, end in pairwise(cuts):  # whole groups, so equal texts meet
        block, seen = np.sort(rows[start:end]), set()
        text = pairs[block]
        for row, pair in zip(block, zip(text["source"], text["target"], strict=True), strict=True):
            found[row] = pair in seen
            seen.add(pair)
    return found


# ------------------------------------------------------------------------------------------------------------ the whole
def clean(
    raw: datasets.Dataset,
    settings: DataConfig | None,
    heldout: Iterable[datasets.Dataset] = (),
    num_proc: int | None = None,
) -> tuple[datasets.Dataset, dict]:
    """The pairs of `raw` (text columns source and target) that stay, in their order, and a report that JSON can hold.

    `settings` None drops only pairs that have an empty side, as validation and test text wants. `heldout` is the text that
    `drop_overlap` compares with. The text stays on disk; at its peak a process holds some 40 bytes a pair.

    The report: "read" and "kept" (pairs), "steps" (by name: "removed" and three "examples", with the number of the pair
    from 1), "lengths" (by side, "before" and "after": entry n counts texts of n words, the last one longer ones too).
    """
    held = HeldOut.of(heldout) if settings is not None and settings.drop_overlap != "none" else None
    steps = list(_steps(settings, held))
    hashes = settings is not None and settings.drop_duplicates
    if not len(raw):
        return raw, _report(raw, np.empty(0, dtype=np.int8), np.empty((2, 0), dtype=np.int32), steps)
    columns = {"reason": "int8", "source_words": "int32", "target_words": "int32"} | (
        {"hash": "uint64"} if hashes else {}
    )
    judged = raw.map(
        functools.partial(_judge, settings=settings, heldout=held, hashes=hashes),
        batched=True,
        num_proc=num_proc,
        remove_columns=raw.column_names,
        features=datasets.Features({name: datasets.Value(kind) for name, kind in columns.items()}),
        load_from_cache_file=False,
    )
    reason = _column(judged, "reason")
    if hashes:
        steps.append("duplicate")
        reason[duplicates(raw, _column(judged, "hash"), np.flatnonzero(reason == KEPT))] = DUPLICATE
    kept = np.flatnonzero(reason == KEPT)
    cleaned = raw if len(kept) == len(raw) else raw.select(kept)
    lengths = np.stack([_column(judged, f"{side}_words") for side in ("source", "target")])
    return cleaned, _report(raw, reason, lengths, steps)


def _judge(batch: dict[str, list], settings: DataConfig | None, heldout: HeldOut | None, hashes: bool) -> dict:
    pairs = Batch(batch["source"], batch["target"])
    columns = {"reason": reasons(pairs, settings, heldout)}
    columns |= dict(zip(("source_words", "target_words"), pairs.lengths, strict=True))
    return columns | ({"hash": hash_pairs(pairs.sources, pairs.targets)} if hashes else {})


def _column(table: datasets.Dataset, name: str) -> np.ndarray:
    return np.concatenate([chunk.to_numpy() for chunk in table.data.column(name).chunks])


def _report(raw: datasets.Dataset, reason: np.ndarray, lengths: np.ndarray, steps: list[str]) -> dict:
    report = {"read": len(raw), "kept": int((reason == KEPT).sum()), "steps": {}, "lengths": {}}
    for name in steps:
        rows = np.flatnonzero(reason == STEPS.index(name))
        some = (
            rows[np.unique(np.linspace(0, len(rows) - 1, 3).astype(int))] if len(rows) else rows
        )  # first, middle, last
        examples = [
            {"pair": int(row) + 1} | {s: _short(raw[int(row)][s]) for s in ("source", "target")} for row in some
        ]
        report["steps"][name] = {"removed": len(rows), "examples": examples}
    for side, words in zip(("source", "target"), lengths.clip(max=LONGEST), strict=True):
        histograms = {"before": np.bincount(words), "after": np.bincount(words[reason == KEPT])}
        report["lengths"][side] = {when: counts.tolist() for when, counts in histograms.items()}
    return report


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def table(report: dict) -> str:
    """The report for the terminal: pairs by step, and the examples."""
    rows = [
        ("read", report["read"]),
        *((n, s["removed"]) for n, s in report["steps"].items()),
        ("kept", report["kept"]),
    ]
    lines = []
    for name, count in rows:
        lines.append(f"{name:<15} {count:>12,} {100 * count / max(report['read'], 1):6.2f} %")
        for example in report["steps"].get(name, {}).get("examples", []):
            lines.append(f"    {example['pair']:,}: {example['source']!r} | {example['target']!r}")
    return "\n".join(lines)
