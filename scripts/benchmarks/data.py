"""Planning an epoch of batches at the size of WMT14 EN-FR: time, memory, padding, and how fast a run is back in epoch 3."""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from vaswani.batching import Plan, TokenBatches
from vaswani.run_config import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=positive, default=36_000_000, help="simulated sentence pairs")
    parser.add_argument("--tokens_per_batch", type=positive, default=25_000, help="target tokens per update")
    parser.add_argument("--json", action="store_true", help="end with one JSON line (it always does)")


def simulated_lengths(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal target lengths of mean 30, sigma 0.6, at most 175; source lengths correlated with them."""
    rng = np.random.default_rng(0)
    sigma, log_mean = 0.6, np.log(30) - 0.6**2 / 2
    sides = [np.empty(pairs, np.int16) for _ in range(2)]
    for start in range(0, pairs, 1_000_000):  # the simulation must not be what fills the memory
        part = slice(start, min(start + 1_000_000, pairs))
        target, noise = rng.standard_normal((2, part.stop - start), dtype=np.float32)
        for side, normal in zip(sides, (0.9 * target + 0.19**0.5 * noise, target), strict=True):
            side[part] = np.clip(np.rint(np.exp(log_mean + sigma * normal)), 1, 175)
    return sides[0], sides[1]


def padding(plan: Plan, side: np.ndarray) -> float:
    """Share of the positions of a side that are padding, over the batches of an epoch."""
    lengths = side[plan.order]
    longest = np.maximum.reduceat(lengths, plan.starts[:-1])
    return 1 - lengths.sum(dtype=np.int64) / (longest * np.diff(plan.starts)).sum()


def run(options: argparse.Namespace) -> None:
    source, target = simulated_lengths(options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"tokens_per_batch": options.tokens_per_batch, "plans": Path(folder)}
        start = time.perf_counter()
        batches = TokenBatches(source, target, **settings)
        plan = batches.plan(3)
        plan_seconds = time.perf_counter() - start
        print(
            f"{options.pairs:,} pairs, {target.sum(dtype=np.int64):,} target tokens: {batches.batches_per_epoch:,} batches"
        )
        print(f"planned in {plan_seconds:.2f} s")
        sizes = np.add.reduceat(target[plan.order], plan.starts[:-1], dtype=np.int64)
        print(
            f"target tokens a batch: mean {sizes.mean():,.0f}, sd {sizes.std():,.0f}, {sizes.min():,} to {sizes.max():,}"
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory {peak:.2f} GB, the lengths included")
        resumes = []
        for where in np.linspace(0, batches.batches_per_epoch - 1, 5, dtype=int):
            start = time.perf_counter()
            next(TokenBatches(source, target, **settings).epoch(3, start=int(where)))
            resumes.append(time.perf_counter() - start)
        result = {
            "pairs": options.pairs,
            "plan_seconds": round(plan_seconds, 3),
            "peak_rss_gb": round(peak, 3),
            "padding_source": round(float(padding(plan, source)), 5),
            "padding_target": round(float(padding(plan, target)), 5),
            "resume_seconds": round(max(resumes), 4),
        }
    print(json.dumps(result))
