"""Translation, sentences a second: this model, MarianMTModel of the same shape or weights, CTranslate2 of the same weights.

All run in one process, in turns, with the same batches, threads and matmul precision. Without --model: base size, random
weights, outputs of a forced equal length. With it: a trained model on real sentences (--source), each engine's own lengths.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.ctranslate2_export import save_for_ctranslate2
from vaswani.marian_export import to_marian
from vaswani.packing_vaswani import packed_linears
from vaswani.run_config import UserError, positive
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.translation import DTYPES, load


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
    add("--dtypes", choices=DTYPES, nargs="+", default=["float32", "bfloat16"], help="of ours and Marian's")
    add("--matmul_precision", choices=["highest", "high", "medium"], default="highest", help="torch's flag, for all")
    add("--threads", type=positive, help="for all; default: torch's own")
    add("--rounds", type=positive, default=5)
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: threads / CPU-second, for a machine in use")


def run(args: argparse.Namespace) -> dict:
    if (args.model is None) != (args.source is None):
        raise UserError("--model and --source belong together: give both, or neither for random weights of base size")
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    model, tokenizer, sources = trained(args) if args.model else random_weights(args)
    report = {
        "what": args.model or f"base size, random weights, {args.length} tokens",
        "num_beams": args.num_beams,
        "threads": torch.get_num_threads(),
        "matmul_precision": args.matmul_precision,
        "clock": args.clock,
        "rounds": args.rounds,
        "batch": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for dtype in args.dtypes:
            engines |= torch_engines(args, model, dtype)
        engines |= ctranslate2_engines(args, model, tokenizer, Path(folder))
        for size in args.batch_sizes:
            wanted = sources[: args.sentences if size > 1 else max(1, args.sentences // 4)]
            report["batch"][size] = compare(args, engines, wanted, size)
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
def torch_engines(args: argparse.Namespace, model, dtype: str) -> dict[str, Callable]:
    """`generate()` of ours and of Marian: of ours with the weights packed beforehand, as the pipeline has them."""
    suffix = "" if dtype == "float32" else f"_{dtype}"
    marian = to_marian(model).to(DTYPES[dtype])
    ours = type(model)(model.config).eval()
    ours.load_state_dict(model.state_dict())
    ours.generation_config = model.generation_config
    ours = ours.to(DTYPES[dtype])
    if dtype != "float32":
        ours.set_attn_implementation("eager")  # what PyTorchEngine does on a CPU
    options = {"num_beams": args.num_beams, "early_stopping": False, "max_length": None}
    if not args.model:
        options["min_new_tokens"] = args.length

    def generate(which, ids: list[list[int]]) -> None:
        rows = [torch.tensor(row) for row in ids]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
        mask, most = batch.ne(model.config.pad_token_id).long(), longest_output(args, ids)
        found = which.generate(batch, attention_mask=mask, max_new_tokens=most, **options)
        assert args.model or found.shape[1] == 1 + args.length

    def with_packed(ids: list[list[int]]) -> None:
        generate(ours, ids)

    with_packed.context = lambda: packed_linears(ours)
    return {f"ours{suffix}": with_packed, f"marian{suffix}": lambda ids: generate(marian, ids)}


def ctranslate2_engines(args: argparse.Namespace, model, tokenizer, folder: Path) -> dict[str, Callable]:
    """Empty where CTranslate2 is not installed."""
    try:
        import ctranslate2
    except ImportError:
        print("CTranslate2 is not installed: it is left out", file=sys.stderr)
        return {}
    options = {"beam_size": args.num_beams, "max_input_length": 0}
    if not args.model:
        options["min_decoding_length"] = args.length
    engines = {}
    for name, quantization in (("ct2_fp32", None), ("ct2_int8", "int8")):
        save_for_ctranslate2(model, tokenizer, folder / name, quantization)
        pieces = json.loads((folder / name / "shared_vocabulary.json").read_text(encoding="utf-8"))
        translator = ctranslate2.Translator(str(folder / name), intra_threads=torch.get_num_threads())

        def translate(ids, translator=translator, pieces=pieces):
            rows = [[pieces[i] for i in row[:-1]] for row in ids]
            translator.translate_batch(rows, max_decoding_length=longest_output(args, ids), **options)

        engines[name] = translate
    return engines


# -------------------------------------------------------------------------------------------------------------- timing
def compare(args: argparse.Namespace, engines: dict[str, Callable], sources, size: int) -> dict:
    batches = [sources[i : i + size] for i in range(0, len(sources), size)]
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(-1, args.rounds):  # the first is to warm up
        for name, translate in engines.items():
            context = getattr(translate, "context", None)
            with torch.no_grad():
                seconds = timed(args, translate, batches[:1] if number < 0 else batches, context)
            if number >= 0:
                rates[name].append(len(sources) / seconds)
    report = {f"{name}_sentences_per_s": round(statistics.median(values), 2) for name, values in rates.items()}
    for name in rates:
        if name.startswith("ours"):
            suffix = name.removeprefix("ours")
            ratios = [a / b for a, b in zip(rates[name], rates[f"marian{suffix}"], strict=True)]
            report[f"ratio_vs_marian{suffix}"] = round(statistics.median(ratios), 2)
    if {"marian", "ours"} <= rates.keys():
        best = [max(row) for row in zip(*(rates[name] for name in rates if name.startswith("ours")), strict=True)]
        ratios = [a / b for a, b in zip(best, rates["marian"], strict=True)]
        report["best_of_ours_vs_marian_fp32"] = round(statistics.median(ratios), 2)
    return report


def timed(args: argparse.Namespace, translate: Callable, batches, context) -> float:
    """Seconds; by the CPU clock, those that the threads would take with a core each. Packing weights is not counted."""
    if context:
        with context():
            return timed(args, translate, batches, None)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    start = clock()
    for batch in batches:
        translate(batch)
    return (clock() - start) / (1 if args.clock == "wall" else torch.get_num_threads())


def show(report: dict) -> None:
    print(f"{report['what']}, beam {report['num_beams']}, {report['threads']} threads, median of {report['rounds']}")
    for size, figures in report["batch"].items():
        print(f"batch {size}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))
