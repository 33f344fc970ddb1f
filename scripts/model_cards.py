"""Writes model_cards/: the index, and a page of each model of Table 2 that is not trained yet, from the configs alone.

python scripts/model_cards.py                  # after a config has changed
python scripts/model_cards.py --add RUN/hub    # and the card and record of a folder that publish.py assembled
"""

import argparse
import shutil
import sys
from pathlib import Path

from vaswani.planned_pages import INDEX, index, planned
from vaswani.publishing import MARK
from vaswani.run_config import UserError, exit_code

ROOT = Path(__file__).parent.parent
KEPT = ("README.md", "*.png", "config.yaml", "environment.json", "data.json", "metrics.jsonl", "results.json")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="folders assembled by publish.py")
    parser.add_argument("--output", type=Path, default=ROOT / "model_cards", help="default: model_cards/")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    options.output.mkdir(exist_ok=True)
    for folder in options.add:
        if not (folder / MARK).is_file():
            raise UserError(
                f"{folder} is no folder that publish.py assembled: `python scripts/publish.py RUN --repo-id ORG/NAME --dry-run` makes one"
            )
        add(folder, options.output)
    pages = planned(ROOT)
    cards = [path.parent for path in options.output.glob("*/README.md")]
    for name, text in (pages | {INDEX: index(cards, pages)}).items():
        (options.output / name).write_text(text, encoding="utf-8")
    print(f"{options.output}: {len(cards)} card(s) of trained models, {len(pages)} page(s) of others")


def add(folder: Path, output: Path) -> None:
    """Copies the card, its figures and the record, and neither weights nor vocabulary."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    name = card.split("model-index:\n- name: ", 1)[1].split("\n", 1)[0]
    shutil.rmtree(output / name, ignore_errors=True)
    (output / name).mkdir()
    for pattern in KEPT:
        for path in folder.glob(pattern):
            shutil.copy(path, output / name)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
