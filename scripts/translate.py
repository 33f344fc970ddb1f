"""Text in, text out, a sentence a line: python scripts/translate.py MODEL [FILE|-] [--output FILE]

MODEL is a run folder, a model on the Hub, or with `--engine ctranslate2` a folder that export.py wrote. Without FILE, or with
-, standard input is read, and translated as it arrives. With --output the same command again continues where an interrupted
one ended. `--n_best N` prints NUMBER<TAB>SCORE<TAB>TRANSLATION, up to N lines for each sentence, NUMBER from 1.
"""

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import vaswani  # noqa: F401 - registers the model
from vaswani.engines import engine_in_processes
from vaswani.resumable import ResumableOutput, file_fingerprint
from vaswani.run_config import UserError, as_user_error, exit_code, positive
from vaswani.streams import as_they_arrive, cut_to_length, named, note
from vaswani.text_lines import decode_lines, read_lines
from vaswani.translation import DTYPES, INT8


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", help="a run folder, the name of a model on the Hub, or an exported folder")
    add("file", nargs="?", default="-", help="text, plain or .gz, a sentence a line; -: standard input")
    add("--input", help="the same as FILE")
    add("--output", type=Path, help="file for the translations; default: standard output")
    add("--engine", choices=["pytorch", "ctranslate2"], default="pytorch")
    add(
        "--dtype",
        choices=[*DTYPES, INT8],
        default="float32",
        help="of PyTorch's arithmetic; bfloat16 rounds, and is faster from the base model's size on; int8 (on a CPU) "
        "rounds, and is faster still there for batches",
    )
    add("--threads", type=positive, help="CPU threads of a process; default: the cores, shared by the workers")
    add("--workers", type=positive, default=1, help="processes, each with the model, that share the lines (CPU)")
    add("--num_beams", type=positive, help="beam; default: the model's own")
    add("--n_best", type=positive, help="that many translations of each sentence, with scores")
    add("--max_tokens", type=positive, default=4096, help="padded source tokens a batch, times beams")
    add("--max_input_length", "--max-input-length", type=positive, default=1024, help="source tokens of a sentence")
    add("--on_long", choices=["truncate", "skip"], default="truncate", help="longer: cut it, or give an empty line")
    add("--buffer", type=positive, default=2000, help="lines that are read before they are translated")
    add(
        "--on_bad_utf8", choices=["error", "skip", "replace"], default="replace",
        help="a line that is not UTF-8: stop, give an empty line, or replace the bytes",
    )  # fmt: skip
    options = parser.parse_intermixed_args(argv)
    options.file = options.input or options.file
    return options


def open_output(options: argparse.Namespace) -> ResumableOutput | None:
    if options.file == "-" and sys.stdin is None:
        raise UserError("standard input is closed: give a FILE")
    if options.output is None and sys.stdout is None:
        raise UserError("standard output is closed: give --output FILE")
    if options.output is None:
        return None
    if options.file == "-":
        raise UserError("--output needs an input file: standard input cannot be read again to continue")
    if not Path(options.file).is_file():
        raise UserError(f"there is no file {options.file}: check the path")
    model = Path(options.model)
    weights = [model / name for name in ("model.safetensors", "model.bin") if (model / name).is_file()]
    decisive = [f"{name}={value}" for name, value in sorted(vars(options).items()) if name in DECISIVE]
    return ResumableOutput(options.output, file_fingerprint(Path(options.file), *weights, *decisive))


DECISIVE = {"engine", "dtype", "num_beams", "n_best", "max_input_length", "on_long", "on_bad_utf8"}


def windows(options: argparse.Namespace, counts: Counter, done: int) -> Iterator[list[str]]:
    """Lines as they come, up to `buffer` of them at a time, from behind the `done` first."""
    if options.file == "-":
        lines = named(decode_lines(sys.stdin.buffer, "standard input", options.on_bad_utf8, counts), counts)
        yield from as_they_arrive(lines, options.buffer)
        return
    lines = itertools.islice(named(read_lines(Path(options.file), options.on_bad_utf8, counts), counts), done, None)
    while window := list(itertools.islice(lines, options.buffer)):
        yield window


def formatted(found: list[list[tuple[str, float]]], first: int, n_best: int | None) -> str:
    """A line stays a line: what would break it, or a column, becomes a space."""
    lines = []
    for number, results in enumerate(found, start=first):
        for text, score in results:
            text = " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")
            lines.append(f"{number}\t{score:.4f}\t{text.replace(chr(9), ' ')}\n" if n_best else f"{text}\n")
    return "".join(lines)


def run(options: argparse.Namespace) -> None:
    if options.engine == "ctranslate2" and options.dtype != "float32":
        raise UserError("--dtype is PyTorch's: an exported folder computes as export.py --quantization has made it")
    output = open_output(options)
    made_from = (options.model, options.engine, options.dtype, options.threads)
    with engine_in_processes(options.workers, *made_from) as engine:
        try:
            translate_all(engine, options, output)
        except KeyboardInterrupt:
            if output:
                note(f"{output.done:,} lines are saved; the same command continues")
            raise


def translate_all(engine, options: argparse.Namespace, output: ResumableOutput | None) -> None:
    limit = min(options.max_input_length, engine.positions or options.max_input_length)
    bad, long = Counter(), Counter()
    done = output.done if output else 0
    if done:
        note(f"continues {output.partial} behind line {done:,}")
    start, before, reported = time.monotonic(), done, time.monotonic()
    for window in windows(options, bad, done):
        sentences = cut_to_length(window, engine.tokenizer, limit, options.on_long, done + 1, long)
        with as_user_error():
            found = engine.translate(
                sentences, num_beams=options.num_beams, n_best=options.n_best, max_tokens=options.max_tokens
            )
        text = formatted(found, done + 1, options.n_best)
        if output:
            output.write(text, len(window))
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
        done += len(window)
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            note(f"{done:,} lines, {(done - before) / (reported - start):,.1f} sentences/s")
    if output:
        output.finish()
    for what, count in (bad + long).items():
        note(f"{count:,} line(s), {what}")
    seconds = time.monotonic() - start
    note(f"{done - before:,} lines in {seconds:,.1f} s, {(done - before) / max(seconds, 1e-9):,.1f} sentences/s")


def main(argv: list[str] | None = None) -> int:
    if sys.stdout is not None:  # or else it is closed
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        return exit_code(lambda: run(parse(argv)))
    except BrokenPipeError:  # whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
