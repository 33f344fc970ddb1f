"""Training speed, in target tokens (no padding) a second, beside what one would run instead, on the same data.

Every implementation has a process of its own and does the same number of steps of about 4,096 target tokens in turn, round
after round; shown is the median of the rounds and their range. Needs an otherwise idle machine. On a CUDA machine:

    python scripts/benchmark.py train --size base --variants ours --tokens_per_batch 25000 [--compile] [--attention eager]
"""

import argparse
import contextlib
import gzip
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.contenders import CONTENDERS, DESCRIPTIONS, Work, lengths_of
from datasets import Dataset

from vaswani.batching import TokenBatches
from vaswani.cpu import computes_bf16, give_back_freed_memory
from vaswani.run_config import positive
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.workers import answer, worker

SIZES = {
    "base": {"vocab_size": 37000, "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "dropout": 0.1},
    "tiny": {"vocab_size": 10000, "d_model": 128, "d_ff": 256, "num_layers": 4, "num_heads": 4, "dropout": 0.3},
}
STEPS = {"base": 1, "tiny": 4}  # a round
RATIOS = {
    "ratio_vs_trainer": "trainer",
    "ratio_vs_trainer_bf16": "trainer_bf16",
    "ratio_vs_torch_transformer": "torch_transformer",
    "ratio_vs_marian": "marian",
    "ratio_vs_marian_bf16": "marian_bf16",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="tiny", help="base: Table 3; tiny: 4 layers of width 128")
    parser.add_argument("--rounds", type=positive, default=5, help="times that every implementation has its turn")
    parser.add_argument("--variants", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="what is measured")
    parser.add_argument("--source", type=Path, help="text to train on, a sentence a line; none: lengths as Multi30k's")
    parser.add_argument("--target", type=Path, help="its translation")
    parser.add_argument("--tokens_per_batch", type=positive, default=4096, help="mean target tokens of a step")
    parser.add_argument("--attention", choices=["eager", "sdpa"], help="ours; none: eager on CPU, sdpa elsewhere")
    parser.add_argument("--compile", action="store_true", help="ours: torch.compile of encoder and decoder")
    parser.add_argument("--gradient_checkpointing", action="store_true", help="ours: less memory, more time")
    parser.add_argument("--json", action="store_true", help="end with one JSON line (it always does)")


def invented_pairs(pairs: int = 29_000) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Token ids with the lengths of Multi30k EN-DE under a joint vocabulary of 10,000, and a frequency law like words'.

    Logarithms of both lengths: means 2.667 and 2.683, deviations 0.291 and 0.324, correlation 0.857 (fitted).
    """
    rng = np.random.default_rng(0)
    shared, noise = rng.standard_normal((2, pairs))
    source = np.clip(np.rint(np.exp(2.667 + 0.291 * (0.857 * shared + (1 - 0.857**2) ** 0.5 * noise))), 5, 49)
    target = np.clip(np.rint(np.exp(2.683 + 0.324 * shared)), 3, 53)
    frequency = 1 / (np.arange(10_000 - 2) + 2.7)
    sides = []
    for lengths in (source.astype(int), target.astype(int)):
        ids = 2 + rng.choice(len(frequency), lengths.sum(), p=frequency / frequency.sum())
        ends = np.cumsum(lengths)
        ids[ends - 1] = 1  # EOS
        sides.append(np.split(ids, ends[:-1]))
    return sides[0], sides[1]


def real_pairs(source: Path, target: Path) -> tuple[list, list]:
    sides = []
    for path in (source, target):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            sides.append([line.rstrip("\n") for line in file])
    tokenizer = train_tokenizer(sides[0] + sides[1], 10_000)
    return tokenizer(sides[0])["input_ids"], tokenizer(text_target=sides[1])["input_ids"]


def dataset_of(options: argparse.Namespace) -> Dataset:
    text = (options.source, options.target)
    source, target = real_pairs(*text) if all(text) else invented_pairs()
    return Dataset.from_dict({"input_ids": source, "labels": target})


def padding(dataset: Dataset, tokens_per_batch: int) -> tuple[float, float]:
    """Share of padding on both sides of our batches, over an epoch."""
    lengths = [lengths_of(dataset, name) for name in ("input_ids", "labels")]
    batches = [
        rows for batch in TokenBatches(*lengths, tokens_per_batch=tokens_per_batch).epoch(0) for rows in batch[0]
    ]
    source, target = (1 - side.sum() / sum(len(rows) * side[rows].max() for rows in batches) for side in lengths)
    return float(source), float(target)


def flops_per_target_token(sizes: dict, source_per_target: float) -> float:
    """Of the matrix products with weights, forward and backward: 6 for each weight and the token that meets it."""
    d, d_ff, layers = sizes["d_model"], sizes["d_ff"], sizes["num_layers"]
    encoder, decoder = (layers * (attentions * 4 * d * d + 2 * d * d_ff) for attentions in (1, 2))
    return 6 * (encoder * source_per_target + decoder + d * sizes["vocab_size"])


def gemm_ceiling(device: str) -> float:
    """FLOPs a second of square bfloat16 products (2048 on CPU, 8192 on CUDA)."""
    size, repetitions = (2048, 10) if device == "cpu" else (8192, 50)
    x = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    for timed in (False, True):
        start = time.perf_counter()
        for _ in range(repetitions if timed else 2):
            x @ x
        if device == "cuda":
            torch.cuda.synchronize()
    return repetitions * 2 * size**3 / (time.perf_counter() - start)


class Turn:
    """What an implementation calls after every step: counts, reports each round to the parent, and waits for the next."""

    def __init__(self, pipe, steps: int, device: str, trim: bool):
        self.pipe, self.steps, self.device, self.trim = pipe, steps, device, trim
        self.tokens, self.done, self.start, self.first = 0, 0, 0.0, True

    def __call__(self, target_tokens: int) -> None:
        self.tokens, self.done = self.tokens + target_tokens, self.done + 1
        if self.done < self.steps and not self.first:  # the very first step warms up
            return
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.device == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        cpu = time.process_time()
        self.pipe.send((self.tokens, time.perf_counter() - self.start, cpu - getattr(self, "cpu", cpu), peak))
        if self.trim:
            give_back_freed_memory()  # or 24 GB are not enough for five base models at rest and one at work
        while self.pipe.recv() == "ceiling":
            self.pipe.send(gemm_ceiling(self.device))
        self.tokens, self.done, self.first = 0, 0, False
        self.start, self.cpu = time.perf_counter(), time.process_time()


def work(pipe, name: str, options: argparse.Namespace) -> None:
    """One implementation, whose steps end only with the process."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    turn = Turn(pipe, STEPS[options.size], device, trim=name != "ours")
    try:
        CONTENDERS[name](Work(SIZES[options.size], dataset_of(options), turn, device, options))
    except EOFError:  # the parent has hung up
        return


def run(options: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipes, ceilings, peaks = {}, [], {}
    with contextlib.ExitStack() as stack:
        for name in options.variants:
            os.environ.pop("GOMP_SPINCOUNT", None)
            if name == "ours":
                os.environ["GOMP_SPINCOUNT"] = "3000"  # as scripts/train.py sets it
            pipes[name] = stack.enter_context(worker(work, name, options))
            answer(name, pipes[name])  # it is ready
        speeds, cpu_speeds = {name: [] for name in pipes}, {name: [] for name in pipes}
        for number in range(options.rounds):
            for name, pipe in pipes.items():
                if name == "ours":
                    ceilings.append(answer(name, pipe, "ceiling"))
                tokens, seconds, cpu, peaks[name] = answer(name, pipe, "go")
                speeds[name].append(tokens / seconds)
                cpu_speeds[name].append(tokens / cpu)
            print(f"round {number + 1}: " + ", ".join(f"{name} {speeds[name][-1]:,.0f}" for name in pipes), flush=True)
    report(options, device, speeds, cpu_speeds, ceilings, peaks)


def report(options, device: str, speeds: dict, cpu_speeds: dict, ceilings: list, peaks: dict) -> None:
    median = {name: float(np.median(values)) for name, values in speeds.items()}
    print(f"\n{options.size} on {device}: target tokens a second, median and range of {options.rounds} rounds")
    for name, values in speeds.items():
        print(
            f"{name:18} {median[name]:10,.0f} ({min(values):,.0f} to {max(values):,.0f}) | {np.median(cpu_speeds[name]):8,.0f} "
            f"a CPU second | peak memory {peaks[name] / 2**30:.2f} GB | {DESCRIPTIONS[name]}"
        )
    dataset = dataset_of(options)
    source, target = padding(dataset, options.tokens_per_batch)
    totals = [int(lengths_of(dataset, name).sum()) for name in ("input_ids", "labels")]
    result = {"size": options.size, "device": device, "bf16": device == "cuda" or computes_bf16()}
    if "ours" in median:
        flops, ceiling = flops_per_target_token(SIZES[options.size], totals[0] / totals[1]), float(np.median(ceilings))
        share = median["ours"] * flops / ceiling
        print(f"{flops / 1e6:.1f} MFLOP a target token: {share:.0%} of {ceiling / 1e9:,.0f} GFLOP/s (bf16 products)")
        result |= {"ours_tokens_per_s": round(median["ours"], 1), "gemm_share": round(share, 4)}
        result |= {key: round(median["ours"] / median[name], 3) for key, name in RATIOS.items() if name in median}
        result["peak_rss_gb"] = round(peaks["ours"] / 2**30, 3)
    result |= {"padding_source": round(source, 5), "padding_target": round(target, 5)}
    print(json.dumps(result))
