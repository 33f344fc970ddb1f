"""Translates a test set and scores it, the paper's way and the community's, side by side:

    python scripts/evaluate.py MODEL --source FILE --reference FILE
    python scripts/evaluate.py MODEL --testset wmt14/full                      # by name, through sacreBLEU's download
    python scripts/evaluate.py MODEL --testset wmt14/full --baseline OTHER     # is the difference more than chance?
    python scripts/evaluate.py --hypothesis FILE --reference FILE --lang de    # translations made before
    python scripts/evaluate.py RUN --all --source FILE --reference FILE        # the curve over all checkpoints of a run

MODEL is a run folder or a model on the Hub. A BLEU without its signature cannot be compared: all are printed with theirs.
"""

import argparse
import difflib
import json
import socket
import sys
from pathlib import Path

import sacrebleu
import yaml

import vaswani  # noqa: F401 - registers the model
from vaswani.checkpoint import checkpoints
from vaswani.plots import bleu_curve
from vaswani.run_config import UserError, as_user_error, exit_code, positive
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
    parser.add_argument("--output", type=Path, help="where to write the translations")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args(argv)
    if bool(options.model) == bool(options.hypothesis):
        parser.error("give a MODEL that translates, or --hypothesis with its translations")
    if options.testset and (options.source or options.reference):
        parser.error("give --testset or files, not both")
    if not options.testset and not (options.reference and (options.source or options.hypothesis)):
        parser.error("give --testset, or --reference with the --source that the model translates")
    if options.all and (options.output or options.baseline or options.hypothesis):
        parser.error("--all scores the checkpoints of a run: leave out --output, --baseline and --hypothesis")
    if options.output and not options.output.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.output.parent} for --output: make it first")
    return options


def testset(name: str, pair: str) -> tuple[list[str], ...]:
    """Source and (first) reference of a test set by name, from sacreBLEU's folder or else its download."""
    if name not in sacrebleu.DATASETS:
        close = difflib.get_close_matches(name, sacrebleu.DATASETS, n=3) or ["wmt14/full"]
        raise UserError(f"sacreBLEU has no test set {name!r}: try {', '.join(close)}; `sacrebleu --list` names all")
    dataset = sacrebleu.DATASETS[name]
    if pair not in dataset.langpairs:
        raise UserError(
            f"test set {name} has no {pair}, but {', '.join(dataset.langpairs)}: see --source_lang and --lang"
        )
    socket.setdefaulttimeout(30)
    try:
        paths = dataset.get_source_file(pair), dataset.get_reference_files(pair)[0]
    except (Exception, SystemExit) as error:  # a download has many ways to fail, and the user needs the reason
        raise UserError(
            f"cannot get test set {name}: {error}; connect to a network once (sacreBLEU keeps it), "
            f"or give files with --source and --reference"
        ) from error
    return tuple(list(read_lines(Path(path))) for path in paths)


def texts(options: argparse.Namespace, config, lang: str) -> tuple[list[str] | None, list[str]]:
    """Source, where there is one, and reference."""
    if options.testset:
        return testset(options.testset, f"{options.source_lang or getattr(config, 'source_lang', None) or 'en'}-{lang}")
    return list(read_lines(options.source)) if options.source else None, list(read_lines(options.reference))


def curve(options: argparse.Namespace) -> None:
    """BLEU of every checkpoint of a run: a table, bleu_curve.json and bleu_curve.png."""
    folders = checkpoints(Path(options.model)) if options.model else []
    if not folders:
        raise UserError(f"{options.model} has no checkpoints: --all needs the folder of a run")
    points = []
    for folder in folders:
        model, tokenizer = load(str(folder))
        lang = target_language(options, model.config)
        sources, references = texts(options, model.config, lang)
        with as_user_error():
            check_lines(sources, references, lang, "source lines")
            scores = score_all(translate(model, tokenizer, sources, **generate_options(options)), references, lang)
        points.append({"step": int(folder.name.removeprefix("step_"))})
        points[-1] |= {name: round(scores[name].score, 2) for name in ("paper_bleu", "sacrebleu", "chrf2")}
        print(" | ".join(f"{name} {value:,}" for name, value in points[-1].items()), flush=True)
    best = max(points, key=lambda point: point["sacrebleu"])
    print(f"best: step {best['step']:,}, sacrebleu {best['sacrebleu']} | {scores['sacrebleu'].signature}")
    path = Path(options.model) / "bleu_curve.json"
    signatures = {name: scores[name].signature for name in ("paper_bleu", "sacrebleu", "chrf2")}
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
    lang = target_language(options, config)
    sources, references = texts(options, config, lang)
    chosen = generate_options(options)
    with as_user_error():
        if sources is not None:
            check_lines(sources, references, lang, "source lines")
        hypotheses = translate(model, tokenizer, sources, **chosen) if model else list(read_lines(options.hypothesis))
        if options.output:
            write_lines(options.output, hypotheses)
        scores = score_all(hypotheses, references, lang)
    warnings = suspicions(sources, hypotheses, references) if sources is not None else []
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{len(references):,} sentences, target language {lang}")
    for name, score in scores.items():
        print(f"  {name:<17}{score.score:7.2f}  {score.what}")
    print("details and signatures")
    for name, score in scores.items():
        print(f"  {name:<17} {' | '.join(filter(None, (score.details, score.signature)))}")
    comparison = compare(options, sources, hypotheses, references, chosen) if options.baseline else {}
    if options.json:
        record = {"sentences": len(references), "lang": lang, "warnings": warnings}
        record |= {"sacrebleu": scores["sacrebleu"].score, "signature": scores["sacrebleu"].signature}
        record["scores"] = {name: score._asdict() for name, score in scores.items()}
        record["baseline"] = {name: result._asdict() for name, result in comparison.items()}
        print(json.dumps(record))


def compare(options: argparse.Namespace, sources, hypotheses, references, chosen: dict) -> dict:
    """Prints the paired bootstrap against the baseline, a file of translations or else a model."""
    with as_user_error():
        if Path(options.baseline).is_file():
            baseline = list(read_lines(Path(options.baseline)))
        elif sources is None:
            raise UserError(f"there is no file {options.baseline}; if it is a model, add --source for it to translate")
        else:
            baseline = translate(*load(options.baseline), sources, **chosen)
        results = paired_bootstrap(hypotheses, baseline, references)
    print(f"against {options.baseline}, paired bootstrap; p: how often chance alone makes such a difference")
    for name, (score, other, p, signature) in results.items():
        print(f"  {name:<17}{score:7.2f} - {other:.2f} = {score - other:+.2f}, p = {p:.3f} | {signature}")
    return results


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
