"""Before a long run: what it would do (`--dry_run`), and whether the model can learn at all (`--overfit_one_batch`)."""

import dataclasses
import itertools
import time
from collections.abc import Callable

import numpy as np
import yaml

from .batching import Batch, TokenBatches
from .memory import memory_needed, worst_shape
from .optim import learning_rate
from .processes import Team
from .run_config import RunConfig, UserError, flat

# Does an update at a learning rate; gives the sums of smoothed loss, nll and target tokens over all processes.
Update = Callable[[Batch, float], list[float]]
TIMED, SECONDS = 20, 120  # updates that are timed, but not for longer


def dry_run(
    config: RunConfig, team: Team, say, objective, tokenizer, corpus, batches: TokenBatches, update: Update
) -> None:
    """Says what the run would do. Every process takes part in the timing; nothing is written."""
    say(yaml.safe_dump(flat(config), sort_keys=False, allow_unicode=True).rstrip())
    source, target, epoch = batches.source_lengths, batches.target_lengths, batches.batches_per_epoch
    steps = config.training.max_steps
    model = objective.model
    say(f"\nmodel: {model.num_parameters():,} parameters, {model.config.vocab_size:,} rows in the vocabulary")
    needed, shape = max((memory_needed(objective, shape), shape) for shape in worst_shape(batches))
    say(
        f"memory: about {needed / 2**30:.1f} GiB for the largest micro-batch of one process, "
        f"{shape.rows:,} pairs of up to {shape.source} + {shape.target} tokens; max_tokens bounds it"
    )
    say(
        f"an update, on average: {target.sum(dtype=np.int64) / epoch:,.0f} target tokens, "
        f"{source.sum(dtype=np.int64) / epoch:,.0f} source tokens, {len(target) / epoch:,.1f} pairs"
    )
    say(f"an epoch: {epoch:,} updates; {steps:,} updates: {steps / epoch:,.1f} epochs")
    for number, batch in enumerate(itertools.islice(batches.epoch(0), 3), start=1):
        say(f"\nbatch {number}: {described(batch, source, target, team)}")
        examples = corpus[batch.micro_batches[0][:3]]
        for ids, labels in zip(examples["input_ids"], examples["labels"], strict=True):
            say(f"  source {tokenizer.decode(ids)}\n  target {tokenizer.decode(labels)}")
    rate = learning_rate(1, config.model.d_model, config.training.warmup_steps, config.training.lr_factor)
    several = itertools.chain.from_iterable(batches.epoch(i) for i in itertools.count())
    for batch in itertools.islice(several, 3):  # the first ones are slower
        update(batch, rate)
    begin, timed = time.perf_counter(), 0
    for batch in itertools.islice(several, TIMED):
        update(batch, rate)
        timed += 1
        if team.largest(round(time.perf_counter() - begin)) > SECONDS:
            break
    seconds = (time.perf_counter() - begin) / timed
    say(
        f"\n{timed} updates took {seconds:.3f} s each: {steps:,} take {steps * seconds / 3600:,.2f} hours, validations not "
        f"counted"
    )


def described(batch: Batch, source: np.ndarray, target: np.ndarray, team: Team) -> str:
    """Size and padding of what this process has of a batch."""
    share = f", of which process {team.rank + 1} of {team.world} has" if team.world > 1 else ":"
    parts = [rows for rows in batch.micro_batches if len(rows)]
    padding = []
    for name, lengths in (("source", source), ("target", target)):
        padded = sum(len(rows) * int(lengths[rows].max()) for rows in parts)
        filled = sum(int(lengths[rows].sum()) for rows in parts)
        padding.append(f"{1 - filled / max(1, padded):.1%} padding on the {name} side")
    pairs = sum(len(rows) for rows in parts)
    return (
        f"{batch.target_tokens:,} target tokens{share} {pairs:,} pairs in {len(batch.micro_batches)} micro-batch(es), "
        f"{', '.join(padding)}"
    )


PAIRS, STEPS, LEARNT = 64, 500, 0.1  # pairs to learn, updates to do so, nats per token that count as learnt


def easy_to_learn(config: RunConfig) -> RunConfig:
    """The config without what keeps a model from learning by heart."""
    return config._replace(
        model=dataclasses.replace(config.model, dropout=0.0),
        training=dataclasses.replace(config.training, label_smoothing=0.0),
    )


def overfit_one_batch(config: RunConfig, team: Team, say, batches: TokenBatches, update: Update) -> None:
    """Trains on the same few pairs again and again. A sound model knows them by heart after some hundred updates.

    Raises:
        UserError: it does not.
    """
    lengths = batches.target_lengths
    middle = max(0, len(lengths) // 2 - PAIRS // 2)
    rows = np.argsort(lengths, kind="stable")[middle : middle + PAIRS]
    batch = Batch([rows[team.rank :: team.world]], int(lengths[rows].sum()))
    settings = config.training
    peak = learning_rate(settings.warmup_steps, config.model.d_model, settings.warmup_steps, settings.lr_factor)
    say(f"learning {len(rows)} pairs, {batch.target_tokens:,} target tokens, by heart, without dropout and smoothing")
    for step in range(1, STEPS + 1):
        _, nll, tokens = update(batch, min(peak, 1e-3) * min(1.0, step / 100))
        if step % 25 == 0 or step == 1:
            say(f"step {step}/{STEPS} | loss {nll / tokens:.3f}")
        if nll / tokens < LEARNT:
            say(
                f"learnt after {step} updates (loss {nll / tokens:.3f}): the model can learn, and its data can be learnt"
            )
            return
    raise UserError(
        f"{len(rows)} pairs are not learnt by heart after {STEPS} updates (loss {nll / tokens:.2f}): with --dry_run, see whether source "
        f"and target belong together; try a smaller lr_factor or a larger model"
    )
