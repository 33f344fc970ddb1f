"""Section 5.1: a corpus tokenised once. `prepare` turns a `DataConfig` into a folder that training maps into memory:

tokenizer/, train/, valid/ and test/ as Arrow data, report.json (what was read, dropped and why), removed.json (examples
of it) and lengths.png. Its name holds a fingerprint of the inputs: the same inputs are prepared once, others beside them.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .cleaning import clean, short, table, without
from .corpora import SPLITS, Pair, inputs, origin, read_pairs, recipe_files
from .download import Remembered
from .plots import length_histograms
from .run_config import DataConfig, UserError, as_user_error
from .tokenization_vaswani import train_tokenizer

FORMAT = 1  # to be raised when the same inputs are prepared otherwise than before
# Settings that do not change what is prepared, or whose content counts and not the name.
LEFT_OUT = {"prepared_dir", "num_workers", "data_dir", "recipe_source", "tokenizer"}
SIDES = ("source", "target")
BATCH = 2000  # pairs that are handled together
SHARD = 50_000  # pairs: fewer are not worth a second process


def fingerprint(data: DataConfig) -> str:
    """Changes with what the prepared data is made from: settings, and the content of texts and of a given tokenizer."""
    settings = {name: value for name, value in vars(data).items() if name not in LEFT_OUT}
    tokenizer = taken_over(data.tokenizer).backend_tokenizer.to_str() if data.tokenizer else None
    known = [FORMAT, settings, inputs(data, Remembered(Path(data.prepared_dir) / ".digests.json", sha256)), tokenizer]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prepare(data: DataConfig, log=print) -> Path:
    """Reads, cleans, tokenises and saves a corpus, unless that was done before. Returns its folder.

    Several processes may ask at once: one works, the others wait. What an interrupted one left behind is removed.

    Raises:
        UserError: bad input, in one sentence; nothing half-written is left.
    """
    if data.recipe:
        recipe_files(data, log)  # downloads are said
    name = Path(data.recipe or data.data_dir or data.dataset or "text").name
    folder = Path(data.prepared_dir) / f"{name}-{data.languages[0]}-{data.languages[1]}-{fingerprint(data)}"
    if (folder / "report.json").exists():
        log(f"data: {folder}, prepared before")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    datasets.disable_progress_bars()
    with _claimed(folder) as work:
        if (folder / "report.json").exists():
            return folder
        report = _prepare(data, work, log)
        (work / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
        shutil.rmtree(work / "cache")
        shutil.rmtree(folder, ignore_errors=True)  # one that lost its report
        os.replace(work, folder)
    log(f"data: {folder}")
    return folder


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[Path]:
    """An empty work folder beside `folder` for the one process that may fill it; leftovers of dead ones are removed."""
    for leftover in folder.parent.glob(".*.partial"):
        with contextlib.suppress(Timeout), FileLock(leftover.with_suffix(".lock"), blocking=False):
            shutil.rmtree(leftover, ignore_errors=True)
    work = folder.with_name(f".{folder.name}.partial")
    with FileLock(work.with_suffix(".lock")):
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _prepare(data: DataConfig, work: Path, log) -> dict:
    report, removed, text = {}, {}, {}
    for split in reversed(SPLITS):  # what is held out first: training pairs may not repeat it
        counts = Counter()
        log(f"{split}: reading {origin(data, split)}")
        raw = _collect(read_pairs(data, split, counts), work / "cache")
        settings = data if split == "train" else None
        text[split], found = clean(raw, settings, list(text.values()), processes(data, raw))
        if found["kept"] < found["read"]:
            log(table(found))
        if not found["kept"]:
            steps = {name: step["removed"] for name, step in found["steps"].items() if step["removed"]}
            why = f"{found['read']:,} pairs read" + "".join(f", {n:,} dropped: {name}" for name, n in steps.items())
            raise UserError(
                f"the {split} text, {origin(data, split)}, has no pair of {data.source_lang} and {data.target_lang} left ({why})"
            )
        removed[split] = {name: step["examples"] for name, step in found["steps"].items() if step["examples"]}
        steps = {name: step["removed"] for name, step in found["steps"].items()}
        report[split], lengths = {"read": found["read"], "mended": dict(counts), "removed": steps}, found["lengths"]
    tokenizer, report["vocabulary"] = vocabulary(data, text["train"], log)
    with as_user_error(Exception):  # the library's own kind, as for a full disk
        tokenizer.save_pretrained(work / "tokenizer")
    for split in SPLITS:
        log(f"{split}: tokenising {len(text[split]):,} pairs")
        tokenised = tokenise(text[split], tokenizer, split != "train", processes(data, text[split]))
        limit = data.max_length if split == "train" else None
        if limit:
            longer = _longer_than(limit, tokenised)
            rows = np.flatnonzero(longer)
            report[split]["removed"]["too long"] = len(rows)
            some = [text[split][int(row)] for row in rows[:3]]
            removed[split] |= (
                {"too long": [{side: short(pair[side]) for side in SIDES} for pair in some]} if some else {}
            )
            if len(rows) == len(tokenised):
                raise UserError(f"every training pair is longer than max_length={data.max_length} tokens: raise it")
            if len(rows):
                log(f"{split}: {len(rows):,} over max_length={limit} tokens dropped, as {some[0]['source'][:60]!r}")
                tokenised = without(tokenised, longer)
        tokenised.save_to_disk(work / split)
        saved = datasets.load_from_disk(str(work / split))  # its columns are without the pairs dropped
        tokens = {f"{side} tokens": pc.sum(saved.data[f"{side}_length"]).as_py() for side in SIDES}
        report[split] |= {"kept": len(saved), **tokens}
        log(
            f"{split}: {len(tokenised):,} pairs, {tokens['source tokens']:,} + {tokens['target tokens']:,} tokens"
            + "".join(f"; {name}: {count:,}" for name, count in report[split]["mended"].items())
        )
    if data.recipe:
        files = recipe_files(data)
        report["corpora"], report["notes"] = files.corpora, files.notes
    (work / "removed.json").write_text(json.dumps(removed, indent=2, ensure_ascii=False), encoding="utf-8")
    length_histograms(lengths, work / "lengths.png", " to ".join(data.languages))
    return report


def processes(data: DataConfig, pairs: datasets.Dataset) -> int | None:
    """How many processes work on so many pairs; None: this one alone, without the seconds that others need to start."""
    return data.workers if data.workers > 1 and len(pairs) > SHARD else None


def load(folder: Path) -> tuple[PreTrainedTokenizerBase, list[datasets.Dataset]]:
    """What `prepare` wrote: the tokenizer, and the three splits mapped into memory.

    Raises:
        UserError: the folder is damaged.
    """
    try:
        splits = [datasets.load_from_disk(str(folder / split)) for split in SPLITS]
        return AutoTokenizer.from_pretrained(folder / "tokenizer"), splits
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:150]
        raise UserError(
            f"the prepared data {folder} is damaged ({reason}): delete it, and it is prepared again"
        ) from None


def _collect(pairs: Iterator[Pair], cache: Path) -> datasets.Dataset:
    """An Arrow file of text, written as it is read: memory holds a few thousand pairs at a time."""
    first = list(itertools.islice(pairs, BATCH))
    if not first:
        return datasets.Dataset.from_dict({"source": [], "target": []})
    cache.mkdir(parents=True, exist_ok=True)
    path, schema = cache / f"{len(list(cache.iterdir()))}.arrow", pa.Table.from_pylist(first).schema
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in itertools.chain([first], iter(lambda: list(itertools.islice(pairs, BATCH)), [])):
            writer.write_table(pa.Table.from_pylist(batch, schema))
    return datasets.Dataset.from_file(str(path))


def vocabulary(data: DataConfig, train: datasets.Dataset, log) -> tuple[PreTrainedTokenizerBase, dict]:
    """The tokenizer of a corpus, learned (from both sides of at most `vocab_sample` pairs, evenly spread) or taken over;
    and what is known of it. Its fertility is the mean number of tokens, without EOS, for a word between white space."""
    count = min(data.vocab_sample, len(train))
    sample = train if count == len(train) else train.select(np.linspace(0, len(train) - 1, count).astype(np.int64))
    if data.tokenizer:
        tokenizer = taken_over(data.tokenizer)
    else:
        with as_user_error():
            both = (text for batch in sample.iter(BATCH) for side in SIDES for text in batch[side])
            tokenizer = train_tokenizer(both, data.vocab_size, split_digits=data.split_digits)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    known = {
        "taken from": data.tokenizer,
        "entries wanted": None if data.tokenizer else data.vocab_size,
        "entries": len(tokenizer),
        "merges": len(model.get("merges", [])),
        "reserved ids": {str(token): i for i, token in sorted(tokenizer.added_tokens_decoder.items())},
        "pairs learned from": 0 if data.tokenizer else count,
    }
    some = sample.select(range(0, len(sample), max(1, len(sample) // 20_000)))
    for side, language in zip(SIDES, data.languages, strict=True):
        words = tokens = unknown = 0
        for batch in some.iter(BATCH):
            ids = tokenizer(batch[side], add_special_tokens=False)["input_ids"]
            words += sum(len(text.split()) for text in batch[side])
            tokens += sum(map(len, ids))
            unknown += sum(row.count(tokenizer.unk_token_id) for row in ids) if tokenizer.unk_token else 0
        known[f"fertility {language}"] = round(tokens / words, 3)
        known[f"unknown {language}"] = unknown / tokens
    log("vocabulary: " + ", ".join(f"{name} {value}" for name, value in known.items() if value is not None))
    return tokenizer, known


def taken_over(name: str) -> PreTrainedTokenizerBase:
    """A tokenizer made elsewhere, of a folder or the Hub. It must be able to pad, and say where a sentence ends."""
    inside = Path(name) / "tokenizer"  # of a prepared folder
    try:
        tokenizer = AutoTokenizer.from_pretrained(inside if inside.is_dir() else name)
    except (OSError, ValueError) as error:
        reason = "there is no such folder" if name.startswith((".", "/")) and not Path(name).exists() else str(error)
        raise UserError(f"cannot load a tokenizer from {name}: {' '.join(reason.split())[:200]}") from None
    ends = tokenizer("a")["input_ids"][-1:] == [tokenizer.eos_token_id]
    if not (tokenizer.is_fast and ends) or tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        raise UserError(
            f"the tokenizer {name} must be a fast one with a padding token of its own, and end every sentence with its EOS token: "
            f"leave `tokenizer` out to learn one"
        )
    return tokenizer


def tokenise(
    pairs: datasets.Dataset, tokenizer, keep_text: bool = True, num_proc: int | None = None
) -> datasets.Dataset:
    """Token ids (EOS last) and their number: input_ids, labels, source_length, target_length; and the text, if it is kept.
    Several processes each write a part of the Arrow data."""
    tokenised = pairs.with_format("arrow").map(
        functools.partial(_encode, tokenizer=tokenizer, keep_text=keep_text),
        batched=True,
        batch_size=BATCH,
        num_proc=num_proc,
        remove_columns=pairs.column_names,
        load_from_cache_file=False,
    )
    return tokenised.with_format(None)


def _encode(texts: pa.Table, tokenizer, keep_text: bool) -> pa.Table:
    columns, backend = {}, tokenizer.backend_tokenizer
    backend.encode_special_tokens = tokenizer.split_special_tokens  # a literal "</s>" in a text is text
    for side, name in zip(SIDES, ("input_ids", "labels"), strict=True):
        ids = [encoding.ids for encoding in backend.encode_batch_fast(texts[side].to_pylist())]
        columns[name] = pa.array(ids, pa.list_(pa.int32()))
        columns[f"{side}_length"] = pa.array([len(row) for row in ids], pa.int32())
    if keep_text:
        columns |= {name: texts[name] for name in texts.column_names}
    return pa.table(columns)


def _longer_than(limit: int, tokenised: datasets.Dataset) -> np.ndarray:
    """A mask of the pairs with a side of more tokens."""
    longer = pc.max_element_wise(*(tokenised.data[f"{side}_length"] for side in SIDES))
    return pc.greater(longer, limit).to_numpy()
