"""Translation, sentences a second: this model, MarianMTModel of the same shape or weights, CTranslate2 of the same weights.

Each has a process of its own (beside CTranslate2's threads torch's wait in another way: half the speed at batch 1), and they
take turns, with the same batches, threads and matmul precision. Ours is there once more with the threads in processes that
share each batch, as `translate.py --workers` has it. Without --model: base size, random weights, outputs of a forced equal
length. With it: a trained model on real sentences (--source), each engine's own lengths.
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.cpu import computes_int8
from vaswani.ctranslate2_export import load_translator, save_for_ctranslate2
from vaswani.marian_export import to_marian
from vaswani.packing_vaswani import packed_linears
from vaswani.run_config import UserError, positive
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.translation import DTYPES, INT8, in_arithmetic, load, set_up_process
from vaswani.workers import answer, tell, worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--model", help="a run folder or a model on the Hub; default: base size, random weights")
    add("--source", type=Path, help="with --model: text, a sentence a line")
    add("--sentences", type=positive, default=32, help="sentences in a round at batch 32; a quarter of them at batch 1")
    add("--batch_sizes", type=positive, nargs="+", default=[1, 32])
    add("--num_beams", type=positive, default=4)
    add("--length", type=positive, default=20, help="tokens of source and output, without --model")
    add("--vocab_size", type=positive, default=37000, help="without --model")
    int8 = [INT8] if computes_int8() else []
    dtypes = {"choices": [*DTYPES, *int8], "default": ["float32", "bfloat16", *int8]}
    add("--dtypes", nargs="+", **dtypes, help="of ours and Marian's, which has no int8")
    add("--matmul_precision", choices=["highest", "high", "medium"], default="highest", help="torch's flag, for all")
    add("--marian_attention", choices=["sdpa", "eager"], default="sdpa", help="sdpa is what it comes with")
    add("--threads", type=positive, help="for all; default: torch's own")
    add("--workers", type=positive, help="processes of ours that share the threads; default: 2 of an even number")
    add("--rounds", type=positive, default=5)
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: threads / CPU-second, for a machine in use")


def run(args: argparse.Namespace) -> dict:
    if (args.model is None) != (args.source is None):
        raise UserError("--model and --source belong together: give both, or neither for random weights of base size")
    args.threads = args.threads or torch.get_num_threads()
    args.workers = args.workers or (1 if args.threads % 2 else 2)
    if args.threads % args.workers:
        raise UserError(f"--workers {args.workers} cannot share {args.threads} threads evenly: choose a divisor, or 1")
    report = {
        "what": args.model or f"base size, random weights, {args.length} tokens",
        "num_beams": args.num_beams,
        "threads": args.threads,
        "workers": args.workers,
        "matmul_precision": args.matmul_precision,
        "marian_attention": args.marian_attention,
        "clock": args.clock,
        "rounds": args.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, sources = trained(args) if args.model else random_weights(args)
        sides = [(side, dtype) for dtype in args.dtypes for side in ("ours", "marian")]
        names = [side + suffix_of(dtype) for side, dtype in sides if (side, dtype) != ("marian", INT8)]
        names += exported(model, tokenizer, Path(folder))
        del model
        engines = {name: (name, 1) for name in names}
        if args.workers > 1 and max(args.batch_sizes) >= args.workers:
            ours = [name for name in names if name.startswith("ours")]
            engines |= {f"{name}_{args.workers}_workers": (name, args.workers) for name in ours}
        with contextlib.ExitStack() as stack:
            pipes = {
                name: [stack.enter_context(worker(serve, *engine, args, Path(folder))) for _ in range(engine[1])]
                for name, engine in engines.items()
            }
            for name, parts in pipes.items():
                for pipe in parts:
                    answer(name, pipe)  # it is ready
            report["batch"] = {
                size: compare(args, pipes, sources[: args.sentences if size > 1 else max(1, args.sentences // 4)], size)
                for size in args.batch_sizes
            }
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return report


def trained(args: argparse.Namespace):
    model, tokenizer = load(args.model, "cpu")
    lines = [line for line in args.source.read_text(encoding="utf-8").split("\n") if line.strip()][: args.sentences]
    return model, tokenizer, sorted((tokenizer(line)["input_ids"] for line in lines), key=len)


def random_weights(args: argparse.Namespace):
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=args.vocab_size)).eval()
    sources = torch.randint(2, args.vocab_size, (args.sentences, args.length))
    sources[:, -1] = model.config.eos_token_id
    return model, train_tokenizer(["a vocabulary of bytes"], 300), sources.tolist()


def longest_output(args: argparse.Namespace, ids: list[list[int]]) -> int:
    return max(map(len, ids)) + 50 if args.model else args.length


# ------------------------------------------------------------------------------------------------------------- engines
def suffix_of(dtype: str) -> str:
    return "" if dtype == "float32" else f"_{dtype}"


def exported(model, tokenizer, folder: Path) -> list[str]:
    """Writes the model for CTranslate2: the names of its engines, none where it is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        print("CTranslate2 is not installed: it is left out", file=sys.stderr)
        return []
    kinds = {"ct2_fp32": None, "ct2_int8": "int8"}
    for name, quantization in kinds.items():
        save_for_ctranslate2(model, tokenizer, folder / name, quantization)
    return list(kinds)


