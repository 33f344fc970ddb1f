"""Section 6.1: is it the text that the score is about? What would give a number without an error, and mean nothing."""

import re
from collections.abc import Sequence

# What plain text has in few lines, if any: one in a hundred, and as many as the other side has, pass.
WORD_PIECES = re.compile(r"@@(?= |$)|▁")
MOSES_TOKENS = re.compile(r"&(?:quot|apos|amp|lt|gt|#124|#91|#93);|(?<= )@-@(?= )")
SPLIT_HYPHENS = re.compile(r"##AT##-##AT##|(?<= )@-@(?= )")
STOPS = re.compile(r"[^\W_] ?[.,](?=\s|$)")  # periods and commas behind words: tokenised, a space stands before them
WORDS = re.compile(r"[^\W\d_]{2,}")
PLAIN = "give plain text, or say that both sides are tokenised alike (tokenized: true, --tokenized, tokenize=False)"


def check_lines(lines: Sequence[str], references: Sequence[str], lang: str = "", what: str = "translations") -> None:
    """Refuses unequal or no lines and, where `lang` is given, the part of newstest2014 that is not the test set.

    Raises:
        ValueError: in one sentence that says what to do next.
    """
    if len(lines) != len(references):
        raise ValueError(f"{len(lines):,} {what} but {len(references):,} references: each line needs one of both")
    if not lines:
        raise ValueError("there is nothing to score: no lines")
    if len(lines) == 2737 and lang in ("de", "en"):
        raise ValueError(
            "2,737 lines are the part of newstest2014 that sacreBLEU calls wmt14; the paper's test set has 3,003: "
            "use wmt14/full (for other text of this size, add an empty line to both sides)"
        )


def check_text(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: bool = True, split_compounds: bool = True
) -> None:
    """Refuses word pieces, hyphens that were split before, and (where `tokenize`) text that was tokenised before.

    Raises:
        ValueError: in one sentence that names a line and says what to do next.
    """
    sides = {"translations": hypotheses, "references": references}
    for name, lines in sides.items():
        if mark := _marks(WORD_PIECES, lines):
            raise ValueError(f"the {name} are word pieces ({mark}): join them to words first")
        if split_compounds and (mark := _marks(SPLIT_HYPHENS, lines, allowed=0)) and (not tokenize or "##" in mark):
            raise ValueError(f"hyphens of the {name} are already split ({mark}): pass split_compounds=False")
    if not tokenize:
        return
    spaced = {name: _spaced(lines) for name, lines in sides.items()}
    few = len(hypotheses) // 100
    for name, other in (("translations", "references"), ("references", "translations")):
        mark = _marks(MOSES_TOKENS, sides[name], few + _count(MOSES_TOKENS, sides[other]))
        if not mark and spaced[name] > 0.8 and spaced[other] < 0.2:
            mark = "a space before every period and comma"
        if mark:
            raise ValueError(f"the {name} are already tokenised, and not the {other} ({mark}): {PLAIN}")
    mark = _marks(MOSES_TOKENS, hypotheses, few)
    if mark and _marks(MOSES_TOKENS, references, few) and min(spaced.values()) > 0.8:
        raise ValueError(f"both sides are already tokenised ({mark}): {PLAIN}")


def suspicions(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """Sentences of warning where source and reference look swapped or the same; none where all is well."""
    repeated = sum(s.strip() == r.strip() != "" for s, r in zip(sources, references, strict=True))
    if repeated > len(references) / 2:
        return [
            f"{repeated:,} of {len(references):,} references repeat their source: give its translation as reference"
        ]

    def words(lines: Sequence[str]) -> list[str]:
        return [word for line in lines for word in WORDS.findall(line.lower())]

    said = words(hypotheses)
    in_source, in_reference = (
        sum(map(set(words(lines)).__contains__, said)) / max(1, len(said)) for lines in (sources, references)
    )
    if in_source > in_reference + 0.1:
        return [
            f"the translations look like the source language ({in_source:.0%} of their words are in the source, "
            f"{in_reference:.0%} in the reference): are source and reference swapped, or the model's languages others?"
        ]
    return []


def _count(pattern: re.Pattern, lines: Sequence[str]) -> int:
    return sum(bool(pattern.search(line)) for line in lines)


def _marks(pattern: re.Pattern, lines: Sequence[str], allowed: int | None = None) -> str:
    """Where the first mark is, if more lines than `allowed` (one in a hundred) have one; else ""."""
    hits = [(number, match[0]) for number, line in enumerate(lines, start=1) if (match := pattern.search(line))]
    allowed = len(lines) // 100 if allowed is None else allowed
    return f"{hits[0][1]} in line {hits[0][0]:,}" if len(hits) > allowed else ""


def _spaced(lines: Sequence[str]) -> float:
    """Share of periods and commas with a space before them; not a number where there are none."""
    stops = [stop for line in lines for stop in STOPS.findall(line)]
    return sum(" " in stop for stop in stops) / len(stops) if stops else float("nan")
