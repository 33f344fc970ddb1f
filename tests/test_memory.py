"""What fits: the rehearsal changes nothing and covers every batch; memory that runs out ends with a sentence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vaswani.batching import TokenBatches
from vaswani.memory import Shape, find_max_tokens, memory_limit, memory_needed, out_of_memory, rehearse, worst_shape
from vaswani.objective import Objective
from vaswani.optim import adam, set_rate
from vaswani.run_config import UserError


@pytest.mark.parametrize("max_tokens", [None, 150])
def test_no_micro_batch_of_any_epoch_is_larger_than_the_rehearsed_ones(max_tokens):
    rng = np.random.default_rng(0)
    source, target = rng.integers(2, 40, 3000), rng.integers(2, 40, 3000)
    batches = TokenBatches(source, target, tokens_per_batch=500, max_tokens=max_tokens)
    worst = worst_shape(batches)
    most = [max(shape.rows * max(shape[1:]) ** power for shape in worst) for power in (1, 2)]
    assert max_tokens is None or most[0] <= max_tokens
    for epoch in range(5):
        for batch in batches.epoch(epoch):
            for rows in batch.micro_batches:
                longer = max(source[rows].max(), target[rows].max())
                assert len(rows) * longer <= most[0] and len(rows) * longer**2 <= most[1]


def test_few_long_pairs_can_need_more_memory_than_many_short_ones(tiny_model):
    """Eager attention keeps weights for each pair of positions: the batch with most positions is not the largest."""
    source = np.array([20] * 300 + [300] * 10)
    target = np.array([4] * 300 + [300] * 10)
    shapes = worst_shape(TokenBatches(source, target, tokens_per_batch=600))
    short, long = sorted(shapes, key=lambda shape: shape.source)
    assert (short.source, long.source) == (20, 300)
    assert short.rows * 20 > long.rows * 300
    model = tiny_model(dropout=0.1, num_heads=8, d_k=2, d_v=2)
    needed = {}
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        objective = Objective(model).train()
        needed[attention] = [memory_needed(objective, shape) for shape in (short, long)]
    assert needed["eager"][1] > needed["eager"][0] and needed["sdpa"][1] < needed["sdpa"][0]


def test_the_epoch_to_continue_is_looked_at(monkeypatch):
    batches, asked = TokenBatches(np.full(50, 9), np.full(50, 9), tokens_per_batch=90), []
    original = batches.plan
    monkeypatch.setattr(batches, "plan", lambda epoch: asked.append(epoch) or original(epoch))
    worst_shape(batches, epoch=5)
    assert asked == [5]


def test_a_rehearsal_changes_nothing(tiny_model):
    objective = Objective(tiny_model(dropout=0.3)).train()
    optimizer = adam(objective.parameters())
    set_rate(optimizer, 0.1)
    before = [parameter.clone() for parameter in objective.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    rehearse(objective, optimizer, [Shape(3, 5, 4), Shape(2, 7, 7)])
    assert torch.equal(torch.rand(3), expected)
    assert not optimizer.state and all(parameter.grad is None for parameter in objective.parameters())
    assert all(map(torch.equal, before, objective.parameters()))


def test_only_missing_memory_becomes_a_sentence():
    sentence = r"lower max_tokens \(now 4,096;.*gradient_checkpointing"
    with pytest.raises(UserError, match=sentence), out_of_memory(4096, 25_000):
        torch.empty(1 << 55)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), out_of_memory(4096, 25_000):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_too_large_a_micro_batch_fails_at_once_under_a_limit():
    """`ulimit -v`: 25,000 positions do not fit, 500 do."""
    program = """
import resource, sys, torch
from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.memory import Shape, out_of_memory, rehearse
from vaswani.objective import Objective
from vaswani.optim import adam
from vaswani.run_config import exit_code
torch.set_num_threads(1)
model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=500, d_model=64, d_ff=256, num_layers=2, num_heads=4))
objective = Objective(model).train()
optimizer = adam(objective.parameters())
def run(rows):
    with out_of_memory(rows * 50, 25_000):
        rehearse(objective, optimizer, [Shape(rows, 50, 50)])
run(10)
with open("/proc/self/statm") as file:
    held = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (200 << 20),) * 2)
print("small:", exit_code(lambda: run(10)), flush=True)
print("large:", exit_code(lambda: run(500)), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["small: 0", "large: 2"], done.stderr
    assert "error: out of memory in one micro-batch: lower max_tokens (now 25,000" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_estimate_grows_with_the_batch_and_shrinks_with_checkpointing(tiny_model):
    objective = Objective(tiny_model(dropout=0.1, num_layers=6, d_model=64, d_ff=256, d_k=16)).train()
    small, large = (memory_needed(objective, Shape(rows, 20, 20)) for rows in (100, 1100))
    assert large > small
    objective.model.activation_checkpointing_enable()
    assert (
        memory_needed(objective, Shape(1100, 20, 20)) - memory_needed(objective, Shape(100, 20, 20))
        < (large - small) / 3
    )


@pytest.mark.parametrize(
    ("limit", "held", "found"), [(1_000_000, 0, 6800), (300_000, 0, 2200), (1_000_000, 200_000, 6800)]
)
def test_find_max_tokens(monkeypatch, limit, held, found):
    """On a machine that holds 100 bytes a position and 50,000 for the rest, and fails above 7,000 positions."""
    most = held  # memory from before, which is not given back

    def run(size: int) -> None:
        nonlocal most
        if size > 7000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        most = max(most, 50_000 + 100 * size)

    monkeypatch.setattr("vaswani.memory.peak_memory", lambda device: most)
    monkeypatch.setattr("vaswani.memory.memory_limit", lambda device: limit)
    assert find_max_tokens(run, torch.device("cpu"), start=500) == found


def test_where_memory_cannot_be_measured(monkeypatch):
    """As macOS, which has no /proc, and systems that lack a file of it."""
    monkeypatch.setattr("vaswani.memory.Path", lambda path: Path("/nowhere" + path))
    with pytest.raises(UserError, match=r"cannot measure memory here.*set max_tokens by hand"):
        find_max_tokens(lambda size: None, torch.device("cpu"), start=500)


def test_free_memory_is_shared_by_the_processes_of_a_machine(monkeypatch, tmp_path):
    for name, text in (("meminfo", "MemTotal: 9 kB\nMemAvailable:  4000 kB\n"), ("self/status", "VmRSS:\t 100 kB\n")):
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(text)
    monkeypatch.setattr("vaswani.memory.Path", lambda path: Path(f"{tmp_path}{path}"))
    assert memory_limit(torch.device("cpu")) == 4100 * 1024
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_limit(torch.device("cpu")) == 1100 * 1024
