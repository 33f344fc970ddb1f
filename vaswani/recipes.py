"""Section 5.1: the paper's data by name: `resolve` makes files of a recipe, whole, aligned and counted."""

import lzma
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import fsspec
from filelock import FileLock

from .download import CHUNK, Archive, Remembered, check_space, extract, fetch, is_right, left, whole
from .run_config import UserError
from .wmt import RECIPES, Corpus, Hub, Recipe, sides

SOURCES = ("archives", "hub", "files")
Pair = tuple[Path, Path]  # English, and line n of the other file translates line n of it


@dataclass
class RecipeFiles:
    """Text of a recipe, each file plain, .gz, .xz or .sgm."""

    recipe: Recipe
    train: list[Pair] = field(default_factory=list)
    valid: Pair | None = None
    test: Pair | None = None
    corpora: list[dict] = field(default_factory=list)  # for a report: counts, who published them, terms, files
    notes: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str | int | float]:
        """Keys of a run's YAML: languages, size of the vocabulary, the filter that belongs to the recipe."""
        return dict(self.recipe.settings)


def resolve(
    recipe: str, folder: str | Path, source: str = "archives", log: Callable[[str], None] = print
) -> RecipeFiles:
    """The files of a recipe: made where they are missing, then counted, which is remembered.

    Args:
        source: "files" takes what lies in `folder` or below it, by the names that files have in the original archives
            (or with .gz or .xz behind), and unpacks archives that lie there; "archives" also downloads what is
            missing, into folder/archives; "hub" writes the text of datasets of the Hub into `folder`.

    Raises:
        UserError: something cannot be had, is damaged, or is not whole.
    """
    if recipe not in RECIPES:
        raise UserError(f"there is no recipe {recipe!r}: choose one of {', '.join(RECIPES)}")
    if source not in SOURCES:
        raise UserError(f"recipe_source {source!r} is none of {', '.join(SOURCES)}")
    files, folder = RecipeFiles(RECIPES[recipe]), Path(folder)
    if source == "files" and not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the one that holds the text of {recipe}")
    folder.mkdir(parents=True, exist_ok=True)
    writable = os.access(folder, os.W_OK)
    with FileLock(folder / ".lock") if writable else nullcontext():  # no two processes write the same files
        if source == "hub":
            located = list(_from_hub(files.recipe, folder, log))
        else:
            located = _from_text(files.recipe, folder, source == "archives", log)
        count = LineCounts(folder)
        for split, corpus, pair in located:
            entry = {"split": split, **_counted(corpus, pair, files.recipe.lang, count)}
            log(f"{corpus.name}: {entry['lines']:,} pairs, {entry['verdict']}")
            files.corpora.append(entry)
            if split == "train":
                files.train.append(pair)
            else:
                setattr(files, split, pair)
    notes = [f"{corpus.name}: {corpus.note}" for _, corpus, _ in located if corpus.note]
    files.notes = [note for note in (*notes, files.recipe.note) if note]
    return files


# ---------------------------------------------------------------------------------------------------------------- counts
def _counted(corpus: Corpus, pair: Pair, lang: str, count: Callable[[Path], int]) -> dict:
    """What a report says of a corpus. Sides of unequal length are an error, and a test set that is not whole."""
    published = corpus.lines[lang]
    lines, other = (count(path) for path in pair)
    if lines != other:
        raise UserError(
            f"{pair[0]} has {lines:,} lines and {pair[1]} {other:,} ({published:,} are published), where line n must "
            "translate line n: delete the one that is cut short and run this again"
        )
    if corpus.exact and lines != published:
        raise UserError(
            f"{corpus.name}: {pair[0]} has {lines:,} segments where the set has {published:,}, and scores on it could "
            "not be compared: delete it and its translation and run this again"
        )
    difference = (
        f"{abs(lines - published):,} {'more' if lines > published else 'fewer'} than the {published:,} published"
    )
    return {
        "name": corpus.name,
        "lines": lines,
        "published": published,
        "published_by": corpus.lines_from[lang],
        "verdict": "as published" if lines == published else difference,
        "terms": corpus.terms,
        "files": [str(path) for path in pair],
    }


class LineCounts(Remembered):
    """Lines of text files, or segments of .sgm files. Only LF ends a line."""

    def __init__(self, folder: Path):
        super().__init__(folder / ".line_counts.json", count_lines)


def count_lines(path: Path) -> int:
    lines, last = 0, b"\n"
    try:
        with fsspec.open(str(path), "rb", compression="infer") as file:
            if ".sgm" in path.suffixes:
                return sum(line.lstrip().startswith(b"<seg ") for line in file)
            while chunk := file.read(CHUNK):
                lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"cannot read {path}: {error}; is it whole?") from None
    return lines + (last != b"\n")


