"""Measures speed and memory: python scripts/benchmark.py NAME [options]; the last line is JSON."""

import argparse
import importlib
import sys
from pathlib import Path

from vaswani.run_config import exit_code

sys.path.append(str(Path(__file__).parent))  # the benchmarks lie beside this file

BENCHMARKS = {
    "data": "planning batches at the size of WMT14 EN-FR",
    "decode": "translating beside other implementations",
    "prepare": "reading, cleaning and tokenising a corpus",
    "train": "training beside other implementations",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in BENCHMARKS}
    for name, module in modules.items():
        module.add_arguments(commands.add_parser(name, help=BENCHMARKS[name], description=module.__doc__))
    options = parser.parse_args(argv)
    return exit_code(lambda: modules[options.name].run(options))


if __name__ == "__main__":
    sys.exit(main())
