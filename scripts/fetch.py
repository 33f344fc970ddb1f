"""Gets the paper's data by the name of a recipe: python scripts/fetch.py wmt14_en_de --to FOLDER

What is there already is kept, a download that broke off goes on where it stopped. --list shows the recipes: corpora,
sizes, terms, and who published the counts and checksums. Bad input ends with one sentence and exit code 2.
"""

import argparse
import sys
from pathlib import Path

from vaswani.recipes import SOURCES, parts, resolve
from vaswani.run_config import UserError, exit_code
from vaswani.wmt import RECIPES, Recipe


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--to", type=Path, help="the folder in which the text is, or will be")
    parser.add_argument(
        "--source",
        default="archives",
        choices=SOURCES,
        help="archives: the original ones; hub: datasets of the Hub; files: only what is in the folder",
    )
    parser.add_argument("--list", action="store_true", help="show what a recipe, or each, is made of; get nothing")
    return parser.parse_args(argv)


def describe(recipe: Recipe) -> str:
    corpora = parts(recipe)
    published = list(
        dict.fromkeys(source for _, c in corpora for source in (c.lines_from[recipe.lang], c.archive.digest_from))
    )
    lines = [f"{recipe.name}: {recipe.title}"]
    for _, corpus in corpora:
        archive, pairs = corpus.archive, corpus.lines[recipe.lang]
        size = f"{archive.size / 1e6:,.0f} MB, " if archive.size else ""
        checksum = f"{archive.digest.split(':')[0]} [{published.index(archive.digest_from) + 1}]"
        lines += [f"  {corpus.name}: {pairs:,} pairs [{published.index(corpus.lines_from[recipe.lang]) + 1}]"]
        lines += [
            f"    {archive.urls[0] if archive.urls else archive.name + ', no address any more'} ({size}{checksum})"
        ]
        lines += [f"    terms: {corpus.terms}"] + ([f"    note: {corpus.note}"] if corpus.note else [])
    total = sum(corpus.lines[recipe.lang] for corpus in recipe.train)
    size = sum(archive.size or 0 for archive in {corpus.archive for corpus in recipe.train})
    lines += [f"  training together: {total:,} pairs" + (f", {size / 1e9:.1f} GB to download" if size else "")]
    if recipe.kept:
        lines += [f"  kept by others of this list: {recipe.kept:,} pairs"]
    if recipe.hub:
        train = recipe.hub["train"]
        lines += [f"  --source hub: {train.dataset} {train.config}, {train.rows:,} pairs: {train.note}"]
    lines += [f"  settings: {settings(recipe)}"] + ([f"  note: {recipe.note}"] if recipe.note else [])
    lines += ["  published, not verified here; checksums are verified when you download, lines counted:"]
    return "\n".join(lines + [f"    [{number}] {source}" for number, source in enumerate(published, start=1)])


def settings(recipe: Recipe) -> str:
    return ", ".join(f"{key}: {value}" for key, value in recipe.settings.items())


def run(options: argparse.Namespace) -> None:
    if options.recipe is not None and options.recipe not in RECIPES:
        raise UserError(f"there is no recipe {options.recipe!r}: choose one of {', '.join(RECIPES)}")
    if options.list:
        names = [options.recipe] if options.recipe else RECIPES
        print("\n\n".join(describe(RECIPES[name]) for name in names))
        return
    if options.recipe is None or options.to is None:
        raise UserError("give a recipe and --to FOLDER, or --list to see the recipes")
    files = resolve(options.recipe, options.to, options.source)
    total = sum(entry["lines"] for entry in files.corpora if entry["split"] == "train")
    print(f"{files.recipe.name}: {total:,} training pairs in {options.to}, before cleaning")
    print("\n".join(f"note: {note}" for note in files.notes))
    print(f"settings: {settings(files.recipe)}")


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
