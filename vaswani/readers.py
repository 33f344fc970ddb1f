"""Section 5.1: parallel text as people have it, read pair by pair: aligned files, TSV, JSONL, Parquet, TMX, SGM test sets.

The format follows from a file's suffix, under .gz, .xz, .bz2 or .zst. `group_files` turns the names in a config into
groups of files, `read_pairs` reads one group.
"""

import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .markup import Languages, read_sgm, read_tmx
from .run_config import DataConfig, UserError
from .text_lines import OPENERS, decode, existing, find_file, mend, read_lines, without_compression

RawPair = tuple[str | None, str | None]  # source, target; None where the text was skipped for its bytes


# ----------------------------------------------------------------------------------------------------- names into files
def text_files(data: DataConfig, split: str) -> list[tuple[Path, ...]] | None:
    """The files of a split in their groups. None where the config names none."""
    names = getattr(data, f"{split}_files")
    return group_files(names, Path(data.data_dir or ""), data.source_lang, data.target_lang) if names else None


def group_files(names: list[str], folder: Path, source_lang: str, target_lang: str) -> list[tuple[Path, ...]]:
    """Groups that are read one after another: (one file that holds both sides,) or (source, target).

    A name is a file that holds both sides, or a PREFIX of PREFIX.SOURCE and PREFIX.TARGET (of test sets: of
    PREFIX-src.SOURCE.sgm and PREFIX-ref.TARGET.sgm), or a file whose translation is the next name. Compression suffixes
    may be left out. Two files that end in the two languages may come in either order.

    Raises:
        UserError: a file or its translation is missing.
    """
    groups, paths = [], [folder / name for name in names]
    while paths:
        path = paths.pop(0)
        if _suffix(path) in ONE_FILE:
            groups.append((find_file(path),))
        elif pair := _of_prefix(path, source_lang, target_lang):
            groups.append(pair)
        elif found := existing(path):
            if not paths or _suffix(paths[0]) in ONE_FILE:
                raise UserError(
                    f"{found} holds one side: the name after it must be that of its translation, line by line"
                )
            groups.append(_in_order(found, find_file(paths.pop(0)), source_lang, target_lang))
        else:
            sides = f"{path.name}.{source_lang} and {path.name}.{target_lang}"
            languages = ", or source_lang and target_lang" if path.parent.is_dir() else ""
            raise UserError(
                f"there is no file {path}, nor the pair {sides}, plain or {', '.join(OPENERS)}: check --data_dir{languages}"
            )
    return groups


def _suffix(path: Path) -> str:
    return without_compression(path).suffix.lower()


def _of_prefix(path: Path, source_lang: str, target_lang: str) -> tuple[Path, Path] | None:
    patterns = ("{0}.{1}", "{0}.{2}"), ("{0}-src.{1}.sgm", "{0}-ref.{2}.sgm"), ("{0}-src.{1}.sgml", "{0}-ref.{2}.sgml")
    for sides in patterns:
        pair = [path.with_name(side.format(path.name, source_lang, target_lang)) for side in sides]
        if any(map(existing, pair)):
            return tuple(map(find_file, pair))  # which says what is missing
    return None


def _in_order(first: Path, second: Path, source_lang: str, target_lang: str) -> tuple[Path, Path]:
    """Two files are source and target as they stand, unless their names say the opposite."""
    if len({path for path in (first, second) if _suffix(path) in TEST_SETS}) == 1:
        raise UserError(f"{first} and {second}: a test set in SGM needs the other side in SGM too")
    languages = []
    for path in map(without_compression, (first, second)):
        languages.append((path.with_suffix("") if path.suffix.lower() in TEST_SETS else path).suffix.removeprefix("."))
    return (second, first) if languages == [target_lang, source_lang] else (first, second)


# -------------------------------------------------------------------------------------------------------- files into pairs
def read_pairs(
    files: tuple[Path, ...], source_lang: str, target_lang: str, on_bad_utf8: str, unicode_form: str, counts: Counter
) -> Iterator[RawPair]:
    """The pairs of one group of `group_files`.

    NUL characters are removed, line feeds inside a text (which only JSONL, Parquet and markup can hold) become spaces,
    and texts are put in the Unicode normal form `unicode_form`, unless that is "none". `counts` says how often.
    """
    languages = (source_lang, target_lang)
    if len(files) == 1:
        pairs = ONE_FILE[_suffix(files[0])](*files, languages, on_bad_utf8, counts)
    else:
        pairs = (read_sgm if _suffix(files[0]) in TEST_SETS else read_aligned)(*files, on_bad_utf8, counts)
    for source, target in pairs:
        yield tidy(source, unicode_form, counts), tidy(target, unicode_form, counts)


