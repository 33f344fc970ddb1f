"""Reads parallel text, learns the vocabulary and writes tokenised data, once: python scripts/prepare_data.py CONFIG

train.py does the same by itself where it is missing. Bad input ends with one sentence and exit code 2.
"""

import sys

from vaswani.corpora import with_recipe
from vaswani.prepared import prepare
from vaswani.run_config import exit_code, read_config
from vaswani.starting import with_model_of_init_from


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: prepare(with_model_of_init_from(with_recipe(read_config(argv))).data))


if __name__ == "__main__":
    sys.exit(main())
