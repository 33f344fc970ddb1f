"""Reproduces a table of the paper, or one row of it: data, training, averaging, scores, and the table beside the paper's.

    python scripts/reproduce.py table2 --row en_de_base                        # Table 2, English to German, base
    python scripts/reproduce.py table3                                         # all 20 rows
    python scripts/reproduce.py multi30k --base_seeds 3 --data_dir FOLDER      # Table 3 scaled down to Multi30k, 22 runs
    python scripts/reproduce.py table2 --plan                                  # steps, tokens, FLOPs, GPU-hours; trains nothing
    python scripts/reproduce.py --rehearse --output-dir FOLDER                 # every step of every row, at toy scale

What is done is skipped, and what was interrupted continues: the same command again. Training is `accelerate launch`, which takes
all GPUs of a machine, or what --accelerate_config says. Further options (--data_dir, --max_tokens, ...) go to training as they
are. OUTPUT_DIR/TABLE/ROW/seed_N are the run folders, OUTPUT_DIR/results.json and results.md what came out.
"""

import argparse
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from vaswani import reproduction
from vaswani.paper import PEAK_FLOPS
from vaswani.rehearsal import is_rehearsal, rehearsed
from vaswani.reproduction import BEAM
from vaswani.rows import TABLES, Row, plan, rows_of
from vaswani.run_config import ModelSettings, RunConfig, UserError, exit_code, positive

HERE = Path(__file__).parent
FIXED = {field.name for field in dataclasses.fields(ModelSettings)} | {
    "label_smoothing",
    "seed",
    "init_from",
    "output_dir",
}


def share(text: str) -> float:
    """An argparse type: a number above 0, up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: give a number above 0, up to 1")
    return value


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "table", nargs="?", choices=list(TABLES), help="default, to plan or rehearse: table2 and table3"
    )
    parser.add_argument("--row", nargs="+", metavar="ROW", help="only these; an unknown one lists them all")
    parser.add_argument("--seeds", type=positive, default=1, help="runs of each row, with seeds 1, 2, ... (1)")
    parser.add_argument(
        "--base_seeds", "--base-seeds", type=positive, help="runs of the base row, where it is to have more"
    )
    parser.add_argument("--output_dir", "--output-dir", type=Path, default=Path("runs"), help="(runs)")
    parser.add_argument("--accelerate_config", "--accelerate-config", help="as configs/accelerate/gpu8.yaml")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print what it would take, and stop")
    what.add_argument("--rehearse", action="store_true", help="toy scale, on the embedded corpus")
    parser.add_argument("--gpu", nargs="+", default=["H100"], choices=list(PEAK_FLOPS), help="to plan for (H100)")
    parser.add_argument(
        "--mfu", nargs="+", type=share, default=[0.25, 0.4, 0.5], help="share of the GPU's peak to plan with"
    )
    options, more = parser.parse_known_args(argv)
    if options.table is None and (options.row or not (options.plan or options.rehearse)):
        parser.error("say which table: " + ", ".join(TABLES))
    if more and (options.plan or options.rehearse):
        parser.error(f"unknown option {more[0]}; options for training are for real runs")
    return options, more


def script(name: str):
    """Another script, as a module. Rehearsals stay in one process: starting one takes longer than its toy work."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stopped(Exception):
    """A step has ended with an exit code and said why."""


def do(name: str, words: list[str], launch: list[str] | None) -> None:
    """Runs a script to its end: in this process, or by `launch`."""
    print(f"+ scripts/{name}.py {' '.join(words)}", flush=True)
    code = script(name).main(words) if launch is None else call([*launch, str(HERE / f"{name}.py"), *words])
    if code:
        raise Stopped(128 - code if code < 0 else code)


SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def call(command: list[str]) -> int:
    """Like subprocess.call, but a signal goes on to the command and all that it has started, and all of them are waited
    for: a training that is asked to stop outlives its launcher.

    Raises:
        Stopped: there was a signal.
    """
    child, seen = None, []

    def tell(number: int) -> None:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(child.pid, number)

    def pass_on(number: int, _frame) -> None:
        seen.append(number)
        if child is not None:
            tell(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        child = subprocess.Popen(command, start_new_session=True)
        for number in seen:  # they came before it was there
            tell(number)
        code = child.wait()
        while seen and is_there(child.pid):
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if seen:
        raise Stopped(128 + seen[0])
    return code


def is_there(group: int) -> bool:
    """Is a process of this group still at work?"""
    for process in psutil.process_iter(["status"]):
        with suppress(OSError):  # it has just ended
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def check(row: Row, config: RunConfig, more: list[str]) -> None:
    """Raises: UserError: what would only be seen after days of training."""
    names = [word.split("=")[0].lstrip("-").replace("-", "_") for word in more if word.startswith("--")]
    if fixed := [name for name in names if name in FIXED]:
        raise UserError(f"--{fixed[0]} is what row {row.name} or reproduce.py itself sets: leave it out")
    settings = config.training
    there = min(settings.keep_checkpoints, -(-settings.max_steps // settings.save_steps))
    if (row.average or 0) > there:
        raise UserError(
            f"row {row.name} is the mean of {row.average} checkpoints, and with these settings {there} will be there: "
            f"raise keep_checkpoints or lower save_steps"
        )


def reproduce(row: Row, seed: int, options: argparse.Namespace, more: list[str]) -> None:
    """One row with one seed: what is done is skipped."""
    run = row.run(options.output_dir, seed)
    words = [str(row.config), *row.words(), *more, "--seed", str(seed), "--output_dir", str(run)]
    config = row.settings(*more, "--seed", str(seed))
    check(row, config, more)
    one = None if options.rehearse else [sys.executable]
    all_devices = None if options.rehearse else [*one, "-m", "accelerate.commands.launch"]
    if all_devices and options.accelerate_config:
        all_devices += ["--config_file", options.accelerate_config]
    if not reproduction.is_trained(run, config):
        do("prepare_data", words, one)  # by one process, before others wait for it
        do("train", words, all_devices)
        if not reproduction.is_trained(run, config):
            steps = config.training.max_steps
            raise UserError(f"{run} was not trained to its end, step {steps:,}: leave out options that end it early")
    model = run
    if row.average:
        model = run / "averaged"
        if not reproduction.is_averaged(run, row.average):
            do("average_checkpoints", [str(run), "--last", str(row.average)], one)
    if reproduction.scored(row, run) is None:
        do("evaluate", [str(model), "--split", row.split, "--num_beams", str(BEAM), "--record"], one)
        if reproduction.scored(row, run) is None:
            raise UserError(f"{run} has no BLEU on its {row.split} text: look at what evaluate.py says of it")


def run(options: argparse.Namespace, more: list[str]) -> None:
    tables = [options.table] if options.table else ["table2", "table3"]
    rows = [row for table in tables for row in rows_of(table, options.row)]
    runs = {row.name: options.base_seeds or options.seeds if row.name == "base" else options.seeds for row in rows}
    if options.plan:
        for row in rows:
            print(f"{row.table} {row.name}: {row.config.relative_to(HERE.parent)}, scored on its {row.split} text, "
                  + (f"mean of the last {row.average} checkpoints" if row.average else "last weights"))  # fmt: skip
        print(plan(rows, runs, options.gpu, options.mfu))
        return
    options.output_dir.mkdir(parents=True, exist_ok=True)
    rehearsal = is_rehearsal(options.output_dir)
    if rehearsal != options.rehearse and any(options.output_dir.glob("*/*/seed_*")):
        kind = "a rehearsal" if rehearsal else "real runs"
        raise UserError(f"{options.output_dir} holds {kind}: choose another --output_dir, the two are not to be mixed")
    if options.rehearse:
        rows = [rehearsed(row, options.output_dir) for row in rows]
    for row in rows:
        for seed in range(1, runs[row.name] + 1):
            reproduce(row, seed, options, more)
            path = reproduction.write(options.output_dir, options.rehearse)
    print(path.with_suffix(".md").read_text(encoding="utf-8") + f"written: {path}, {path.with_suffix('.md').name}")


def main(argv: list[str] | None = None) -> int:
    options, more = parse(argv)
    try:
        return exit_code(lambda: run(options, more))
    except Stopped as stopped:
        return stopped.args[0]


if __name__ == "__main__":
    sys.exit(main())
