"""Trains a Transformer from raw parallel text: accelerate launch scripts/train.py CONFIG.yaml [--key value ...]

    accelerate launch scripts/train.py configs/quickstart.yaml                                      # one process
    accelerate launch --config_file configs/accelerate/gpu8.yaml scripts/train.py configs/NAME.yaml # eight GPUs
    accelerate launch --config_file configs/accelerate/cpu2.yaml scripts/train.py configs/NAME.yaml # two CPU processes
    python scripts/train.py configs/NAME.yaml --dry-run                                             # what would it do?

The same command again continues from the newest good checkpoint, exactly. SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 save and end
with code 128 + their number. The run folder (--output_dir) is the record: config.yaml, environment.json, data.json, metrics.jsonl,
validations.txt, curves.png, samples/, attention/, checkpoints/, and the final model with its tokenizer.
"""
# ruff: noqa: E402

import os

LAUNCHER = os.getppid()  # before the imports, which take seconds in which a launcher can die

import datetime
import itertools
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

# Before torch is loaded: waiting threads spin a little (small models are a third faster than with none) and then sleep
# (the default, a hundred times as long, collapses where the cores are shared).
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import accelerate
import numpy as np
import pyarrow.compute
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration, set_seed
from tqdm import tqdm

from vaswani.batching import TokenBatches
from vaswani.checkpoint import Checkpoints, Progress
from vaswani.corpora import set_name, with_recipe
from vaswani.cpu import bound_kernel_caches, computes_bf16, fast_float32, keep_freed_memory
from vaswani.diagnostics import far_from_plan
from vaswani.loss import perplexity
from vaswani.memory import largest_max_tokens, out_of_memory, rehearse, worst_shape
from vaswani.objective import Objective, by_longer_side, on_device, summed_nll
from vaswani.optim import adam, learning_rate, set_rate
from vaswani.prepared import load as load_prepared
from vaswani.prepared import prepare
from vaswani.processes import StopRequest, Team, others_must_answer
from vaswani.results import entry, put
from vaswani.run_config import RunConfig, TrainingConfig, UserError, as_user_error, exit_code, flat, read_config
from vaswani.run_folder import RunFolder, code_version, samples
from vaswani.scoring import score_all
from vaswani.starting import starting_model, with_model_of_init_from
from vaswani.trial import dry_run, easy_to_learn, overfit_one_batch
from vaswani.watching import StepLog, Validation, exact_match, translate_all