# ------------------------------------------------------------------------------------------------------- text in a folder
class Inventory:
    """The files of a folder and below, by name."""

    def __init__(self, folder: Path):
        self.paths = defaultdict(list)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.paths[path.name].append(path)

    def find(self, name: str) -> Path | None:
        for file in (name, f"{name}.gz", f"{name}.xz", name.removesuffix(".gz")):
            if len(paths := self.paths.get(file, [])) > 1:
                raise UserError(f"{paths[0]} and {paths[1]} have the same name: leave one of them there")
            if paths:
                return paths[0]
        return None

    def text(self, corpus: Corpus, lang: str) -> tuple[Path | None, Path | None]:
        """The files of a corpus, under one of the names that it goes by."""
        for names in (corpus.members, *((alias, alias) for alias in corpus.aliases)):
            pair = tuple(self.find(Path(name).name) for name in sides(lang, names))
            if all(pair):
                return pair
        return tuple(self.find(Path(name).name) for name in sides(lang, corpus.members))

    def archive(self, archive: Archive) -> Path | None:
        names = {archive.name, *(Path(url).name for url in archive.urls)}
        return next((path for name in names for path in self.paths.get(name, []) if is_right(path, archive)), None)


def parts(recipe: Recipe) -> list[tuple[str, Corpus]]:
    return [*(("train", corpus) for corpus in recipe.train), ("valid", recipe.valid), ("test", recipe.test)]


def _from_text(recipe: Recipe, folder: Path, download: bool, log) -> list[tuple[str, Corpus, Pair]]:
    """What is there is used; of archives, only those are opened (and downloaded) whose text is not there."""
    inventory = Inventory(folder)
    wanted = defaultdict(dict)  # of each archive: member, file to write
    for _, corpus in parts(recipe):
        for name, path in zip(sides(recipe.lang, corpus.members), inventory.text(corpus, recipe.lang), strict=True):
            if path is None:
                wanted[corpus.archive][name] = folder / Path(name).name
    paths = {archive: inventory.archive(archive) for archive in wanted}
    absent = [archive for archive in wanted if paths[archive] is None]
    if absent and not download:
        names = [
            f"{', '.join(path.name for path in wanted[archive].values())} (of {archive.name})" for archive in absent
        ]
        raise UserError(
            f"{folder} lacks {'; '.join(names)}: put these files, or the archives that hold them, into it, "
            "or take recipe_source archives"
        )
    archives = folder / "archives"
    check_space(
        folder, sum(left(archive, archives) for archive in absent), f"what is left to download of {recipe.name}"
    )
    for archive, members in wanted.items():
        path = paths[archive] or fetch(archive, archives, log)
        log(f"unpacking {', '.join(file.name for file in members.values())} from {path.name}")
        extract(path, members)
    inventory = Inventory(folder) if wanted else inventory
    return [(s, corpus, _words(inventory.text(corpus, recipe.lang), corpus, folder)) for s, corpus in parts(recipe)]


def _words(pair: Pair, corpus: Corpus, folder: Path) -> Pair:
    """Words of units that "@@ " joins, where a corpus comes in such units."""
    if not corpus.undo_bpe or ".bpe." not in pair[0].name:
        return pair
    words = tuple(folder / path.name.replace(".bpe.32000", "").removesuffix(".gz").removesuffix(".xz") for path in pair)
    for units, target in zip(pair, words, strict=True):
        if target.exists():
            continue
        with fsspec.open(str(units), "rb", compression="infer") as lines, whole(target) as file:
            file.writelines(line.replace(b"@@ ", b"") for line in lines)
    return words


# ---------------------------------------------------------------------------------------------------------------- the Hub
def _from_hub(recipe: Recipe, folder: Path, log) -> Iterator[tuple[str, Corpus, Pair]]:
    if not recipe.hub:
        raise UserError(f"no dataset of the Hub holds {recipe.name}: take recipe_source archives or files")
    for split, hub in recipe.hub.items():
        stem = f"{Path(hub.dataset).name}.{hub.config}.{hub.split}"
        names = tuple(f"{stem}.{lang}" for lang in ("en", recipe.lang))
        pair = tuple(folder / name for name in names)
        if not all(path.exists() for path in pair):
            log(f"writing {' and '.join(names)}")
            _write(hub, pair, ("en", recipe.lang))
        yield split, hub.as_corpus(recipe.lang, names), pair


def _write(hub: Hub, pair: Pair, languages: tuple[str, str]) -> None:
    """A dataset's split as two aligned files; a line feed inside a sentence becomes a space."""
    try:
        rows = datasets.load_dataset(hub.dataset, hub.config, split=hub.split)
    except Exception as error:  # a hub, a cache and a network have many ways to fail, and the user needs the reason
        raise UserError(f"cannot load {hub.dataset} ({hub.config}): {error}; or take recipe_source archives") from error
    with whole(pair[0]) as source, whole(pair[1]) as target:
        for batch in rows.iter(1000):
            for file, lang in zip((source, target), languages, strict=True):
                sentences = (pair[lang].replace("\n", " ") for pair in batch["translation"])
                file.writelines(sentence.encode() + b"\n" for sentence in sentences)
