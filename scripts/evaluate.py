"""Translates a test set and scores it, the paper's way and the community's, side by side:

    python scripts/evaluate.py MODEL --source FILE --reference FILE
    python scripts/evaluate.py MODEL --testset wmt14/full                      # by name, through sacreBLEU's download
    python scripts/evaluate.py MODEL --testset wmt14/full --baseline OTHER     # is the difference more than chance?
    python scripts/evaluate.py --hypothesis FILE --reference FILE --lang de    # translations made before
    python scripts/evaluate.py RUN --split test --record                       # a run's own text; into its results.json
    python scripts/evaluate.py RUN/averaged --split test --record              # the same of averaged weights
    python scripts/evaluate.py RUN --all --source FILE --reference FILE        # the curve over all checkpoints of a run

MODEL is a run folder or a model on the Hub. A BLEU without its signature cannot be compared: all are printed with theirs.
"""

import argparse
import json
import sys
from pathlib import Path

import yaml

from vaswani import VaswaniForSeq2SeqLM
from vaswani.checkpoint import checkpoints, step_of
from vaswani.held_out import HeldOut, split_of, testset
from vaswani.plots import bleu_curve
from vaswani.results import FILE, entry, perplexity, put, run_of, weights_of
from vaswani.run_config import UserError, as_user_error, exit_code, positive, read_config
from vaswani.score_checks import check_lines, suspicions
from vaswani.scoring import paired_bootstrap, score_all
from vaswani.text_lines import read_lines, write_lines
from vaswani.translation import load, translate


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a run folder, or the name of a model on the Hub")
    parser.add_argument("--testset", help="a test set that sacreBLEU knows: wmt14/full, wmt13, ...")
    parser.add_argument("--source", type=Path, help="source text, plain or .gz, a sentence a line")
    parser.add_argument("--reference", type=Path, help="its translation, line by line")
    parser.add_argument("--split", choices=["valid", "test"], help="text of the run that MODEL is, or lies in")
    parser.add_argument("--hypothesis", type=Path, help="translations to score, in place of a model's")
    parser.add_argument("--lang", help="target language, as de; default: the model's")
    parser.add_argument("--source_lang", help="source language of --testset; default: the model's, or en")
    parser.add_argument("--baseline", help="a file of translations or a model, to compare with by paired bootstrap")
    parser.add_argument("--num_beams", type=positive, help="beam; default: the model's own")
    parser.add_argument(
        "--generate", nargs="+", default=[], metavar="NAME=VALUE",
        help="more options of generate(), as length_penalty=0.6 length_penalty_type=gnmt",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="every checkpoint of the run MODEL; writes bleu_curve.json and .png into it"
    )
    parser.add_argument(
        "--tokenized",
        action="store_true",
        help="the text is Moses-tokenised: score it as it stands; the run may say so",
    )
    parser.add_argument("--record", action="store_true", help="add the scores to results.json of the run")
    parser.add_argument("--output", type=Path, help="where to write the translations")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args(argv)
    if bool(options.model) == bool(options.hypothesis):
        parser.error("give a MODEL that translates, or --hypothesis with its translations")
    if bool(options.testset) + bool(options.split) + bool(options.source or options.reference) > 1:
        parser.error("give one of --testset, --split, or files")
    if not (options.testset or options.split or (options.reference and (options.source or options.hypothesis))):
        parser.error("give --testset, --split, or --reference with the --source that the model translates")
    if (options.split or options.record) and not (options.model and run_of(options.model)):
        raise UserError(
            f"{options.model} is no model of a run (there is no config.yaml): --split and --record are for RUN, RUN/averaged "
            f"or a checkpoint of it"
        )
    if options.record and options.all:
        parser.error("--all writes a file of its own: leave out --record")
    if options.all and (options.output or options.baseline or options.hypothesis):
        parser.error("--all scores the checkpoints of a run: leave out --output, --baseline and --hypothesis")
    if options.output and not options.output.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.output.parent} for --output: make it first")
    return options


def text_of(options: argparse.Namespace, config, lang: str) -> HeldOut:
    """What is translated and scored."""
    if options.split:
        return split_of(read_config([str(run_of(options.model) / "config.yaml")]), options.split)
    if options.testset:
        return testset(options.testset, f"{options.source_lang or getattr(config, 'source_lang', None) or 'en'}-{lang}")
    sources = list(read_lines(options.source)) if options.source else None
    return HeldOut((options.source or options.reference).name, sources, list(read_lines(options.reference)))


