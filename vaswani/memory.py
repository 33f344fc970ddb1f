"""Section 5.1: how many tokens fit. The largest micro-batches are rehearsed: memory runs out before training, not in it."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from .batching import TokenBatches
from .loss import CHUNK
from .run_config import UserError


class Shape(NamedTuple):
    """Of a micro-batch: pairs, and the padded lengths of their sides."""

    rows: int
    source: int
    target: int


def worst_shape(batches: TokenBatches, epoch: int = 0) -> list[Shape]:
    """At least the largest micro-batches that this process will meet: one or two shapes.

    One has most positions, rows x length; most of what the model keeps grows with them. The other has most pairs of them,
    rows x length^2, as the attention weights that the eager backend keeps. Looked up in one epoch, that with which the
    run continues, with a tenth more pairs, as the others differ a little; `max_tokens` is never exceeded.
    """
    order, starts, _ = batches.plan(epoch)
    order, rows = order[0 : int(starts[-1])], -(-np.diff(starts) // batches.world_size)
    source, target = (
        np.maximum.reduceat(lengths[order], starts[:-1]).astype(int)
        for lengths in (batches.source_lengths, batches.target_lengths)
    )
    rows, longer = -(-11 * rows // 10), np.maximum(source, target)
    if batches.max_tokens is not None:
        rows = np.minimum(rows, batches.max_tokens // longer)
    worst = {int(np.lexsort((source + target, rows * longer**power))[-1]) for power in (1, 2)}
    return [Shape(int(rows[i]), int(source[i]), int(target[i])) for i in sorted(worst)]


def invented(shape: Shape, device: torch.device) -> dict[str, torch.Tensor]:
    """A full micro-batch of that shape, as the objective takes it."""
    ids = [torch.full((shape.rows, length), 2, device=device) for length in shape[1:]]
    return {"input_ids": ids[0], "attention_mask": torch.ones_like(ids[0]), "labels": ids[1]}


def rehearse(objective: nn.Module, optimizer: torch.optim.Optimizer, shapes: list[Shape]) -> None:
    """Forward and backward of a micro-batch of each shape without an update, in the memory that a later step needs.

    Nothing is changed: no weight, no gradient, no state of a random generator. (Under DDP, call it inside `no_sync`.)
    """
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    device = parameters[0].device
    missing = 0 if optimizer.state else 2 * sum(parameter.numel() for parameter in parameters)
    moments = torch.empty(missing, device=device)  # Adam makes its own in the first update
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for shape in shapes:
            objective(**invented(shape, device)).smoothed.backward()
    optimizer.zero_grad()
    del moments


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error)
        for words in ("not enough memory", "can't allocate memory", "could not create a memory object")
    )


@contextmanager
def out_of_memory(max_tokens: int | None, tokens_per_batch: int) -> Iterator[None]:
    """Running out of memory becomes a sentence that names the setting to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        now = f"now {max_tokens:,}" if max_tokens else f"now none: up to {tokens_per_batch:,} tokens at once"
        raise UserError(
            f"out of memory in one micro-batch: lower max_tokens ({now}; the update stays the same, in more parts), "
            f"let --find_max_tokens find it, or set gradient_checkpointing"
        ) from None


def memory_needed(objective: nn.Module, shape: Shape) -> int:
    """Bytes of one training step, estimated: weights, gradients and Adam's moments, and what the backward pass needs.

    The latter is counted in a forward pass over a few pairs of the same lengths, and multiplied.
    """
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    device = parameters[0].device
    few = shape._replace(rows=max(1, min(shape.rows, 512 // max(shape[1:]))))
    kept: dict[int, int] = {}
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def count(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    sizes = []
    for rows in (few.rows, 2 * few.rows):  # two sizes, as weights in half precision are among what is kept
        kept.clear()
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            torch.autograd.graph.saved_tensors_hooks(count, lambda x: x),
        ):
            loss = objective(**invented(few._replace(rows=rows), device))
        sizes.append(sum(kept.values()))
        del loss
    activations = sizes[0] + (sizes[1] - sizes[0]) * (shape.rows / few.rows - 1)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return int(4 * weights + activations + 10 * CHUNK)  # a chunk of logits exists in 2 + 4 + 2 bytes, and a little


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held since the last call: on the device, or resident.

    Raises:
        UserError: on CPU, where the system does not tell, as only Linux does.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    try:
        peak = _bytes_of("/proc/self/status", "VmHWM")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, IndexError):
        raise UserError(
            "find_max_tokens cannot measure memory here: on CPU it needs Linux with /proc/self/clear_refs; set max_tokens "
            "by hand, --dry_run estimates the memory that it takes"
        ) from None
    return peak


def memory_limit(device: torch.device) -> int:
    """Bytes that this process can hold: what it holds, and its share of what is free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free = _bytes_of("/proc/meminfo", "MemAvailable") // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return _bytes_of("/proc/self/status", "VmRSS") + free


def _bytes_of(path: str, name: str) -> int:
    """A number that Linux gives in kB, as bytes."""
    return int(Path(path).read_text(encoding="ascii", errors="replace").split(f"{name}:")[1].split()[0]) * 1024


def find_max_tokens(run: Callable[[int], None], device: torch.device, start: int) -> int:
    """The largest number of padded positions a side, in steps of a hundredth, that fits into nine tenths of the memory.

    On CPU nothing can be tried until it fails, as the system would end the process: sizes that double until they hold more
    memory than was held before give that of one position, and the size that follows is tried once. Where an allocation fails (CUDA,
    ulimit -v), a tenth less is tried.

    Args:
        run: does a step with that many positions a side.
        start: positions to begin with; at least those of the longest pair.
    """
    size, peaks = start, []
    while len(peaks) < 3 or peaks[-2] < 1.02 * peaks[-3]:  # the last two then are both above what was held before
        run(size)
        peaks.append(peak_memory(device))
        size *= 2
    tried = size // 2
    per_position = (peaks[-1] - peaks[-2]) / (tried / 2)
    size = max(tried, int(tried + (0.9 * memory_limit(device) - peaks[-1]) / per_position))
    while size > tried:
        try:
            run(size)
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        gc.collect()
        size = max(tried, int(0.9 * size))
    digits = 10 ** max(0, len(str(size)) - 2)
    return size // digits * digits


def largest_max_tokens(objective: nn.Module, optimizer: torch.optim.Optimizer, longest: int) -> int:
    """`max_tokens` for this device, were all pairs as long as the longest one, which takes most memory."""

    def run(positions: int) -> None:
        rehearse(objective, optimizer, [Shape(positions // longest, longest, longest)])

    return find_max_tokens(run, next(objective.parameters()).device, start=max(512, longest))
