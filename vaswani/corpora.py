"""Section 5.1: where parallel text comes from; read, cleaned, counted, and tokenised once.

`prepare` turns a `DataConfig` into a folder: `tokenizer/`, `train/`, `valid/` and `test/` as Arrow data, `report.json`.
The folder's name holds a fingerprint of the inputs: the same inputs are prepared once, others beside them.
"""

import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import datasets
import tokenizers

from . import readers, tokenization_vaswani
from .run_config import DataConfig, UserError, as_user_error

SPLITS = ("train", "valid", "test")
Pair = dict[str, str]  # "source", "target", and whatever else a corpus says of a pair


# ------------------------------------------------------------------------------------------------------------- datasets
@functools.cache
def embedded_corpus() -> dict[str, list[Pair]]:
    from .cldr_corpus import generate

    return generate()


def uses_files(data: DataConfig) -> bool:
    return bool(data.data_dir or not data.dataset)


def files_of(data: DataConfig, split: str) -> list[Path]:
    return list(itertools.chain.from_iterable(readers.text_files(data, split) or []))


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
    for row in rows:
        row = row["translation"] if "translation" in columns else row
        if any(not isinstance(row.get(lang), str) for lang in languages):
            raise UserError(f"dataset {data.dataset} has a row without text in {languages}: {str(row)[:80]}")
        yield {"source": row[languages[0]], "target": row[languages[1]]}


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


def read_pairs(data: DataConfig, split: str, counts: Counter) -> Iterator[Pair]:
    """The pairs of a split that have text on both sides; `counts` says what was read and dropped."""
    if not uses_files(data):
        pairs = from_dataset(data, split)
    elif groups := readers.text_files(data, split):
        settings = (data.source_lang, data.target_lang, data.on_bad_utf8, data.unicode_form, counts)
        texts = itertools.chain.from_iterable(readers.read_pairs(files, *settings) for files in groups)
        pairs = ({"source": s, "target": t} for s, t in texts)
    else:
        raise UserError(f"the config names no {split} text: set {split}_files, or dataset without data_dir")
    for pair in pairs:
        counts["read"] += 1
        if pair["source"] is None or pair["target"] is None:
            continue  # skipped for its bytes, and counted there
        if not pair["source"].strip() or not pair["target"].strip():
            counts["empty"] += 1
            continue
        counts["kept"] += 1
        yield pair


# ------------------------------------------------------------------------------------------------------------ preparing
def fingerprint(data: DataConfig) -> str:
    """Changes with what the prepared data is made from: settings, files (path, size, time), datasets, code, versions."""
    settings = {name: value for name, value in vars(data).items() if name != "prepared_dir"}
    inputs = [datasets.__version__, tokenizers.__version__]
    if uses_files(data):
        for path in itertools.chain.from_iterable(files_of(data, split) for split in SPLITS):
            status = path.stat()
            inputs.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    elif data.dataset == "cldr":
        import babel

        inputs += [babel.__version__, _code("cldr_corpus.py")]
    else:
        inputs += [load_split(data, split)._fingerprint for split in SPLITS]
    inputs += [_code(f"{name}.py") for name in ("tokenization_vaswani", "corpora", "readers", "markup", "text_lines")]
    return hashlib.sha256(json.dumps([settings, inputs]).encode()).hexdigest()[:12]


