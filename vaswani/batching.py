"""Section 5.1: "sentence pairs were batched together by approximate sequence length", by number of tokens.

A *batch* is one optimizer update, the same for any number of processes: about `tokens_per_batch` target tokens of pairs of
similar length. It is cut into *micro-batches*, each at most `max_tokens` padded positions a side, and every process
takes equally many of them.

Which lengths share a batch is settled once for a corpus, on the table of (target length, source length): its cells are
divided into *groups* that each hold a whole number of batches. An epoch then only draws which pairs of a group meet. Its
plan follows from (seed, epoch) alone, so a run resumes anywhere at once.
"""

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .loss import IGNORE


class Batch(NamedTuple):
    """One update, as one process sees it."""

    micro_batches: list[np.ndarray]  # row numbers; an empty one belongs to a process that has nothing to add
    target_tokens: int  # of the whole batch, over all processes: what the gradient is divided by


class Groups(NamedTuple):
    """Length pairs that are batched together."""

    of_lengths: np.ndarray  # (target length, source length) -> group; uint16 where that is enough, for radix sorts
    batches: np.ndarray  # (groups,), how many batches a group gives
    equal: str  # what is shared equally among a group's batches: "tokens" (target tokens) or "sentences"


PLANNING = 1  # to be raised when the same lengths are planned otherwise
UNEVEN = 0.2  # a batch may be this share larger or smaller than wanted: at 0.05 there is twice the padding


def groups_by_length(counts: np.ndarray, tokens_per_batch: float) -> Groups:
    """Divides the table again and again where that saves most padded positions, down to a batch or a single length pair.

    Args:
        counts: pairs of each (target length, source length).
    """
    of_lengths, batches = np.zeros(counts.shape, np.int32), []
    tokens = counts * np.arange(len(counts))[:, None]  # target tokens
    areas = [(0, counts.shape[0], 0, counts.shape[1], max(1, round(tokens.sum() / tokens_per_batch)))]
    while areas:
        top, bottom, left, right, wanted = areas.pop()
        rows, columns = (np.flatnonzero(counts[top:bottom, left:right].any(axis)) for axis in (1, 0))
        top, bottom, left, right = top + rows[0], top + rows[-1] + 1, left + columns[0], left + columns[-1] + 1
        area = slice(top, bottom), slice(left, right)
        cut = _best_cut(counts[area], tokens[area] / tokens_per_batch, wanted)
        if cut is None:
            of_lengths[area] = len(batches)
            batches.append(min(wanted, int(counts[area].sum())))  # a pair longer than a batch is a batch
        elif cut.axis == 0:
            areas.append((top, top + cut.at, left, right, cut.batches))
            areas.append((top + cut.at, bottom, left, right, wanted - cut.batches))
        else:
            areas.append((top, bottom, left, left + cut.at, cut.batches))
            areas.append((top, bottom, left + cut.at, right, wanted - cut.batches))
    return Groups(_narrow(of_lengths, len(batches)), np.array(batches), "tokens")


class Cut(NamedTuple):
    axis: int  # 0: between target lengths
    at: int  # first row or column behind the cut
    batches: int  # before the cut


def _best_cut(pairs: np.ndarray, share: np.ndarray, wanted: int) -> Cut | None:
    """The cut of an area into two that spares most padding and leaves whole batches of about the size wanted.

    Args:
        pairs, share: of each cell, its pairs and what part of a batch they fill.
        wanted: batches in the area.
    """
    best, cut = 0, None
    for axis in (0, 1) if wanted > 1 else ():
        before = np.cumsum(share.sum(1 - axis))
        before, whole = before[:-1], before[-1]
        batches = np.clip(np.round(before * wanted / whole), 1, wanted - 1)
        uneven = np.maximum(abs(before / batches - 1), abs((whole - before) / (wanted - batches) - 1))
        shorter = np.cumsum(pairs.sum(1 - axis))[:-1]  # pairs whose longest one is now that at the cut
        saved = np.where(uneven <= UNEVEN, shorter * np.arange(len(shorter), 0, -1), 0)
        if len(saved) and saved.max() > best:
            at = int(saved.argmax())
            best, cut = saved[at], Cut(axis, at + 1, int(batches[at]))
    return cut


