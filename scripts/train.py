"""Trains a Transformer from raw parallel text: accelerate launch scripts/train.py CONFIG.yaml [--key value ...]

    accelerate launch scripts/train.py configs/quickstart.yaml                              # one process
    accelerate launch --multi_gpu --num_processes 8 scripts/train.py configs/NAME.yaml      # eight GPUs
    accelerate launch --multi_gpu --num_processes 2 scripts/train.py configs/NAME.yaml      # two CPU processes, no GPU

The same command again continues from the newest checkpoint. The run folder (--output_dir) is the record: config.yaml,
environment.json, metrics.jsonl, validations.txt, samples/, checkpoints/, and the final model with its tokenizer.
"""

import datetime
import json
import os
import sys
import time
from contextlib import nullcontext

# Before torch is loaded: waiting threads spin a little (small models are a third faster than with none) and then sleep
# (the default, a hundred times as long, collapses where the cores are shared).
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import accelerate
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object, set_seed
from datasets import load_from_disk
from tqdm import tqdm
from transformers import AutoTokenizer

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.batching import TokenBatches, by_length, collate
from vaswani.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from vaswani.cpu import computes_bf16, fast_float32, keep_freed_memory
from vaswani.memory import largest_max_tokens, out_of_memory, rehearse, worst_shape
from vaswani.objective import Objective
from vaswani.optim import adam, learning_rate, set_rate
from vaswani.prepared import prepare
from vaswani.run_config import RunConfig, UserError, as_user_error, exit_code, read_config
from vaswani.run_folder import RunFolder, samples
from vaswani.scoring import sacrebleu
from vaswani.text_lines import write_lines
from vaswani.translation import translate

SIDES = ("source", "target")


