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


def duplicates(pairs: datasets.Dataset, hashes: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """True for each pair whose text, both sides, occurred before; only the pairs `among` count (a mask; none: all).

    Exact: pairs of equal hash are compared as text. Holds two hashes a pair, and the text of `AT_A_TIME` pairs.
    """
    found = np.zeros(len(hashes), dtype=bool)
    among = np.ones(len(hashes), dtype=bool) if among is None else among
    values = hashes[among]
    values.sort()
    repeated = np.unique(values[1:][values[1:] == values[:-1]])
    del values
    if not len(repeated):
        return found
    rows = []
    for start in range(0, len(hashes), 1 << 20):
        part = hashes[start : start + (1 << 20)]
        again = repeated[np.searchsorted(repeated, part).clip(max=len(repeated) - 1)] == part
        rows.append(start + np.flatnonzero(again & among[start : start + (1 << 20)]))
    rows = np.concatenate(rows)
    rows = rows[np.argsort(hashes[rows])]
    values = hashes[rows]
    groups = np.flatnonzero(np.append(True, values[1:] != values[:-1]))  # where each group of equal hash starts
    blocks = groups[np.flatnonzero(np.diff(groups // AT_A_TIME, prepend=-1))]
    for start, end in pairwise([*blocks, len(rows)]):  # blocks hold whole groups, so equal texts meet
        block, seen = np.sort(rows[start:end]), set()  # in the order of the text, of which the first stays
        for part in np.array_split(block, -(-len(block) // (2 * AT_A_TIME))):  # one sentence may occur a million times
            text = pairs[part]
            for row, pair in zip(part, zip(text["source"], text["target"], strict=True), strict=True):
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
    `drop_overlap` compares with. The text and what is found of it stay on disk, mapped; memory holds some 21 bytes a pair at its peak.

    The report: "read" and "kept" (pairs), "steps" (by name: "removed" and three "examples", with the number of the pair
    from 1), "lengths" (by side, "before" and "after": entry n counts texts of n words, the last one longer ones too).
    """
    held = held_out(heldout) if settings is not None and settings.drop_overlap != "none" else None
    steps = list(active_steps(settings, held))
    hashes = settings is not None and settings.drop_duplicates
    if not len(raw):
        return raw, _report(raw, np.empty(0, dtype=np.int8), np.empty((2, 0), dtype=np.uint8), steps)
    columns = {"reason": "int8", "source_words": "uint8", "target_words": "uint8"}
    columns |= {"hash": "uint64"} if hashes else {}
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
        reason[duplicates(raw, _column(judged, "hash"), reason == KEPT)] = DUPLICATE
    cleaned = without(raw, reason != KEPT)
    lengths = np.stack([_column(judged, f"{side}_words") for side in SIDES])
    return cleaned, _report(raw, reason, lengths, steps)


def _judge(
    batch: dict[str, list], settings: DataConfig | None, heldout: tuple[HeldOut, HeldOut] | None, hashes: bool
) -> dict:
    pairs = Batch(batch["source"], batch["target"])
    columns = {"reason": reasons(pairs, settings, heldout)}
    source, target = pairs.lengths.clip(max=LONGEST).astype(np.uint8)
    columns |= {"source_words": source, "target_words": target}
    return columns | ({"hash": hash_pairs(pairs.sources, pairs.targets)} if hashes else {})


def without(pairs: datasets.Dataset, dropped: np.ndarray) -> datasets.Dataset:
    """The pairs that a mask does not drop. (`select` would make a Python number of each row.)"""
    if not dropped.any():
        return pairs
    kept = functools.partial(_are_kept, dropped=dropped)
    return pairs.filter(kept, with_indices=True, batched=True, input_columns=[], load_from_cache_file=False)


def _are_kept(rows: list[int], dropped: np.ndarray) -> list[bool]:
    return (~dropped[rows]).tolist()


def _column(table: datasets.Dataset, name: str) -> np.ndarray:
    return np.concatenate([chunk.to_numpy() for chunk in table.data.column(name).chunks])


def _report(raw: datasets.Dataset, reason: np.ndarray, lengths: np.ndarray, steps: list[str]) -> dict:
    report = {"read": len(raw), "kept": int((reason == KEPT).sum()), "steps": {}, "lengths": {}}
    for name in steps:
        rows = np.flatnonzero(reason == STEPS.index(name))
        first_middle_last = np.unique(np.linspace(0, len(rows) - 1, 3).astype(int)) if len(rows) else slice(0)
        some = (int(row) for row in rows[first_middle_last])
        examples = [{"pair": row + 1} | {side: short(raw[row][side]) for side in SIDES} for row in some]
        report["steps"][name] = {"removed": len(rows), "examples": examples}
    for side, words in zip(SIDES, lengths, strict=True):
        histograms = {"before": _histogram(words), "after": _histogram(words[reason == KEPT])}
        report["lengths"][side] = {when: np.trim_zeros(counts, "b").tolist() for when, counts in histograms.items()}
    return report


def _histogram(words: np.ndarray) -> np.ndarray:
    parts = (words[start : start + (1 << 20)] for start in range(0, len(words), 1 << 20))  # bincount copies to 64 bits
    return sum((np.bincount(part, minlength=LONGEST + 1) for part in parts), np.zeros(LONGEST + 1, dtype=np.int64))


def short(text: str, width: int = 60) -> str:
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