def groups_by_bucket(counts: np.ndarray, tokens_per_batch: float, mantissa_bits: int) -> Groups:
    """As the authors' code: a bucket for the longer side (8, 12, 16, 24, 32, ... with one mantissa bit), and as many
    sentences in a batch as fill a fixed number of positions when padded to the bucket's length. That number is the one
    which makes the mean batch `tokens_per_batch` target tokens (with 32,768 positions the authors met about 25,000).
    """
    target, source = np.indices(counts.shape)
    longer = np.maximum(target, source)
    boundaries = [8]
    while boundaries[-1] < longer.max():
        boundaries.append(boundaries[-1] + 2 ** (boundaries[-1].bit_length() - 1 - mantissa_bits))
    boundaries = np.array(boundaries)
    bucket = np.searchsorted(boundaries, longer)
    pairs = np.bincount(bucket.ravel(), weights=counts.ravel(), minlength=len(boundaries))
    wanted = max(1, round((counts * target).sum() / tokens_per_batch))

    def batches(positions: float) -> np.ndarray:
        return np.maximum(pairs > 0, np.round(pairs / np.maximum(1, positions // boundaries)))

    low, high = 1.0, float(pairs @ boundaries) + boundaries[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if batches(middle).sum() > wanted else (low, middle)
    return Groups(_narrow(bucket, len(boundaries)), batches(high).astype(np.int64), "sentences")


def _narrow(of_lengths: np.ndarray, groups: int) -> np.ndarray:
    return of_lengths.astype(np.uint16 if groups <= 1 << 16 else np.int32)


class Plan(NamedTuple):
    """An epoch: batch i is `order[starts[j] : starts[j + 1]]` with j = sequence[i]."""

    order: np.ndarray  # (pairs,), int32; or a slice of a file
    starts: np.ndarray  # (batches + 1,)
    sequence: np.ndarray  # (batches,)


class TokenBatches:
    """Batches of similar length for one process out of `world_size`.

    Args:
        source_lengths, target_lengths: tokens of each pair, EOS counted; (pairs,).
        tokens_per_batch: mean number of target tokens per update, over all processes.
        max_tokens: padded positions a side in one micro-batch; `None` means one micro-batch per process.
        seed: with the epoch it determines the order.
        method: "length", or the authors' buckets: "tensor2tensor" (base, one mantissa bit), "tensor2tensor_big" (two).
        plans: a folder in which the plan of an epoch is kept, for the other processes and for resuming.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        max_tokens: int | None = None,
        seed: int = 1,
        rank: int = 0,
        world_size: int = 1,
        method: str = "length",
        plans: Path | None = None,
    ):
        if not len(target_lengths):
            raise ValueError("there are no training pairs to batch")
        self.tokens_per_batch, self.max_tokens, self.seed = tokens_per_batch, max_tokens, seed
        self.rank, self.world_size, self.method, self.plans = rank, world_size, method, plans
        longest = int(max(np.max(source_lengths), np.max(target_lengths)))
        if longest > np.iinfo(np.int16).max:
            raise ValueError(f"a training pair has {longest} tokens: lower max_length below 32,768")
        if max_tokens is not None and longest > max_tokens:
            raise ValueError(
                f"a training pair has {longest} tokens, over max_tokens={max_tokens}: raise it, or lower max_length"
            )
        self.kept: tuple[int, Plan] | None = None
        self.source_lengths = np.asarray(source_lengths, dtype=np.int16)
        self.target_lengths = np.asarray(target_lengths, dtype=np.int16)

    @functools.cached_property
    def groups(self) -> Groups:
        shape = tuple(int(self._cell(side).max()) + 1 for side in (self.target_lengths, self.source_lengths))
        cells = self._cell(self.target_lengths).astype(np.int32) * np.int32(shape[1])
        cells += self._cell(self.source_lengths)
        counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        if self.method == "length":
            return groups_by_length(counts, self.tokens_per_batch)
        return groups_by_bucket(
            counts, self.tokens_per_batch, {"tensor2tensor": 1, "tensor2tensor_big": 2}[self.method]
        )

    @staticmethod
    def _cell(lengths: np.ndarray) -> np.ndarray:
        """Row or column of the table; all very long sentences share one."""
        return np.minimum(lengths, 2047)

    @property
    def batches_per_epoch(self) -> int:
        return int(self.groups.batches.sum())

    def plan(self, epoch: int) -> Plan:
        """The plan of an epoch, from its file where there is one."""
        if self.plans is None:
            if self.kept is None or self.kept[0] != epoch:
                self.kept = epoch, self._plan(epoch)
            return self.kept[1]
        inputs = [
            PLANNING,
            self.seed,
            epoch,
            self.tokens_per_batch,
            self.method,
            len(self.target_lengths),
            np.__version__,
        ]
        name = hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]
        path = self.plans / f"epoch_{epoch}-{name}.safetensors"
        try:
            file = safe_open(path, framework="numpy")
            return Plan(file.get_slice("order"), file.get_tensor("starts"), file.get_tensor("sequence"))
        except (OSError, SafetensorError):  # not there, or damaged
            plan = self._plan(epoch)
        with contextlib.suppress(OSError, SafetensorError):  # where nothing can be written, it is made each time
            self.plans.mkdir(parents=True, exist_ok=True)
            work = self.plans / f".{path.stem}.{platform.node()}"
            save_file(plan._asdict(), work)
            os.replace(work, path)
            for old in sorted(self.plans.glob("epoch_*.safetensors"), key=os.path.getmtime)[:-2]:
                old.unlink(missing_ok=True)
        return plan

    def _plan(self, epoch: int) -> Plan:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(np.arange(len(self.target_lengths), dtype=np.int32))
        group = self.groups.of_lengths[self._cell(self.target_lengths), self._cell(self.source_lengths)][order]
        order = order[np.argsort(group, kind="stable")]  # 16-bit keys: numpy sorts by radix, in linear time
        ends = np.cumsum(np.bincount(group, minlength=len(self.groups.batches)))
        del group
        if self.groups.equal == "tokens":
            weight = np.cumsum(self.target_lengths[order], dtype=np.int64)
        else:
            weight = np.arange(1, len(order) + 1)
        total = np.where(ends > 0, weight[ends - 1], 0)
        before = np.concatenate(([0], total[:-1]))
        batches = self.groups.batches
        number = np.arange(batches.sum()) - np.repeat(np.cumsum(batches) - batches, batches)  # of a batch in its group
        share = np.repeat((total - before) / np.maximum(1, batches), batches)
        starts = np.searchsorted(weight, np.repeat(before, batches) + np.round(number * share), side="right")
        starts = np.unique(np.append(starts, len(order)))  # a pair longer than a batch leaves its neighbour empty
        return Plan(order, starts, rng.permutation(len(starts) - 1))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on."""
        plan = self.plan(epoch)
        for i in plan.sequence[start:]:
            rows = plan.order[int(plan.starts[i]) : int(plan.starts[i + 1])]
            own = self.micro_batches(rows)[self.rank :: self.world_size]
            yield Batch(own, int(self.target_lengths[rows].sum()))

    def micro_batches(self, batch: np.ndarray) -> list[np.ndarray]:
        """Cuts a batch into a multiple of `world_size` groups of rows that fit `max_tokens`, equal in size."""
        longer = np.maximum(self.source_lengths[batch], self.target_lengths[batch]).astype(np.int64)
        order = np.argsort(-longer, kind="stable")
        batch, longer = batch[order], longer[order]
        if self.max_tokens is None:
            return [batch[rank :: self.world_size] for rank in range(self.world_size)]
        positions = np.cumsum(longer)
        rounds = -(-int(positions[-1]) // (self.max_tokens * self.world_size))
        while True:
            count = rounds * self.world_size
            cuts = np.searchsorted(positions, positions[-1] * np.arange(1, count) / count)
            starts, ends = np.append(0, cuts), np.append(cuts, len(batch))
            padded = (ends - starts) * longer[np.minimum(starts, len(batch) - 1)]  # the first is the longest
            if padded.max() <= self.max_tokens:
                return np.split(batch, cuts)
            rounds += 1


def by_length(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Rows in order of falling length, in groups of at most `max_tokens` padded positions: for scoring and decoding."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    groups, start = [], 0
    while start < len(order):
        size = max(1, max_tokens // max(1, int(lengths[order[start]])))
        groups.append(order[start : start + size])
        start += size
    return groups


def collate(dataset, rows: np.ndarray, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Rows of a tokenised dataset as padded tensors: input_ids, attention_mask (B, S) and labels (B, T).

    No rows give one pair whose labels are all ignored: a process without work must still take part in the update.
    """
    table = dataset.with_format("arrow")[rows if len(rows) else [0]]
    input_ids = _padded(table["input_ids"], pad_token_id)
    labels = _padded(table["labels"], IGNORE)
    if not len(rows):
        labels.fill_(IGNORE)
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(pad_token_id).long(), "labels": labels}


def _padded(column: pa.ChunkedArray, fill: int) -> torch.LongTensor:
    lists = pa.concat_arrays(column.chunks)
    lengths = pc.list_value_length(lists).to_numpy()
    padded = np.full((len(lists), lengths.max()), fill, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = lists.flatten().to_numpy()
    return torch.from_numpy(padded)