def start_accelerator(config: RunConfig) -> Accelerator:
    """Sets threads and precision; refuses a world other than the one that was launched."""
    cuda = torch.cuda.is_available()
    precision = config.training.mixed_precision
    if precision == "auto":
        native = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else computes_bf16()
        precision = "bf16" if native else "no"
    launched, seen = int(os.environ.get("WORLD_SIZE", "1")), 1
    if launched == 1 or "LOCAL_RANK" in os.environ:
        patience = InitProcessGroupKwargs(timeout=datetime.timedelta(hours=12))  # while one process prepares the data
        accelerator = Accelerator(cpu=not cuda, mixed_precision=precision, kwargs_handlers=[patience])
        seen = accelerator.num_processes
    if launched != seen:
        raise UserError(
            f"WORLD_SIZE says that {launched} processes train together but this one sees {seen}: each would train alone; "
            f"launch with `accelerate launch --multi_gpu --num_processes {launched}`, or unset WORLD_SIZE"
        )
    if not cuda:  # accelerate sets OMP_NUM_THREADS=1
        keep_freed_memory()
        fast_float32()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(config.training.num_threads or max(1, cores // local))
    set_seed(config.training.seed, device_specific=False)
    return accelerator


def on_device(accelerator: Accelerator, dataset, rows, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Rows of a tokenised dataset as the objective takes them."""
    return {name: x.to(accelerator.device) for name, x in collate(dataset, rows, pad_token_id).items()}


@torch.no_grad()
def validation_loss(accelerator: Accelerator, objective, valid, pad_token_id: int, max_tokens: int) -> float:
    """Mean -log p per target token, EOS counted, without smoothing: its exponential is the perplexity."""
    objective.eval()
    lengths = np.maximum(*(valid.data[f"{side}_length"].to_numpy() for side in SIDES))
    groups = by_length(lengths, max_tokens)
    sums = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
    for rows in groups[accelerator.process_index :: accelerator.num_processes]:
        with accelerator.autocast():
            loss = accelerator.unwrap_model(objective)(**on_device(accelerator, valid, rows, pad_token_id))
        sums += torch.stack((loss.nll.double(), loss.tokens.double()))
    nll, tokens = accelerator.reduce(sums, "sum").tolist()
    objective.train()
    return nll / tokens


def translate_all(accelerator: Accelerator, model, tokenizer, sentences: list[str], num_beams: int) -> list[str]:
    """Translations of all sentences, on every process; each translates its share. In float32, as evaluate.py does."""
    world, rank = accelerator.num_processes, accelerator.process_index
    own = translate(model, tokenizer, sentences[rank::world], num_beams=num_beams)
    shares = gather_object([own]) if world > 1 else [own]
    return [shares[i % world][i // world] for i in range(len(sentences))]


def exact_match(hypotheses, test) -> dict[str, float]:
    """Share of translations equal to the reference, per kind of sentence, where the corpus names kinds."""
    hits: dict[str, list[bool]] = {}
    for hypothesis, reference, kind in zip(hypotheses, test["target"], test["kind"], strict=True):
        hits.setdefault(kind, []).append(hypothesis == reference)
    return {kind: round(100 * sum(equal) / len(equal), 2) for kind, equal in sorted(hits.items())}


def update(accelerator: Accelerator, objective, batch, corpus, pad_token_id: int) -> torch.Tensor:
    """Accumulates the gradient of one batch; returns this process's sums of smoothed loss, nll and tokens."""
    sums = torch.zeros(3, device=accelerator.device)
    for i, rows in enumerate(batch.micro_batches):
        inputs = on_device(accelerator, corpus, rows, pad_token_id)
        last = i == len(batch.micro_batches) - 1
        with nullcontext() if last else accelerator.no_sync(objective):
            loss = objective(**inputs)
            # The gradient wanted is that of the sum over all processes / all target tokens; DDP takes their mean.
            accelerator.backward(loss.smoothed * (accelerator.num_processes / batch.target_tokens))
        sums += torch.stack((loss.smoothed.detach(), loss.nll, loss.tokens))
    return sums


def validate(
    config: RunConfig, accelerator: Accelerator, objective, tokenizer, valid, state: dict, run: RunFolder
) -> None:
    """Loss and perplexity of the whole set; BLEU and samples of greedy translations."""
    nll = validation_loss(accelerator, objective, valid, tokenizer.pad_token_id, max_tokens=4096)
    chosen = valid.select(range(min(config.training.eval_sentences or len(valid), len(valid))))
    sources, references = list(chosen["source"]), list(chosen["target"])
    model = accelerator.unwrap_model(objective).model
    hypotheses = translate_all(accelerator, model, tokenizer, sources, num_beams=1)
    bleu = sacrebleu(hypotheses, references)
    best = "*" if bleu.score > state["best_bleu"] else " "
    state["best_bleu"] = max(state["best_bleu"], bleu.score)
    ppl = float(np.exp(min(nll, 50)))
    line = f"{best} step {state['step']:,} | valid loss {nll:.3f} | ppl {ppl:.2f} | BLEU {bleu.score:.2f} (greedy)"
    shown = samples(sources, references, hypotheses, config.training.num_samples)
    run.say(f"{line}\n{shown}")
    run.note(state["step"], valid_nll=nll, valid_ppl=ppl, valid_bleu=bleu.score)
    run.write("validations.txt", line + "\n", mode="a")
    run.write(f"samples/step_{state['step']}.txt", shown)


def finish(config: RunConfig, accelerator: Accelerator, model, tokenizer, test, state: dict, run: RunFolder) -> None:
    """Saves the final model and tokenizer at the root of the run folder and scores them on the test set."""
    if accelerator.is_main_process:
        model.save_pretrained(run.path)
        tokenizer.save_pretrained(run.path)
    sources, references = list(test["source"]), list(test["target"])
    hypotheses = translate_all(accelerator, model, tokenizer, sources, config.training.num_beams)
    bleu = sacrebleu(hypotheses, references)
    results = {
        "test_bleu": bleu.score,
        "signature": bleu.signature,
        "num_beams": config.training.num_beams,
        "step": state["step"],
    }
    if "kind" in test.column_names:
        results["exact_match"] = exact_match(hypotheses, test)
    for name, lines in (("source", sources), ("reference", references), ("translation", hypotheses)):
        if run.main:
            write_lines(run.path / "samples" / f"test.{name}", lines)
    run.write("results.json", json.dumps(results, indent=2))
    run.say(f"test: {bleu}")
    if "exact_match" in results:
        run.say("exact match: " + ", ".join(f"{kind}s {share:.1f}%" for kind, share in results["exact_match"].items()))
    run.say(samples(sources, references, hypotheses, config.training.num_samples))
    run.say(f"model and tokenizer: {run.path}; try: python scripts/translate.py {run.path}")


def train(config: RunConfig) -> None:
    settings = config.training
    accelerator = start_accelerator(config)
    with accelerator.local_main_process_first():
        data = prepare(config.data, print if accelerator.is_main_process else lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
    corpus, valid, test = (load_from_disk(str(data / split)) for split in ("train", "valid", "test"))
    with as_user_error():
        architecture = VaswaniConfig(
            **vars(config.model),
            vocab_size=len(tokenizer),
            source_lang=config.data.source_lang,
            target_lang=config.data.target_lang,
        )
        batches = TokenBatches(
            corpus.data["source_length"].to_numpy(),
            corpus.data["target_length"].to_numpy(),
            tokens_per_batch=settings.tokens_per_batch,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
        longest = max(max(part.data[f"{side}_length"].to_numpy()) for part in (corpus, valid, test) for side in SIDES)
        limit = config.model.max_position_embeddings
        if config.model.position_encoding == "learned" and longest > limit:
            raise ValueError(
                f"a sentence has {longest} tokens, over the {limit} learned positions: raise max_position_embeddings"
            )
    environment = {
        "accelerate": accelerate.__version__,
        "processes": accelerator.num_processes,
        "threads_per_process": torch.get_num_threads(),
        "mixed_precision": accelerator.mixed_precision,
    }
    run = RunFolder(config, data, accelerator.is_main_process)
    accelerator.wait_for_everyone()
    run.open(environment)
    accelerator.wait_for_everyone()

    attention = "eager" if accelerator.device.type == "cpu" else "sdpa"
    architecture._attn_implementation = attention if settings.attention == "auto" else settings.attention
    model = VaswaniForSeq2SeqLM(architecture)
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable()
    if settings.torch_compile:
        model.model.encoder.compile(dynamic=True)
        model.model.decoder.compile(dynamic=True)
    model.generation_config.num_beams = settings.num_beams
    model.generation_config.length_penalty = settings.length_penalty
    optimizer = adam(model.parameters(), (settings.adam_beta1, settings.adam_beta2), settings.adam_eps, fused=True)
    objective, optimizer = accelerator.prepare(
        Objective(model, settings.label_smoothing, settings.smoothing_over), optimizer
    )
    run.say(f"model: {model.num_parameters():,} parameters; vocabulary {len(tokenizer):,}")
    run.say(f"batches: {batches.batches_per_epoch:,} an epoch, of {settings.tokens_per_batch:,} target tokens")

    state = {"step": 0, "epoch": 0, "batch": 0, "target_tokens": 0, "seconds": 0.0, "best_bleu": -1.0}
    set_seed(settings.seed, device_specific=True)  # no two processes drop the same units
    if saved := checkpoints(run.path):
        state = load_checkpoint(saved[-1], accelerator, model, optimizer)
        run.rewind(state["step"])
        run.say(f"continuing from {saved[-1]}")
    objective.train()
    with out_of_memory(settings.max_tokens, settings.tokens_per_batch), accelerator.no_sync(objective):
        if settings.find_max_tokens:
            run.say(
                f"max_tokens: {largest_max_tokens(objective, optimizer, int(longest)):,} fit into this machine's memory"
            )
            return
        rehearse(objective, optimizer, worst_shape(batches))
    bar = tqdm(
        total=settings.max_steps, initial=state["step"], unit="step", disable=not (run.main and sys.stderr.isatty())
    )
    sums, tokens_logged, clock = torch.zeros(3, device=accelerator.device), state["target_tokens"], time.perf_counter()

    while state["step"] < settings.max_steps:
        for batch in batches.epoch(state["epoch"], start=state["batch"]):
            rate = learning_rate(state["step"] + 1, config.model.d_model, settings.warmup_steps, settings.lr_factor)
            set_rate(optimizer, rate)
            sums += update(accelerator, objective, batch, corpus, tokenizer.pad_token_id)
            state["step"] += 1
            state["batch"] += 1
            state["target_tokens"] += batch.target_tokens
            last = state["step"] == settings.max_steps
            log = last or state["step"] % settings.log_steps == 0
            norm = None  # measured for the log; nothing is clipped
            if log:
                norm = float(accelerator.clip_grad_norm_(model.parameters(), float("inf")))
            optimizer.step()
            optimizer.zero_grad()
            bar.update()

            if log:
                smoothed, nll, tokens = accelerator.reduce(sums, "sum").tolist()
                if not np.isfinite(smoothed):
                    raise UserError(
                        f"the loss is no longer a number at step {state['step']:,}: lower lr_factor or raise warmup_steps; "
                        f"checkpoints up to here are kept, --fresh starts over"
                    )
                seconds = time.perf_counter() - clock
                state["seconds"] += seconds
                speed = (state["target_tokens"] - tokens_logged) / seconds
                left = (settings.max_steps - state["step"]) * state["seconds"] / state["step"]
                line = (
                    f"loss {smoothed / tokens:.3f} | ppl {np.exp(min(nll / tokens, 50)):.2f} | {speed:,.0f} tokens/s | "
                    f"lr {rate:.2e} | grad norm {norm:.2f} | left {datetime.timedelta(seconds=round(left))}"
                )
                bar.set_postfix_str(line)
                if bar.disable:
                    run.say(f"step {state['step']:,}/{settings.max_steps:,} | {line}")
                run.note(
                    state["step"], loss=smoothed / tokens, nll=nll / tokens, lr=rate, grad_norm=norm,
                    tokens_per_second=speed, epoch=state["epoch"], target_tokens=state["target_tokens"],
                    seconds=state["seconds"],
                )  # fmt: skip
                sums.zero_()
                tokens_logged, clock = state["target_tokens"], time.perf_counter()
            paused = time.perf_counter()
            if last or state["step"] % settings.eval_steps == 0:
                validate(config, accelerator, objective, tokenizer, valid, state, run)
            if last or state["step"] % settings.save_steps == 0:
                save_checkpoint(run.path, accelerator, model, optimizer, tokenizer, state, settings.keep_checkpoints)
            clock += time.perf_counter() - paused  # speed is that of training alone
            if last:
                break
        else:
            state["epoch"], state["batch"] = state["epoch"] + 1, 0
    bar.close()
    finish(config, accelerator, model, tokenizer, test, state, run)


def main(argv: list[str] | None = None) -> int:
    try:
        return exit_code(lambda: train(read_config(argv)))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
