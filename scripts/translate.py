"""Text in, text out, a sentence a line: python scripts/translate.py MODEL [FILE|-] > translations.txt

MODEL is a run folder or a model on the Hub; without FILE, or with -, standard input is read.
"""

import argparse
import itertools
import os
import sys
from collections import Counter
from pathlib import Path

import vaswani  # noqa: F401 - registers the model
from vaswani.run_config import as_user_error, exit_code, positive
from vaswani.text_lines import decode_lines, read_lines
from vaswani.translation import load, translate


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder, or the name of a model on the Hub")
    parser.add_argument("file", nargs="?", default="-", help="text, plain or .gz, a sentence a line; -: standard input")
    parser.add_argument("--num_beams", type=positive, help="beam; default: the model's own")
    parser.add_argument("--max_tokens", type=positive, default=4096, help="padded source tokens a batch, times beams")
    parser.add_argument("--buffer", type=positive, default=1000, help="lines that are read before they are translated")
    parser.add_argument(
        "--on_bad_utf8", choices=["error", "skip", "replace"], default="replace",
        help="a line that is not UTF-8: stop, give an empty line, or replace the bytes",
    )  # fmt: skip
    return parser.parse_intermixed_args(argv)


def run(options: argparse.Namespace) -> None:
    model, tokenizer = load(options.model)
    counts: Counter = Counter()
    if options.file == "-":
        lines = decode_lines(sys.stdin.buffer, "standard input", options.on_bad_utf8, counts)
    else:
        lines = read_lines(Path(options.file), options.on_bad_utf8, counts)
    chosen = {"num_beams": options.num_beams} if options.num_beams else {}
    while buffer := [line or "" for line in itertools.islice(lines, options.buffer)]:
        with as_user_error():
            translations = translate(model, tokenizer, buffer, max_tokens=options.max_tokens, **chosen)
        for translation in translations:
            print(translation.replace("\n", " "))  # a line stays a line
        sys.stdout.flush()
    for what, count in counts.items():
        print(f"{count:,} line(s), {what}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        return exit_code(lambda: run(parse(argv)))
    except BrokenPipeError:  # whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
