"""Section 5.1: where the parallel text of a run comes from: files, a dataset, the embedded corpus, or a recipe of the paper.

All are read as pairs of raw text, split by split; `prepared.py` cleans and tokenises them.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets

from .readers import read_pairs as read_group
from .readers import text_files, tidy
from .recipes import RecipeFiles, resolve
from .run_config import DataConfig, RunConfig, UserError
from .wmt import RECIPES

SPLITS = ("train", "valid", "test")
Pair = dict[str, str]  # "source", "target", and whatever else a corpus says of a pair


# ---------------------------------------------------------------------------------------------------------------- files
RESOLVED: dict[tuple, RecipeFiles] = {}


def recipe_files(data: DataConfig, log=lambda _: None) -> RecipeFiles:
    """The files of the recipe, got once for each process.

    Raises:
        UserError: there is no such recipe, it is of other languages, or its text cannot be had.
    """
    if data.recipe not in RECIPES:
        raise UserError(f"there is no recipe {data.recipe!r}: choose one of {', '.join(RECIPES)}")
    if data.dataset or any(getattr(data, f"{split}_files") for split in SPLITS):
        raise UserError(
            f"recipe {data.recipe} brings its own text: leave out dataset, train_files, valid_files, test_files"
        )
    if {data.source_lang, data.target_lang} != {"en", (other := RECIPES[data.recipe].lang)}:
        raise UserError(
            f"recipe {data.recipe} is English and {other}: set source_lang and target_lang to en and {other}"
        )
    key = data.recipe, data.data_dir or str(Path("downloads") / data.recipe), data.recipe_source
    if key not in RESOLVED:
        RESOLVED[key] = resolve(*key, log)
    return RESOLVED[key]


def with_recipe(config: RunConfig) -> RunConfig:
    """The config with what its recipe says of languages, filter and vocabulary, where neither file nor command line do."""
    recipe = RECIPES.get(config.data.recipe)
    if recipe is None:
        return config
    settings = {key: value for key, value in recipe.settings.items() if key not in config.given}
    data, training = (
        dataclasses.replace(group, **{key: value for key, value in settings.items() if hasattr(group, key)})
        for group in (config.data, config.training)
    )
    return config._replace(data=data, training=training)


def groups(data: DataConfig, split: str) -> list[tuple[Path, ...]] | None:
    """The files of a split, in groups that are read one after another; None where the text comes from a dataset.

    Raises:
        UserError: the config names no text for the split, or a file is missing.
    """
    if data.recipe:
        files = recipe_files(data)
        pairs = files.train if split == "train" else [getattr(files, split)]
        return pairs if data.source_lang == "en" else [pair[::-1] for pair in pairs]
    if data.dataset and not data.data_dir:
        return None
    if found := text_files(data, split):
        return found
    raise UserError(f"the config names no {split} text: set {split}_files, or dataset without data_dir")


# ------------------------------------------------------------------------------------------------------------- datasets
@functools.cache
def embedded_corpus() -> dict[str, list[Pair]]:
    from .cldr_corpus import generate

    return generate()


def from_dataset(data: DataConfig, split: str) -> Iterator[Pair]:
    """Pairs of the embedded corpus, of a folder saved by `datasets`, or of a dataset on the Hub."""
    if data.dataset == "cldr":
        if {data.source_lang, data.target_lang} != {"en", "de"}:
            raise UserError("dataset 'cldr' has only English and German: set source_lang and target_lang to en and de")
        for example in embedded_corpus()[split]:
            kind = {"kind": example["kind"]}
            yield {"source": example[data.source_lang], "target": example[data.target_lang], **kind}
        return
    rows = load_split(data, split)
    languages = (data.source_lang, data.target_lang)
    columns = rows.column_names
    if "translation" not in columns and not set(languages) <= set(columns):
        raise UserError(f"dataset {data.dataset} has the columns {columns}: neither 'translation' nor {languages}")
    for batch in rows.select_columns("translation" if "translation" in columns else list(languages)).iter(1000):
        texts = batch["translation"] if "translation" in columns else batch
        if "translation" in columns:
            texts = {lang: [row.get(lang) for row in texts] for lang in languages}
        for pair in zip(*(texts[lang] for lang in languages), strict=True):
            if not all(isinstance(text, str) for text in pair):
                raise UserError(f"dataset {data.dataset} has a row without text in {languages}: {str(pair)[:80]}")
            yield {"source": pair[0], "target": pair[1]}


def load_split(data: DataConfig, split: str) -> datasets.Dataset:
    name = getattr(data, f"{split}_split")
    try:
        if not Path(data.dataset).is_dir():
            return datasets.load_dataset(data.dataset, data.dataset_config, split=name)
        rows = datasets.load_from_disk(data.dataset)
    except Exception as error:  # a hub, a cache and a network have many ways to fail, and the user needs the reason
        raise UserError(f"cannot load dataset {data.dataset}: {error}; or give files with data_dir") from error
    if not isinstance(rows, dict):
        raise UserError(
            f"{data.dataset} holds one split only, and the test set must not be the training set: "
            f"save a DatasetDict with {data.train_split}, {data.valid_split} and {data.test_split}"
        )
    if name not in rows:
        raise UserError(f"dataset {data.dataset} has no split {name!r}: set {split}_split to one of {list(rows)}")
    return rows[name]


# ------------------------------------------------------------------------------------------------------------ the whole
def read_pairs(data: DataConfig, split: str, counts: Counter) -> Iterator[Pair]:
    """The pairs of a split as they stand; `counts` says what reading mended or skipped."""
    files = groups(data, split)
    if files is None:
        tidied = {"unicode_form": data.unicode_form, "counts": counts}
        pairs = (
            pair | {s: tidy(pair[s], **tidied) for s in ("source", "target")} for pair in from_dataset(data, split)
        )
    else:
        options = (data.source_lang, data.target_lang, data.on_bad_utf8, data.unicode_form, counts)
        texts = itertools.chain.from_iterable(read_group(group, *options) for group in files)
        pairs = ({"source": source, "target": target} for source, target in texts)
    for pair in pairs:
        if pair["source"] is None or pair["target"] is None:
            counts["pairs skipped for their bytes"] += 1
            continue
        if data.reverse:
            pair["source"], pair["target"] = pair["target"], pair["source"]
        yield pair


def origin(data: DataConfig, split: str) -> str:
    """What the text of a split is called, for messages."""
    return ", ".join(str(path) for group in groups(data, split) or [] for path in group) or data.dataset


def set_name(data: DataConfig, split: str) -> str:
    """What the text of a split is called in records, where no path belongs: newstest2014, test_2016_flickr, ..."""
    if data.recipe:
        return getattr(RECIPES[data.recipe], split).name.split()[0]  # without its " (test)"
    if data.dataset and not data.data_dir:
        return f"{Path(data.dataset).name} {getattr(data, f'{split}_split')}"
    return ", ".join(Path(file).name for file in getattr(data, f"{split}_files"))


def inputs(data: DataConfig, digest: Callable[[Path], str]) -> list:
    """What changes when the text does: the content of files, the fingerprints of datasets and of the embedded corpus."""
    if data.recipe or data.data_dir or not data.dataset:
        return [[digest(path) for path in group] for split in SPLITS for group in groups(data, split)]
    if data.dataset == "cldr":
        import babel

        return [babel.__version__, (Path(__file__).parent / "cldr_corpus.py").read_text(encoding="utf-8")]
    return [load_split(data, split)._fingerprint for split in SPLITS]