def curve(options: argparse.Namespace) -> None:
    """BLEU of every checkpoint of a run: a table, bleu_curve.json and bleu_curve.png."""
    folders = checkpoints(Path(options.model)) if options.model else []
    if not folders:
        raise UserError(f"{options.model} has no checkpoints: --all needs the folder of a run")
    points = []
    for folder in folders:
        model, tokenizer = load(str(folder))
        lang = target_language(options, model.config)
        text = text_of(options, model.config, lang)
        with as_user_error():
            check_lines(text.sources, text.references, lang, "source lines")
            hypotheses = translate(model, tokenizer, text.sources, **generate_options(options))
            scores = score_all(hypotheses, text.references, lang, tokenized=options.tokenized or text.tokenized)
        points.append({"step": step_of(folder)})
        shown = [name for name in ("multi_bleu", "paper_bleu", "sacrebleu", "chrf2") if name in scores]
        points[-1] |= {name: round(scores[name].score, 2) for name in shown}
        print(" | ".join(f"{name} {value:,}" for name, value in points[-1].items()), flush=True)
    best = max(points, key=lambda point: point["sacrebleu"])
    print(f"best: step {best['step']:,}, sacrebleu {best['sacrebleu']} | {scores['sacrebleu'].signature}")
    path = Path(options.model) / "bleu_curve.json"
    signatures = {name: scores[name].signature for name in shown}
    path.write_text(json.dumps({"signatures": signatures, "points": points}, indent=2), encoding="utf-8")
    only_bleu = [{name: value for name, value in point.items() if name != "chrf2"} for point in points]
    bleu_curve(only_bleu, path.with_suffix(".png"), title=Path(options.model).name)
    print(f"curve: {path}, {path.with_suffix('.png')}")
    if options.json:
        print(json.dumps({"points": points, "signatures": signatures}))


def target_language(options: argparse.Namespace, config) -> str:
    if lang := options.lang or getattr(config, "target_lang", None):
        return lang
    raise UserError("the target language is not known: add --lang, as --lang de")


def generate_options(options: argparse.Namespace) -> dict:
    chosen = {"num_beams": options.num_beams} if options.num_beams else {}
    return chosen | {
        name: yaml.safe_load(value) for name, _, value in (item.partition("=") for item in options.generate)
    }


def run(options: argparse.Namespace) -> None:
    if options.all:
        return curve(options)
    model, tokenizer = load(options.model) if options.model else (None, None)
    config = model.config if model else None
    lang, chosen = target_language(options, config), generate_options(options)
    name, sources, references, tokenized = text_of(options, config, lang)
    tokenized |= options.tokenized
    with as_user_error():
        if sources is not None:
            check_lines(sources, references, lang, "source lines")
        hypotheses = translate(model, tokenizer, sources, **chosen) if model else list(read_lines(options.hypothesis))
        if options.output:
            write_lines(options.output, hypotheses)
        scores = score_all(hypotheses, references, lang, tokenized=tokenized)
    ppl = perplexity(model, tokenizer, sources, references) if isinstance(model, VaswaniForSeq2SeqLM) else None
    warnings = suspicions(sources, hypotheses, references) if sources is not None else []
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{len(references):,} sentences, target language {lang}")
    for key, score in scores.items():
        print(f"  {key:<17}{score.score:7.2f}  {score.what}")
    if ppl is not None:
        print(f"  {'ppl':<17}{ppl:7.2f}  perplexity of the references, per token, EOS counted, unsmoothed")
    print("details and signatures")
    for key, score in scores.items():
        print(f"  {key:<17} {' | '.join(filter(None, (score.details, score.signature)))}")
    if options.record:
        text, weights = {"set": name, "split": options.split}, weights_of(options.model)
        decoding = {key: getattr(model.generation_config, key) for key in ("num_beams", "length_penalty")} | chosen
        put(run_of(options.model), entry(text, weights, decoding, scores, len(references), ppl))
        print(f"recorded: {run_of(options.model) / FILE}")
    comparison = compare(options, sources, hypotheses, references, chosen, tokenized) if options.baseline else {}
    if options.json:
        record = {"sentences": len(references), "lang": lang, "warnings": warnings, "ppl": ppl}
        record |= {"sacrebleu": scores["sacrebleu"].score, "signature": scores["sacrebleu"].signature}
        record["scores"] = {key: score._asdict() for key, score in scores.items()}
        record["baseline"] = {key: result._asdict() for key, result in comparison.items()}
        print(json.dumps(record))


def compare(options: argparse.Namespace, sources, hypotheses, references, chosen: dict, tokenized: bool) -> dict:
    """Prints the paired bootstrap against the baseline, a file of translations or else a model."""
    with as_user_error():
        if Path(options.baseline).is_file():
            baseline = list(read_lines(Path(options.baseline)))
        elif sources is None:
            raise UserError(f"there is no file {options.baseline}; if it is a model, add --source for it to translate")
        else:
            baseline = translate(*load(options.baseline), sources, **chosen)
        results = paired_bootstrap(hypotheses, baseline, references, tokenized=tokenized)
    print(f"against {options.baseline}, paired bootstrap; p: how often chance alone makes such a difference")
    for name, (score, other, p, signature) in results.items():
        print(f"  {name:<17}{score:7.2f} - {other:.2f} = {score - other:+.2f}, p = {p:.3f} | {signature}")
    return results


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