def tidy(text: str | None, unicode_form: str, counts: Counter) -> str | None:
    if not text:
        return text
    if "\0" in text:
        counts["NUL characters removed"] += text.count("\0")
        text = text.replace("\0", "")
    if "\n" in text:
        counts["texts of several lines joined"] += 1
        text = " ".join(line.strip() for line in text.split("\n") if line.strip())
    if unicode_form == "none":
        if not unicodedata.is_normalized("NFC", text):
            counts["not in NFC, left so"] += 1
    elif not unicodedata.is_normalized(unicode_form, text):
        counts[f"put in {unicode_form}"] += 1
        text = unicodedata.normalize(unicode_form, text)
    return text


def read_aligned(source: Path, target: Path, on_bad_utf8: str, counts: Counter) -> Iterator[RawPair]:
    """Line n of one file translates line n of the other. Blank lines that one has more at its end do not matter."""
    lines = [read_lines(path, on_bad_utf8, counts) for path in (source, target)]
    end = object()
    for number, pair in enumerate(itertools.zip_longest(*lines, fillvalue=end)):
        if end in pair:
            shorter, longer = (0, 1) if pair[0] is end else (1, 0)
            paths, lengths, blank = (source, target), [number, number], True
            for line in itertools.chain([pair[longer]], lines[longer]):
                lengths[longer] += 1
                blank &= line is not None and not line.strip()
            if not blank:
                if not lengths[shorter]:
                    raise UserError(f"{paths[shorter]} is empty, {paths[longer]} is not: check how it was made")
                raise UserError(
                    f"{paths[shorter]} has {lengths[shorter]:,} lines but {paths[longer]} has {lengths[longer]:,}: "
                    f"line n of one must translate line n of the other"
                )
            counts["blank lines at the end of one side"] += lengths[longer] - number
            return
        yield pair


def read_tsv(path: Path, _: Languages, on_bad_utf8: str, counts: Counter) -> Iterator[RawPair]:
    """Source, tab, target; no header, no quotes."""
    for number, line in enumerate(read_lines(path, on_bad_utf8, counts), start=1):
        columns = (line, line) if not line else line.split("\t")  # None: bad bytes; empty: an empty pair
        if len(columns) != 2:
            raise UserError(f"{path}, line {number}: {len(columns)} column(s) where SOURCE<TAB>TARGET is needed")
        yield tuple(columns)


def read_jsonl(path: Path, languages: Languages, on_bad_utf8: str, counts: Counter) -> Iterator[RawPair]:
    """A JSON object a line: {"en": .., "de": ..}, {"translation": {"en": .., "de": ..}} or {"source": .., "target": ..}."""
    for number, line in enumerate(read_lines(path, on_bad_utf8, counts), start=1):
        if line is None:
            yield None, None
        elif not line.strip():
            counts["blank lines between records"] += 1
        else:
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: no JSON object ({error})") from None
            yield tuple(_storable(text, where, on_bad_utf8, counts) for text in _texts(row, languages, where))


def _texts(row: object, languages: Languages, where: str) -> tuple[str, str]:
    row = row.get("translation", row) if isinstance(row, dict) else {}
    for keys in (languages, ("source", "target")):
        texts = tuple(row.get(key) for key in keys) if isinstance(row, dict) else ()
        if texts and all(isinstance(text, str) for text in texts):
            return texts
    raise UserError(f"{where}: no text for {' and '.join(languages)}, nor for source and target: {str(row)[:80]}")


def _storable(text: str, where: str, on_bad_utf8: str, counts: Counter) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return mend(error, where, on_bad_utf8, counts)
    return text


def read_parquet(path: Path, languages: Languages, on_bad_utf8: str, counts: Counter) -> Iterator[RawPair]:
    """Columns named as the keys of JSONL; a few thousand rows in memory at a time."""
    import pyarrow
    from pyarrow import compute, parquet

    try:
        file = parquet.ParquetFile(path)
        names, number = file.schema_arrow.names, 0
        nested = ["translation"] if "translation" in names else []
        keys = languages if nested or set(languages) <= set(names) else ("source", "target")
        if not nested and not set(keys) <= set(names):
            raise UserError(
                f"{path} has the columns {names}: neither {languages}, 'translation', nor 'source', 'target'"
            )
        for batch in file.iter_batches(4096, columns=nested or keys):
            columns = [compute.struct_field(batch["translation"], key) if nested else batch[key] for key in keys]
            for pair in zip(*(column.cast(pyarrow.large_binary()).to_pylist() for column in columns), strict=True):
                number += 1
                if None in pair:
                    raise UserError(f"{path}, row {number}: no text for {' and '.join(languages)}")
                yield tuple(decode(raw, f"{path}, row {number}", on_bad_utf8, counts) for raw in pair)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"cannot read {path} as Parquet with text columns: {str(error).splitlines()[0]}") from None


ONE_FILE = {".tsv": read_tsv, ".jsonl": read_jsonl, ".parquet": read_parquet, ".tmx": read_tmx}
TEST_SETS = (".sgm", ".sgml")