def serve(pipe, name: str, workers: int, args: argparse.Namespace, folder: Path) -> None:
    """One of `workers` processes of an engine, set up as translate.py does it, answers batches of token ids with the
    seconds they took; what is set for the process is the same for all engines."""
    set_up_process()
    threads = args.threads // workers
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if name.startswith("ct2"):
            translate = ctranslate2_engine(args, folder / name)
        else:
            translate = torch_engine(args, name, stack)
        pipe.send("ready")
        while True:
            try:
                batches = pipe.recv()
            except (EOFError, ConnectionError):  # the parent has hung up
                return
            start = clock()
            for batch in batches:
                translate(batch)
            pipe.send((clock() - start) / (1 if args.clock == "wall" else threads))


def torch_engine(args: argparse.Namespace, name: str, stack: contextlib.ExitStack) -> Callable:
    """`generate()` of ours or of Marian: of ours with the weights packed beforehand, as the pipeline has them."""
    dtype = name.partition("_")[2] or "float32"
    model = (trained(args) if args.model else random_weights(args))[0]
    if name.startswith("ours"):
        which = in_arithmetic(model, dtype)
        stack.enter_context(packed_linears(which, dtype == INT8))
    else:
        which = to_marian(model).to(DTYPES[dtype])
        which.set_attn_implementation(args.marian_attention)
    pad = model.config.pad_token_id
    options = {"num_beams": args.num_beams, "early_stopping": False, "max_length": None}
    if not args.model:
        options["min_new_tokens"] = args.length

    def translate(ids: list[list[int]]) -> None:
        batch = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, ids)), batch_first=True, padding_value=pad)
        mask, most = batch.ne(pad).long(), longest_output(args, ids)
        found = which.generate(batch, attention_mask=mask, max_new_tokens=most, **options)
        assert args.model or found.shape[1] == 1 + args.length

    return translate


def ctranslate2_engine(args: argparse.Namespace, folder: Path) -> Callable:
    options = {"beam_size": args.num_beams, "max_input_length": 0}
    if not args.model:
        options["min_decoding_length"] = args.length
    pieces = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    translator = load_translator(folder, intra_threads=args.threads)

    def translate(ids: list[list[int]]) -> None:
        rows = [[pieces[i] for i in row[:-1]] for row in ids]
        translator.translate_batch(rows, max_decoding_length=longest_output(args, ids), **options)

    return translate


# -------------------------------------------------------------------------------------------------------------- timing
def compare(args: argparse.Namespace, pipes: dict, sources, size: int) -> dict:
    batches = [sources[i : i + size] for i in range(0, len(sources), size)]
    pipes = {name: parts for name, parts in pipes.items() if len(parts) <= size}
    rates: dict[str, list[float]] = {name: [] for name in pipes}
    for number in range(-1, args.rounds):  # the first is to warm up
        for name, parts in pipes.items():
            for first, pipe in enumerate(parts):
                shares = [batch[first :: len(parts)] for batch in batches[: 1 if number < 0 else None]]
                tell(name, pipe, [share for share in shares if share])
            seconds = max(answer(name, pipe) for pipe in parts)
            if number >= 0:
                rates[name].append(len(sources) / seconds)
    report = {f"{name}_sentences_per_s": round(statistics.median(values), 2) for name, values in rates.items()}
    for name in rates:
        suffix = name.removeprefix("ours")
        if suffix != name and f"marian{suffix}" in rates:
            ratios = [a / b for a, b in zip(rates[name], rates[f"marian{suffix}"], strict=True)]
            report[f"ratio_vs_marian{suffix}"] = round(statistics.median(ratios), 2)
    if {"marian", "ours"} <= rates.keys():
        best = [max(row) for row in zip(*(rates[name] for name in rates if name.startswith("ours")), strict=True)]
        ratios = [a / b for a, b in zip(best, rates["marian"], strict=True)]
        report["best_of_ours_vs_marian_fp32"] = round(statistics.median(ratios), 2)
    return report


def show(report: dict) -> None:
    print(f"{report['what']}, beam {report['num_beams']}, {report['threads']} threads, median of {report['rounds']}")
    for size, figures in report["batch"].items():
        print(f"batch {size}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))
