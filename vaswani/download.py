"""Section 5.1: archives by address: resumed where they broke off, verified, unpacked member by member.

No library at hand does all of it: pooch verifies but starts a broken download again and knows one address a file,
fsspec and `datasets` do not resume, huggingface_hub's resuming function is private. So the standard library does.
"""

import contextlib
import hashlib
import http.client
import json
import lzma
import os
import posixpath
import shutil
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from .run_config import UserError

CHUNK = 1 << 20
NETWORK_ERRORS = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)


@dataclass(frozen=True)
class Archive:
    """A file of known content. The first address is the original, the others are mirrors; any may be gone."""

    name: str
    urls: tuple[str, ...]
    digest: str  # "sha256:..." or "md5:..."
    digest_from: str  # who published it
    size: int | None = None  # bytes


class Unavailable(Exception):
    """This address will not give the file, however often it is asked."""


def fetch(archive: Archive, folder: Path, log=print, tries: int = 5, pause: float = 1.0) -> Path:
    """The verified file in `folder`, downloaded unless it is there. What a broken download has left is gone on from.

    Args:
        tries: attempts without a single new byte before the next address is tried.
        pause: seconds after the first such attempt; doubled after each.

    Raises:
        UserError: no address gives the file, it is not the published one, or the disk is too full.
    """
    path = folder / archive.name
    if path.exists():
        if not is_right(path, archive):
            raise UserError(f"{path} is not the published file ({archive.digest}): delete it and run this again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures: list[str] = []
    for url in archive.urls:
        log(f"downloading {url}" + (f" ({archive.size / 1e6:,.0f} MB)" if archive.size else ""))
        try:
            _download(url, part, archive, log, tries, pause)
        except Unavailable as failure:
            failures.append(f"{url}: {failure}")
            log(f"  {failure}")
        else:
            os.replace(part, path)
            return path
    reasons = "; ".join(failures) or "it has no address any more"
    kept = f"run the same command again to go on from byte {part.stat().st_size:,}, or " if part.exists() else ""
    raise UserError(f"{archive.name} cannot be downloaded ({reasons}): {kept}put the file itself into {folder}")


def is_right(path: Path, archive: Archive) -> bool:
    if archive.size is not None and path.stat().st_size != archive.size:
        return False
    algorithm, expected = archive.digest.split(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == expected


def _download(url: str, part: Path, archive: Archive, log, tries: int, pause: float) -> None:
    failed, furthest = 0, _size(part)
    while True:
        resumed = _size(part)
        try:
            if archive.size is None or resumed != archive.size:
                _append(url, part, archive)
            if is_right(part, archive):
                return
            part.unlink()
            if not resumed:
                raise Unavailable(f"what it sends is not the published file ({archive.digest})")
            problem = "the file is wrong: once more from its start"  # perhaps only the part from an earlier run was
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):
                raise Unavailable(f"HTTP {error.code} {error.reason}") from None
            problem = f"HTTP {error.code} {error.reason}"
        except NETWORK_ERRORS as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        failed = 0 if _size(part) > furthest else failed + 1
        furthest = max(furthest, _size(part))
        if failed >= tries:
            raise Unavailable(problem)
        log(f"  {problem}; going on at byte {_size(part):,}")
        time.sleep(pause * 2**failed)


def _append(url: str, part: Path, archive: Archive) -> None:
    """Asks for what is missing. A server that does not know ranges sends the whole file, which then replaces the part."""
    have = _size(part)
    headers = {"User-Agent": "vaswani", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        reply = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing; whether it is right, the digest says
            return
        raise
    with reply:
        if reply.status != 206:
            have = 0
        elif not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise Unavailable("it answers with another range than the one asked for")
        length = reply.headers.get("Content-Length")
        total = have + int(length) if length else archive.size
        if archive.size is not None and total != archive.size:
            raise Unavailable(f"its file has {total:,} bytes, the published one {archive.size:,}")
        check_space(part.parent, (total or 0) - have, archive.name)
        with (
            part.open("ab" if have else "wb") as file,
            tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=archive.name, disable=None) as bar,
        ):
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) < total:
        raise ConnectionError(f"the connection broke off after {_size(part):,} of {total:,} bytes")


def left(archive: Archive, folder: Path) -> int:
    """Bytes still to download of an archive, as far as its size is known."""
    return max(0, (archive.size or 0) - _size(folder / f"{archive.name}.part"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_space(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(f"{what} needs {needed / 1e9:.2f} GB, and {folder} has {free / 1e9:.2f} GB free: make room")


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that bears its name only when all of it is written."""
    work = path.with_name(path.name + ".part")
    try:
        with work.open("wb") as file:
            yield file
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def extract(path: Path, members: Mapping[str, Path]) -> None:
    """Unpacks `members` (name in the archive: file to write) of a tar, compressed or not, and nothing else.

    The archive decides neither where a file goes nor what it is: only regular files, only at the paths given. A file
    appears under its name when it is whole.
    """
    wanted = dict(members)
    try:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                target = wanted.get(posixpath.normpath(entry.name))
                if target is None:
                    continue
                if not entry.isreg():
                    raise UserError(f"{entry.name} in {path} is no regular file: this is not the published archive")
                check_space(target.parent, entry.size, target.name)
                with tar.extractfile(entry) as source, whole(target) as file:
                    shutil.copyfileobj(source, file, CHUNK)
                del wanted[posixpath.normpath(entry.name)]
                if not wanted:
                    return
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}): delete it and run this again") from None
    raise UserError(f"{path} lacks {', '.join(wanted)}: this is not the published archive")


class Remembered:
    """What is computed of a file from its content, written down until path, size or time of the file change.

    Args:
        record: the JSON file that remembers; where it cannot be written, or is damaged, it is computed again.
    """

    def __init__(self, record: Path, compute: Callable[[Path], int | str]):
        self.record, self.compute = record, compute
        try:
            self.known = json.loads(record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.known = {}

    def __call__(self, path: Path) -> int | str:
        status = path.stat()
        key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
        if key not in self.known:
            self.known[key] = self.compute(path)
            with contextlib.suppress(OSError):
                self.record.parent.mkdir(parents=True, exist_ok=True)
                work = self.record.with_name(f"{self.record.name}.{os.getpid()}")  # several processes may write
                work.write_text(json.dumps(self.known, indent=2), encoding="utf-8")
                os.replace(work, self.record)
        return self.known[key]
