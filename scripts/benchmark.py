"""Measures this project against others: python scripts/benchmark.py decode [--json] [...]; --help of each lists the rest."""

import argparse
import importlib
import sys
from pathlib import Path

from vaswani.run_config import exit_code

sys.path.insert(0, str(Path(__file__).parent))  # the benchmarks lie beside this file
KINDS = ("decode",)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    modules = {kind: importlib.import_module(f"benchmarks.{kind}") for kind in KINDS}
    for kind, module in modules.items():
        module.add_arguments(kinds.add_parser(kind, help=module.__doc__.splitlines()[0], description=module.__doc__))
    options = parser.parse_args(argv)
    return exit_code(lambda: modules[options.kind].run(options))


if __name__ == "__main__":
    sys.exit(main())