def start_accelerator(config: RunConfig) -> Accelerator:
    """Sets threads and precision; refuses a world other than the one that was launched."""
    settings, cuda = config.training, torch.cuda.is_available()
    precision = settings.mixed_precision
    if precision == "auto":
        native = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else computes_bf16()
        precision = "bf16" if native else "no"
    launched, seen = int(os.environ.get("WORLD_SIZE", "1")), 1
    if launched == 1 or "LOCAL_RANK" in os.environ:
        timeout = InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=settings.process_timeout))
        with as_user_error():  # a tracker that is not known
            accelerator = Accelerator(
                cpu=not cuda, mixed_precision=precision, kwargs_handlers=[timeout], log_with=settings.report_to,
                project_config=ProjectConfiguration(logging_dir=str(Path(settings.output_dir) / "trackers")),
            )  # fmt: skip
        seen = accelerator.num_processes
    if launched != seen:
        raise UserError(
            f"WORLD_SIZE says that {launched} processes train together but this one sees {seen}: each would train alone; "
            f"launch with `accelerate launch --multi_gpu --num_processes {launched}`, or unset WORLD_SIZE"
        )
    if not cuda:  # accelerate sets OMP_NUM_THREADS=1
        keep_freed_memory()
        bound_kernel_caches()
        fast_float32()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(settings.num_threads or max(1, cores // local))
    return accelerator


def update(accelerator: Accelerator, objective, batch, corpus, pad_token_id: int) -> torch.Tensor:
    """Accumulates the gradient of one batch; returns this process's sums of smoothed loss, nll and tokens."""
    sums = torch.zeros(3, device=accelerator.device)
    for i, rows in enumerate(batch.micro_batches):
        inputs = on_device(corpus, rows, pad_token_id, accelerator.device)
        last = i == len(batch.micro_batches) - 1
        with nullcontext() if last else accelerator.no_sync(objective):
            loss = objective(**inputs)
            # The gradient wanted is that of the sum over all processes / all target tokens; DDP takes their mean.
            accelerator.backward(loss.smoothed * (accelerator.num_processes / batch.target_tokens))
        sums += torch.stack((loss.smoothed.detach(), loss.nll, loss.tokens))
    return sums


def train(config: RunConfig, at_end: ExitStack) -> int:
    """Returns the number of the signal that ended it early, or 0."""
    # ---------------------------------------------------------------------------------- processes, data, model, batches
    accelerator = start_accelerator(config)
    team = Team(accelerator, config.training.process_timeout)
    say = print if team.main else lambda *_: None
    config = with_recipe(config)
    config = team.local_first(lambda: with_model_of_init_from(config))
    if config.training.overfit_one_batch:
        config = easy_to_learn(config)
    settings = config.training
    data = team.local_first(lambda: prepare(config.data, say))
    tokenizer, (corpus, valid, test) = load_prepared(data)
    with as_user_error():  # now, and not after weeks
        score_all(list(test["target"]), list(test["target"]), config.data.languages[1], tokenized=settings.tokenized)
    columns = [part.data[f"{side}_length"] for part in (corpus, valid, test) for side in ("source", "target")]
    longest = max(pyarrow.compute.max(column).as_py() for column in columns)
    with as_user_error():
        batches = TokenBatches(
            *(column.to_numpy() for column in columns[:2]),
            tokens_per_batch=settings.tokens_per_batch,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            rank=team.rank,
            world_size=team.world,
            method=settings.batching,
        )
        set_seed(settings.seed)
        model = starting_model(config, tokenizer, longest, accelerator.device)
    optimizer = adam(model.parameters(), (settings.adam_beta1, settings.adam_beta2), settings.adam_eps, fused=True)
    objective, optimizer = accelerator.prepare(
        Objective(model, settings.label_smoothing, settings.smoothing_over), optimizer
    )
    set_seed(settings.seed, device_specific=True)  # no two processes drop the same units
    objective.train()

    def learn(batch, rate: float) -> list[float]:  # an update outside of a run
        set_rate(optimizer, rate)
        sums = update(accelerator, objective, batch, corpus, tokenizer.pad_token_id)
        optimizer.step()
        optimizer.zero_grad()
        return accelerator.reduce(sums, "sum").tolist()

    for warning in far_from_plan(config, len(corpus), int(batches.target_lengths.sum(dtype=np.int64)), team.world):
        say(f"warning: {warning}")
    with out_of_memory(settings.max_tokens, settings.tokens_per_batch), accelerator.no_sync(objective):
        if settings.find_max_tokens:
            say(f"max_tokens: {largest_max_tokens(objective, optimizer, longest):,} fit into this machine's memory")
            return 0
    if settings.dry_run:
        dry_run(config, team, say, accelerator.unwrap_model(objective), tokenizer, corpus, batches, learn)
        return 0
    if settings.overfit_one_batch:
        overfit_one_batch(config, team, say, batches, learn)
        return 0

    # --------------------------------------------------------------------------------------- the record, and where it is
    code = code_version()
    run = RunFolder(config, data, team.main, code)
    at_end.callback(run.close)
    environment = {
        "accelerate": accelerate.__version__,
        "processes": team.world,
        "threads_per_process": torch.get_num_threads(),
        "mixed_precision": accelerator.mixed_precision,
    }
    team.main_only(lambda: run.open(environment))
    record = {"settings": flat(config), "code": code}
    store = Checkpoints(run.path, accelerator, team, model, optimizer, tokenizer, settings, record, run.say)
    progress = store.resume()
    run.rewind(progress.step)
    batches.plans = run.path / "plans"

    def plan_epoch() -> None:
        batches.plan(progress.epoch)

    team.local_first(plan_epoch)  # one process of each machine makes the plan, the others read it
    with out_of_memory(settings.max_tokens, settings.tokens_per_batch), accelerator.no_sync(objective):
        rehearse(
            objective, optimizer, worst_shape(batches, progress.epoch)
        )  # training runs out of memory now, or never
    start_trackers(accelerator, config, run, progress, at_end)
    upcoming = [len(batch.micro_batches) for batch in itertools.islice(batches.epoch(progress.epoch), 10)]
    limit = f"at most {settings.max_tokens:,} padded positions" if settings.max_tokens else "any size"
    run.say(
        f"model: {model.num_parameters():,} parameters; vocabulary {len(tokenizer):,} in {model.config.vocab_size:,} rows"
    )
    run.say(
        f"batches: {batches.batches_per_epoch:,} an epoch; an update of {settings.tokens_per_batch:,} target tokens = "
        f"{team.world} process(es) x {sum(upcoming) / len(upcoming):.1f} micro-batch(es) of {limit}"
    )
    validate = Validation(config, accelerator, team, objective, tokenizer, valid, run)
    bar = tqdm(
        total=settings.max_steps, initial=progress.step, unit="step", disable=not (run.main and sys.stderr.isatty())
    )
    log = StepLog(config, accelerator, progress, run, bar)

    # --------------------------------------------------------------------------------------------------------- the loop
    stopped_by = 0
    with StopRequest(LAUNCHER, speak=team.main) as stop:
        while not (stopped_by or is_over(progress, settings)):
            for batch in batches.epoch(progress.epoch, start=progress.batch):
                rate = learning_rate(progress.step + 1, config.model.d_model, settings.warmup_steps, settings.lr_factor)
                set_rate(optimizer, rate)
                log.add(update(accelerator, objective, batch, corpus, tokenizer.pad_token_id), len(batch.micro_batches))
                progress.advance(batch.target_tokens)
                last = progress.step == settings.max_steps
                log_it = last or progress.step == 1 or progress.step % settings.log_steps == 0
                # Measured for the log only; nothing is clipped.
                norm = accelerator.clip_grad_norm_(model.parameters(), float("inf")) if log_it else None
                optimizer.step()
                optimizer.zero_grad()

                if log_it:
                    log.line(rate, float(norm))
                paused = time.perf_counter()
                if last or progress.step % settings.eval_steps == 0:
                    validate(progress)
                stopped_by = team.largest(stop.signal)  # the same step on every process
                due = is_over(progress, settings) or progress.step % settings.save_steps == 0
                if due or stopped_by:
                    store.save(progress, by_stop=not due)
                log.pause(since=paused)
                if stopped_by or is_over(progress, settings):
                    break
            else:
                progress.epoch, progress.batch = progress.epoch + 1, 0
                team.local_first(plan_epoch)
    bar.close()
    if stopped_by:
        run.say(f"stopped by signal {stopped_by} at step {progress.step:,}, which is saved; the same command continues")
        return stopped_by
    finish(config, accelerator, team, model, tokenizer, test, progress, run)
    return 0


def is_over(progress: Progress, settings: TrainingConfig) -> bool:
    """All steps done, or as many validations without a better one as early stopping waits for."""
    patience = settings.early_stopping_patience
    waited = bool(patience and progress.scores) and progress.validations_since_best() >= patience
    return waited or progress.step >= settings.max_steps


def start_trackers(
    accelerator: Accelerator, config: RunConfig, run: RunFolder, progress: Progress, at_end: ExitStack
) -> None:
    """What metrics.jsonl is told, the trackers of --report_to are told too."""
    wanted = config.training.report_to or []
    if missing := [name for name in wanted if name not in map(str, accelerator.log_with)]:
        raise UserError(f"--report_to {missing[0]} needs its package: pip install {missing[0]}")
    if wanted:
        settings = {key: x if isinstance(x, bool | int | float | str) else str(x) for key, x in flat(config).items()}
        again = {"tensorboard": {"purge_step": progress.step + 1}, "wandb": {"name": run.path.name}}
        accelerator.init_trackers("vaswani", settings, {name: again[name] for name in wanted if name in again})
        run.track = accelerator.log
        for tracker in accelerator.trackers:
            at_end.callback(tracker.finish)


def finish(
    config: RunConfig, accelerator: Accelerator, team: Team, model, tokenizer, test, progress: Progress, run: RunFolder
) -> None:
    """Saves the final model and tokenizer at the root of the run folder and scores them on the test set."""
    if progress.step < config.training.max_steps:
        run.say(
            f"early stopping: {config.training.metric_for_best} was best at step {progress.best_steps()[0]:,} and not since"
        )
    team.main_only(lambda: run.save_model(model, tokenizer))
    sources, references = list(test["source"]), list(test["target"])
    settings = config.training
    hypotheses = translate_all(team, model, tokenizer, sources, settings.num_beams)
    own = by_longer_side(test)[team.rank :: team.world]
    nll, tokens = accelerator.reduce(summed_nll(Objective(model), test, own, tokenizer.pad_token_id), "sum").tolist()
    text, lang = {"set": set_name(config.data, "test"), "split": "test"}, config.data.languages[1]
    decoding = {"num_beams": settings.num_beams, "length_penalty": settings.length_penalty}
    results = {"step": progress.step, "best_step": progress.best_steps()[0]}
    if "kind" in test.column_names:
        results["exact_match"] = exact_match(hypotheses, references, list(test["kind"]))

    def record() -> None:
        for name, lines in (("source", sources), ("reference", references), ("translation", hypotheses)):
            run.write(f"samples/test.{name}", "".join(line.replace("\n", " ") + "\n" for line in lines))
        try:
            scores = score_all(hypotheses, references, lang, tokenized=settings.tokenized)
        except ValueError as error:  # of translations: the references were scored before training
            run.say(f"warning: the translations are not scored: {error}")
            scores = {}
        scored = entry(text, {"weights": "last"}, decoding, scores, len(references), perplexity(nll / tokens))
        put(run.path, scored, **results)
        run.say(f"test: perplexity {scored['ppl']:.2f}")
        for name, score in scores.items():
            run.say(f"test: {name} {score.score:.2f} {score.details} | {score.signature}")

    team.main_only(record)
    if "exact_match" in results:
        run.say("exact match: " + ", ".join(f"{kind}s {share:.1f}%" for kind, share in results["exact_match"].items()))
    run.say(samples(sources, references, hypotheses, config.training.num_samples))
    run.say(f"model and tokenizer: {run.path}; try: python scripts/translate.py {run.path}")


def main(argv: list[str] | None = None) -> int:
    stopped = []

    def work() -> None:
        with ExitStack() as at_end, others_must_answer():
            stopped.append(train(read_config(argv), at_end))

    try:
        code = exit_code(work)
    except SystemExit as end:
        if not torch.distributed.is_initialized():
            raise
        code = end.code  # another process has failed and said why
    if torch.distributed.is_initialized():
        if code:  # the others may be gone, or wait for this one: no farewell that would wait for them
            sys.stdout.flush()
            os._exit(code)
        torch.distributed.destroy_process_group()
    return code or (128 + stopped[0] if any(stopped) else 0)


if __name__ == "__main__":
    sys.exit(main())
