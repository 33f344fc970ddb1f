"""Section 5.1: where parallel text comes from; read, cleaned, counted, and tokenised once.

`prepare` turns a `DataConfig` into a folder: `tokenizer/`, `train/`, `valid/` and `test/` as Arrow data, `report.json`.
The folder's name holds a fingerprint of the inputs: the same inputs are prepared once, others beside them.
"""

import functools
import gzip
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import datasets
import tokenizers

from . import tokenization_vaswani
from .run_config import DataConfig, UserError, as_user_error

SPLITS = ("train", "valid", "test")
Pair = dict[str, str]  # "source", "target", and whatever else a corpus says of a pair


# --------------------------------------------------------------------------------------------------- reading text files
def find_file(path: Path) -> Path:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise UserError(f"there is no file {path} (nor {path.name}.gz beside it): check the path and data_dir")


def decode_lines(file: Iterable[bytes], name: str, on_bad_utf8: str, counts: Counter) -> Iterator[str | None]:
    """Lines of UTF-8 text. Only LF ends a line; a CR before it and a BOM at the start are dropped.

    A line with bytes that are not UTF-8 raises (`on_bad_utf8="error"`), is given as None ("skip") or has them replaced
    by U+FFFD ("replace"); the last two are counted.
    """
    for number, raw in enumerate(file, start=1):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if on_bad_utf8 == "error":
                raise UserError(
                    f"{name}, line {number}: byte 0x{raw[error.start]:02x} at position {error.start} is not UTF-8; "
                    f"convert the file, or choose --on_bad_utf8 skip or replace"
                ) from None
            counts[f"bad UTF-8: {on_bad_utf8}"] += 1
            yield None if on_bad_utf8 == "skip" else raw.decode("utf-8", errors="replace")


def read_lines(path: Path, on_bad_utf8: str = "error", counts: Counter | None = None) -> Iterator[str | None]:
    """`decode_lines` of a file, plain or .gz."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            yield from decode_lines(file, str(path), on_bad_utf8, Counter() if counts is None else counts)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}; is it whole, and a .gz only if it is named so?") from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A line each, in UTF-8; a line feed inside one becomes a space, so that line n stays line n."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line.replace("\n", " ") + "\n" for line in lines)


def read_aligned(source: Path, target: Path, on_bad_utf8: str, counts: Counter) -> Iterator[tuple]:
    lines = [read_lines(path, on_bad_utf8, counts) for path in (source, target)]
    end = object()
    for number, pair in enumerate(itertools.zip_longest(*lines, fillvalue=end)):
        if end in pair:
            shorter, longer = (0, 1) if pair[0] is end else (1, 0)
            paths, lengths = (source, target), [number, number]
            lengths[longer] += 1 + sum(1 for _ in lines[longer])
            raise UserError(
                f"{paths[shorter]} has {lengths[shorter]:,} lines but {paths[longer]} has {lengths[longer]:,}: "
                f"line n of one must translate line n of the other"
            )
        yield pair


def read_tsv(path: Path, on_bad_utf8: str, counts: Counter) -> Iterator[tuple]:
    for number, line in enumerate(read_lines(path, on_bad_utf8, counts), start=1):
        columns = (line, line) if not line else line.split("\t")  # None: bad bytes; empty: an empty pair
        if len(columns) != 2:
            raise UserError(f"{path}, line {number}: {len(columns)} column(s) where SOURCE<TAB>TARGET is needed")
        yield tuple(columns)


def text_files(data: DataConfig, split: str) -> list[Path] | None:
    """The files of a split: one .tsv, or source and target. None where the config names none."""
    names = getattr(data, f"{split}_files")
    if not names:
        return None
    paths = [Path(data.data_dir or "") / name for name in names]
    if len(paths) == 1 and paths[0].name.endswith((".tsv", ".tsv.gz")):
        return [find_file(paths[0])]
    if len(paths) == 1:
        paths = [paths[0].with_name(f"{paths[0].name}.{lang}") for lang in (data.source_lang, data.target_lang)]
    if len(paths) != 2:
        raise UserError(f"{split}_files takes a prefix, two aligned files or one .tsv, not {len(paths)} names")
    return [find_file(path) for path in paths]


# ------------------------------------------------------------------------------------------------------------- datasets
@functools.cache
def embedded_corpus() -> dict[str, list[Pair]]:
    from .cldr_corpus import generate

    return generate()


def uses_files(data: DataConfig) -> bool:
    return bool(data.data_dir or not data.dataset)


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
    elif files := text_files(data, split):
        reader = read_tsv if len(files) == 1 else read_aligned
        pairs = ({"source": s, "target": t} for s, t in reader(*files, data.on_bad_utf8, counts))
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
        for path in itertools.chain.from_iterable(text_files(data, split) or [] for split in SPLITS):
            status = path.stat()
            inputs.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    elif data.dataset == "cldr":
        import babel

        inputs += [babel.__version__, _code("cldr_corpus.py")]
    else:
        inputs += [load_split(data, split)._fingerprint for split in SPLITS]
    inputs += [_code("tokenization_vaswani.py"), _code("corpora.py")]
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
            names = ", ".join(map(str, (text_files(data, split) if uses_files(data) else None) or [data.dataset]))
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
