"""Lines of UTF-8 text in files, plain or compressed: only a line feed ends one, and bad bytes are met by a policy."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .run_config import UserError


def _open_zstd(path: Path, _mode: str) -> BinaryIO:
    import pyarrow  # comes with `datasets`; Python has no zstd before 3.14

    return pyarrow.input_stream(str(path), compression="zstd")


OPENERS: dict[str, Callable] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zstd}


def find_file(path: Path) -> Path:
    """The file of that name, or of that name with a compression suffix."""
    if (found := existing(path)) is None:
        raise UserError(
            f"there is no file {path} (nor {path.name}{', '.join(OPENERS)} beside it): check the path and data_dir"
        )
    return found


def existing(path: Path) -> Path | None:
    candidates = (path.with_name(path.name + suffix) for suffix in ("", *OPENERS))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def without_compression(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in OPENERS else path


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed as its suffix says.

    Raises:
        UserError: it cannot be read, also where damage shows only later, while reading.
    """
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as raw, io.BufferedReader(raw, 1 << 17) as file:
            yield file
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"cannot read {path}: {error}; is it whole, and compressed as its name says?") from None


def mend(error: UnicodeError, where: str, on_bad_utf8: str, counts: Counter) -> str | None:
    """What the policy makes of a text with bytes that are not UTF-8, or with lone surrogates.

    The latter cannot be written in UTF-8; JSON can still spell them. "error" raises, "skip" gives None, "replace" gives
    the text with U+FFFD in their place; the last two are counted.
    """
    bad, text = error.object[error.start], error.object
    if on_bad_utf8 == "error":
        what = f"U+{ord(bad):04X}, half of a surrogate pair," if isinstance(bad, str) else f"byte 0x{bad:02x}"
        raise UserError(
            f"{where}: {what} at position {error.start} is not UTF-8; "
            f"convert the file, or choose --on_bad_utf8 skip or replace"
        )
    counts[f"bad UTF-8: {on_bad_utf8}"] += 1
    if on_bad_utf8 == "skip":
        return None
    return re.sub("[\ud800-\udfff]", "\ufffd", text) if isinstance(text, str) else text.decode(errors="replace")


def decode(raw: bytes, where: str, on_bad_utf8: str, counts: Counter) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return mend(error, where, on_bad_utf8, counts)


def decode_lines(file: Iterable[bytes], name: str, on_bad_utf8: str, counts: Counter) -> Iterator[str | None]:
    """Lines of UTF-8 text. Only LF ends a line; a CR before it and a BOM at the start are dropped.

    A line with bytes that are not UTF-8 raises (`on_bad_utf8="error"`), is given as None ("skip") or has them replaced
    by U+FFFD ("replace"); the last two are counted.
    """
    for number, raw in enumerate(file, start=1):
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            raw = raw[:-1]
            counts["CRLF line ends"] += 1
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
            raw = raw[3:]
            counts["byte order marks removed"] += 1
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            yield mend(error, f"{name}, line {number}", on_bad_utf8, counts)


def read_lines(path: Path, on_bad_utf8: str = "error", counts: Counter | None = None) -> Iterator[str | None]:
    """`decode_lines` of a file, plain or compressed."""
    with open_file(path) as file:
        yield from decode_lines(file, str(path), on_bad_utf8, Counter() if counts is None else counts)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A line each, in UTF-8; a line feed inside one becomes a space, so that line n stays line n."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line.replace("\n", " ") + "\n" for line in lines)
