"""Section 5.1: the steps of cleaning that look at one pair: what each drops, over batches of pairs."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np

from .run_config import DataConfig, UserError

# Each pair is dropped by the first that applies. Duplicates are looked for elsewhere, among what the others leave.
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
KEPT = -1
SIDES = ("source", "target")
NGRAM = 10  # words
SHORT = 4  # words: shorter lines, as "Yes." or "Thank you.", are no sign that a held-out sentence was seen


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
    """One side of the validation and test text: its lines, white space normalised and lower-cased."""

    lines: frozenset[str]

    @functools.cached_property  # made where it is used: too large to be sent to another process
    def fives(self) -> frozenset[tuple[str, ...]]:
        return self._ngrams(NGRAM // 2)

    @functools.cached_property
    def tens(self) -> frozenset[tuple[str, ...]]:
        return self._ngrams(NGRAM)

    def _ngrams(self, n: int) -> frozenset[tuple[str, ...]]:
        return frozenset(ngram for line in self.lines for ngram in _ngrams(line.split(" "), n))

    def shares_ngram(self, words: list[str]) -> bool:
        """Ten words in a row hold one of the fives that a line divides into, so few lines need the longer look."""
        blocks = zip(*[iter(words)] * (NGRAM // 2), strict=False)
        return not self.fives.isdisjoint(blocks) and not self.tens.isdisjoint(_ngrams(words, NGRAM))


def held_out(splits: Iterable[datasets.Dataset]) -> tuple[HeldOut, HeldOut]:
    """Both sides of the text of all `splits`."""
    splits = list(splits)
    lines = ({_plain(text.split()) for split in splits for text in split[side]} for side in SIDES)
    return tuple(HeldOut(frozenset(side)) for side in lines)


def _ngrams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(n)), strict=False)


def _plain(words: list[str]) -> str:
    return " ".join(words).lower()


# --------------------------------------------------------------------------------------------------------------- steps
def active_steps(
    settings: DataConfig | None, heldout: tuple[HeldOut, HeldOut] | None
) -> dict[str, Callable[[Batch], np.ndarray]]:
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
        scripts = [letters(language) for language in settings.languages]
        steps["wrong script"] = functools.partial(_wrong_script, scripts=scripts, least=settings.min_script)
    if settings.drop_overlap != "none" and heldout is not None:
        ngrams = settings.drop_overlap == "10-grams"
        steps["overlap"] = functools.partial(_overlaps, heldout=heldout, ngrams=ngrams)
    return steps


def reasons(batch: Batch, settings: DataConfig | None, heldout: tuple[HeldOut, HeldOut] | None = None) -> np.ndarray:
    """For each pair the index in `STEPS` of the first step that drops it, or `KEPT`; int8. Duplicates are not looked for."""
    reason = np.full(len(batch.sources), KEPT, dtype=np.int8)
    for name, drops in active_steps(settings, heldout).items():
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


def _overlaps(batch: Batch, heldout: tuple[HeldOut, HeldOut], ngrams: bool) -> np.ndarray:
    overlaps = np.zeros(len(batch.sources), dtype=bool)
    for side, held in zip(batch.words, heldout, strict=True):
        for i, words in enumerate(side):
            if len(words) >= SHORT and not overlaps[i]:
                line = _plain(words)
                overlaps[i] = line in held.lines or (ngrams and held.shares_ngram(line.split(" ")))
    return overlaps
