"""Writes a trained model in another layout: python scripts/export.py MODEL OUTPUT --to hub|marian|ctranslate2

hub          a self-contained folder: code, weights, tokenizer; loads anywhere with trust_remote_code=True
marian       the same Transformer as transformers' MarianMTModel, which needs neither this package nor remote code
ctranslate2  the same for CTranslate2, the fastest on CPUs; `translate.py --engine ctranslate2` reads it
"""

import argparse
import sys
from pathlib import Path

from vaswani import VaswaniForSeq2SeqLM
from vaswani.ctranslate2_export import QUANTIZATIONS, save_for_ctranslate2
from vaswani.hub import save_for_hub
from vaswani.marian_export import to_marian
from vaswani.run_config import UserError, as_user_error, exit_code
from vaswani.translation import load


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder, or the name of a model on the Hub")
    parser.add_argument("output", type=Path, help="the folder to write; it must not exist, or be empty")
    parser.add_argument("--to", required=True, choices=["hub", "marian", "ctranslate2"])
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="of CTranslate2's weights; default: float32")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    if options.quantization and options.to != "ctranslate2":
        raise UserError(f"--quantization is for --to ctranslate2, not {options.to}: leave it out")
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        raise UserError(f"{options.output} exists already: choose another folder")
    model, tokenizer = load(options.model, device="cpu")
    if not isinstance(model, VaswaniForSeq2SeqLM):
        raise UserError(f"{options.model} is a {type(model).__name__}: only models of this project are exported")
    if options.to == "hub":
        save_for_hub(model, tokenizer, options.output)
    elif options.to == "ctranslate2":
        with as_user_error():
            save_for_ctranslate2(model, tokenizer, options.output, options.quantization)
    else:
        with as_user_error():
            exported = to_marian(model)
        exported.save_pretrained(options.output)
        tokenizer.save_pretrained(options.output)
    print(f"{options.to}: {options.output}")


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
