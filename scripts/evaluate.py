"""Translates a test set and scores it: python scripts/evaluate.py MODEL --source FILE --reference FILE

Prints sacreBLEU with its signature; a BLEU without one cannot be compared.
"""

import argparse
import json
import sys
from pathlib import Path

from transformers.utils import logging

import vaswani  # noqa: F401 - registers the model
from vaswani.corpora import read_lines, write_lines
from vaswani.run_config import UserError
from vaswani.scoring import sacrebleu
from vaswani.translation import load, translate


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder, or the name of a model on the Hub")
    parser.add_argument("--source", type=Path, required=True, help="source text, plain or .gz, a sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translation, line by line")
    parser.add_argument("--num_beams", type=int, help="beam; default: the model's own")
    parser.add_argument("--output", type=Path, help="where to write the translations")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    sources, references = list(read_lines(options.source)), list(read_lines(options.reference))
    if len(sources) != len(references) or not sources:
        raise UserError(
            f"{options.source} has {len(sources):,} lines and {options.reference} {len(references):,}: "
            f"a test set needs the same number, and at least one"
        )
    model, tokenizer = load(options.model)
    chosen = {"num_beams": options.num_beams} if options.num_beams else {}
    hypotheses = translate(model, tokenizer, sources, **chosen)
    if options.output:
        write_lines(options.output, hypotheses)
    score = sacrebleu(hypotheses, references)
    print(f"{len(sources):,} sentences: {score}")
    if options.json:
        print(json.dumps({"sacrebleu": score.score, "signature": score.signature, "sentences": len(sources)}))


def main(argv: list[str] | None = None) -> int:
    logging.disable_progress_bar()
    try:
        run(parse(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
