"""Section 5.1: cleaning parallel text in named, counted steps, in parallel and in bounded memory.

Each pair is dropped by the first step of `STEPS` that applies to it. All steps but the last look at one pair, so they run
over batches in several processes (`reasons`); duplicates are found afterwards among what is left (`duplicates`).
"""

import functools
import hashlib
from collections.abc import Iterable
from itertools import pairwise

import datasets
import numpy as np

from .cleaning_steps import KEPT, SIDES, STEPS, Batch, HeldOut, active_steps, held_out, reasons
from .run_config import DataConfig

DUPLICATE = STEPS.index("duplicate")
AT_A_TIME = 20_000  # pairs whose text is in memory while they are compared (more where more have one hash)
LONGEST = 250  # words: the last entry of a length histogram counts these and longer ones


def hash_pairs(sources: list[str], targets: list[str]) -> np.ndarray:
    """64 bits a pair; uint64."""
    digests = (
        hashlib.blake2b(f"{s}\n{t}".encode(), digest_size=8).digest() for s, t in zip(sources, targets, strict=True)
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def duplicates(pairs: datasets.Dataset, hashes: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """True for each pair whose text, both sides, occurred before among `rows` (ascending; none: all).

    Exact: pairs of equal hash are compared as text. Holds some 20 bytes a pair, and the text of `AT_A_TIME` pairs.
    """
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
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    values = hashes[rows]
    groups = np.flatnonzero(np.append(True, values[1:] != values[:-1]))  # where each group of equal hash starts
    blocks = groups[np.flatnonzero(np.diff(groups // AT_A_TIME, prepend=-1))]
    for start, end in pairwise([*blocks, len(rows)]):  # blocks hold whole groups, so equal texts meet
        block, seen = np.sort(rows[start:end]), set()
        text = pairs[block]
        for row, pair in zip(block, zip(text["source"], text["target"], strict=True), strict=True):
            found[row] = pair in seen
            seen.add(pair)
    return found


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
    held = held_out(heldout) if settings is not None and settings.drop_overlap != "none" else None
    steps = list(active_steps(settings, held))
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
    lengths = np.stack([_column(judged, f"{side}_words") for side in SIDES])
    return cleaned, _report(raw, reason, lengths, steps)


def _judge(
    batch: dict[str, list], settings: DataConfig | None, heldout: tuple[HeldOut, HeldOut] | None, hashes: bool
) -> dict:
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
        examples = [{"pair": int(row) + 1} | {s: _short(raw[int(row)][s]) for s in SIDES} for row in some]
        report["steps"][name] = {"removed": len(rows), "examples": examples}
    for side, words in zip(SIDES, lengths.clip(max=LONGEST), strict=True):
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
