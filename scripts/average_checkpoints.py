"""Averages checkpoints of a run, as the paper did for its results: the last 5 (base) or 20 (big).

    python scripts/average_checkpoints.py RUN --last 5                        # writes RUN/averaged
    python scripts/average_checkpoints.py RUN --last 5 --every 3000           # only steps that 3,000 divides
    python scripts/average_checkpoints.py RUN --steps 12000 15000 --output FOLDER

--last leaves out what a stop saved between the run's save_steps. The result is a model folder with its tokenizer;
averaged_from.json says what went in.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from transformers import AutoTokenizer

from vaswani.checkpoint import average, checkpoints, regular, step_of
from vaswani.run_config import UserError, as_user_error, exit_code


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, help="how many, counted from the newest")
    which.add_argument("--steps", type=int, nargs="+", help="which, by step")
    parser.add_argument("--every", type=int, default=1, help="with --last: only steps that this divides")
    parser.add_argument("--output", type=Path, help="folder of the result (RUN/averaged)")
    return parser.parse_args(argv)


def choose(options: argparse.Namespace) -> list[Path]:
    found = {step_of(folder): folder for folder in checkpoints(options.run)}
    if not found:
        raise UserError(f"{options.run} has no checkpoints: give the folder of a run")
    listed = ", ".join(map(str, found))
    if options.steps:
        if missing := [step for step in options.steps if step not in found]:
            raise UserError(f"{options.run} has no checkpoint of step {missing[0]}; it has {listed}")
        return [found[step] for step in sorted(set(options.steps))]
    with as_user_error():
        spaced = [x for x in regular(list(found.values())) if step_of(x) % max(1, options.every) == 0]
    if not 0 < options.last <= len(spaced):
        counted = ", ".join(str(step_of(folder)) for folder in spaced)
        raise UserError(
            f"{options.run} has {len(spaced)} checkpoint(s) to average ({counted}), and not --last {options.last}: give "
            f"another number, or --steps (those that a stop saved between save_steps do not count)"
        )
    return spaced[-options.last :]


def run(options: argparse.Namespace) -> None:
    folders = choose(options)
    output = options.output or options.run / "averaged"
    if output.exists() and not (output / "averaged_from.json").exists() and any(output.iterdir()):
        raise UserError(f"{output} holds something else than an earlier average: choose another --output")
    work = output.with_name(f".{output.name}")  # made aside: a folder that is there is whole
    shutil.rmtree(work, ignore_errors=True)
    average(folders).save_pretrained(work)
    AutoTokenizer.from_pretrained(folders[-1]).save_pretrained(work)
    record = {"run": options.run.name, "checkpoints": [folder.name for folder in folders]}
    (work / "averaged_from.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    old = output.with_name(f".{output.name}.old")  # at no moment half an average
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    work.rename(output)
    shutil.rmtree(old, ignore_errors=True)
    print(f"average of {', '.join(folder.name for folder in folders)}: {output}")


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