def _code(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def prepare(data: DataConfig, log=print) -> Path:
    """Reads, tokenises and saves a corpus, unless that was done before. Returns its folder.

    Raises:
        UserError: bad input, in one sentence; nothing half-written is left.
    """
    name = Path(data.data_dir or data.dataset or "text").name
    folder = Path(data.prepared_dir) / f"{name}-{data.source_lang}-{data.target_lang}-{fingerprint(data)}"
    if (folder / "report.json").exists():
        log(f"data: {folder}, prepared before")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    datasets.disable_progress_bars()
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        report = _prepare(data, work, log)
        (work / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
        shutil.rmtree(work / "cache")
        try:
            os.replace(work, folder)
        except OSError:
            if not (folder / "report.json").exists():  # else another process was quicker, with the same result
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log(f"data: {folder}")
    return folder


def _prepare(data: DataConfig, work: Path, log) -> dict:
    report, text = {}, {}
    for split in SPLITS:
        counts = Counter(read=0, empty=0, kept=0)
        pairs = _collect(read_pairs(data, split, counts), work / "cache")
        if not counts["kept"]:
            names = ", ".join(map(str, files_of(data, split) if uses_files(data) else [data.dataset]))
            raise UserError(f"the {split} text, {names}, has no pair with text on both sides ({counts['read']:,} read)")
        text[split], report[split] = pairs, counts
    both = itertools.chain.from_iterable((pair["source"], pair["target"]) for pair in text["train"])
    with as_user_error():
        tokenizer = tokenization_vaswani.train_tokenizer(both, data.vocab_size, split_digits=data.split_digits)
    tokenizer.save_pretrained(work / "tokenizer")
    report["vocabulary"] = {"wanted": data.vocab_size, "entries": len(tokenizer)}
    for split, pairs in text.items():
        limit = data.max_length if split == "train" else None
        tokenised = tokenise(pairs, tokenizer, limit)
        if split == "train":
            tokenised = tokenised.select_columns(["input_ids", "labels", "source_length", "target_length"])
        report[split]["too long"] = len(pairs) - len(tokenised)
        report[split]["kept"] = len(tokenised)
        if not len(tokenised):
            raise UserError(f"every training pair is longer than max_length={data.max_length} tokens: raise it")
        report[split]["source tokens"] = sum(tokenised["source_length"])
        report[split]["target tokens"] = sum(tokenised["target_length"])
        tokenised.save_to_disk(work / split)
        log(f"{split}: " + ", ".join(f"{count:,} {what}" for what, count in report[split].items()))
    log(f"vocabulary: {len(tokenizer):,} entries of {data.vocab_size:,} wanted")
    return report


def _collect(pairs: Iterator[Pair], cache: Path) -> datasets.Dataset:
    """An Arrow file of text, written as it is read: memory holds a few thousand pairs at a time."""
    first = next(pairs, None)
    if first is None:
        return datasets.Dataset.from_dict({"source": [], "target": []})
    cache.mkdir(parents=True, exist_ok=True)
    path = str(cache / f"{len(list(cache.iterdir()))}.arrow")
    features = datasets.Features({name: datasets.Value("string") for name in first})
    with datasets.arrow_writer.ArrowWriter(features=features, path=path) as writer:
        for pair in itertools.chain([first], pairs):
            writer.write(pair)
        writer.finalize()
    return datasets.Dataset.from_file(path)


def tokenise(pairs: datasets.Dataset, tokenizer, max_length: int | None = None) -> datasets.Dataset:
    """Adds input_ids and labels (token ids, EOS last) and their lengths; drops pairs longer than `max_length`."""

    def encode(batch):
        source, target = tokenizer(batch["source"])["input_ids"], tokenizer(batch["target"])["input_ids"]
        keep = [i for i in range(len(source)) if not max_length or max(len(source[i]), len(target[i])) <= max_length]
        columns = {"input_ids": source, "labels": target}
        columns |= {"source_length": [len(ids) for ids in source], "target_length": [len(ids) for ids in target]}
        columns |= {name: batch[name] for name in pairs.column_names}
        return {name: [column[i] for i in keep] for name, column in columns.items()}

    ids = datasets.Sequence(datasets.Value("int32"))
    features = datasets.Features(
        {
            "input_ids": ids,
            "labels": ids,
            "source_length": datasets.Value("int32"),
            "target_length": datasets.Value("int32"),
        }
        | dict(pairs.features)
    )
    return pairs.map(
        encode, batched=True, remove_columns=pairs.column_names, features=features, load_from_cache_file=False
    )
