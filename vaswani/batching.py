"""Section 5.1: "sentence pairs were batched together by approximate sequence length", by number of tokens.

A *batch* is one optimizer update, the same for any number of processes: about `tokens_per_batch` target tokens of pairs of
similar length. It is cut into *micro-batches*, each at most `max_tokens` padded positions a side, and every process
takes equally many of them. The plan of an epoch follows from (seed, epoch) alone, so a run resumes anywhere at once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from .loss import IGNORE


class Batch(NamedTuple):
    """One update, as one process sees it."""

    micro_batches: list[np.ndarray]  # row numbers; an empty one belongs to a process that has nothing to add
    target_tokens: int  # of the whole batch, over all processes: what the gradient is divided by


class TokenBatches:
    """Batches of similar length for one process out of `world_size`.

    Args:
        source_lengths, target_lengths: tokens of each pair, EOS counted; (pairs,).
        tokens_per_batch: mean number of target tokens per update, over all processes.
        max_tokens: padded positions a side in one micro-batch; `None` means one micro-batch per process.
        seed: with the epoch it determines the order.
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
    ):
        if not len(target_lengths):
            raise ValueError("there are no training pairs to batch")
        self.max_tokens, self.seed, self.rank, self.world_size = max_tokens, seed, rank, world_size
        longest = int(max(np.max(source_lengths), np.max(target_lengths)))
        if longest > np.iinfo(np.int16).max:
            raise ValueError(f"a training pair has {longest} tokens: lower max_length below 32,768")
        self.source_lengths = np.asarray(source_lengths, dtype=np.int16)
        self.target_lengths = np.asarray(target_lengths, dtype=np.int16)
        if max_tokens is not None and longest > max_tokens:
            raise ValueError(
                f"a training pair has {longest} tokens, over max_tokens={max_tokens}: raise it, or lower max_length"
            )
        self.batches_per_epoch = max(1, round(int(self.target_lengths.sum(dtype=np.int64)) / tokens_per_batch))

    def plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """All rows in batch order, and where each batch ends in them: (pairs,), (batches,)."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.target_lengths))  # ties between equal lengths fall anew each epoch
        # Strips of similar target length, each sorted by source length, up and down in turn so that neighbours match.
        # Stable sorts, the least significant key first: on 16-bit keys numpy sorts by radix, in linear time.
        strips = max(1, round(1.4 * self.batches_per_epoch**0.5))  # measured: pads both sides alike
        order = order[np.argsort(self.target_lengths[order], kind="stable")]
        strip = self._cut(order, strips).astype(np.int16)
        source = self.source_lengths[order]
        inner = np.argsort(np.where(strip % 2 == 0, source, -source), kind="stable")
        order = order[inner[np.argsort(strip[inner], kind="stable")]]
        batch = self._cut(order, self.batches_per_epoch)
        starts = np.searchsorted(batch, np.arange(self.batches_per_epoch + 1))
        shuffled = rng.permutation(self.batches_per_epoch)
        rows = np.concatenate([order[starts[i] : starts[i + 1]] for i in shuffled])
        sizes = starts[shuffled + 1] - starts[shuffled]
        return rows, np.cumsum(sizes[sizes > 0])  # a pair longer than a whole batch leaves its neighbour empty

    def _cut(self, order: np.ndarray, parts: int) -> np.ndarray:
        """Numbers the parts when rows in this order are cut into `parts` of equal target tokens: (pairs,), rising."""
        tokens = np.cumsum(self.target_lengths[order], dtype=np.int64)
        middle = tokens - self.target_lengths[order] / 2  # a pair belongs where its middle token falls
        return np.minimum((middle * (parts / tokens[-1])).astype(np.int64), parts - 1)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on."""
        rows, ends = self.plan(epoch)
        for i in range(start, len(ends)):
            batch = rows[ends[i - 1] if i else 0 : ends[i]]
            own = self.micro_batches(batch)[self.rank :: self.world_size]
            yield Batch(own, int(self.target_lengths[batch].sum()))

    def micro_batches(self, batch: np.ndarray) -> list[np.ndarray]:
        """Cuts a batch into a multiple of `world_size` runs of rows that fit `max_tokens`."""
        count = self.world_size
        while True:
            parts = np.array_split(batch, count)
            if self.max_tokens is None or all(self._padded(part) <= self.max_tokens for part in parts):
                return parts
            count += self.world_size

    def _padded(self, rows: np.ndarray) -> int:
        if not len(rows):
            return 0
        return len(rows) * int(max(self.source_lengths[rows].max(), self.target_lengths[rows].max()))


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
    examples = dataset[rows if len(rows) else [0]]
    source, target = ([torch.as_tensor(ids) for ids in examples[name]] for name in ("input_ids", "labels"))
    input_ids = torch.nn.utils.rnn.pad_sequence(source, batch_first=True, padding_value=pad_token_id).long()
    labels = torch.nn.utils.rnn.pad_sequence(target, batch_first=True, padding_value=IGNORE).long()
    if not len(rows):
        labels.fill_(IGNORE)
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(pad_token_id).long(), "labels": labels}
