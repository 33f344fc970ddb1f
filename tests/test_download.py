"""Downloads from a server on this machine that breaks off, lies, forgets ranges or lacks the file."""

import hashlib
import io
import os
import re
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vaswani import download
from vaswani.download import Archive, extract, fetch
from vaswani.run_config import UserError

DATA = bytes(range(256)) * 1000


class Server:
    """Files by path. `breaks`: bytes after which a connection ends, once each; `status`: answers, once each."""

    def __init__(self):
        self.files, self.breaks, self.status, self.ranges, self.asked = {}, [], [], True, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        data, asked = self.files.get(request.path[1:]), request.headers.get("Range")
        self.asked.append((request.path[1:], asked))
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        status = self.status.pop(0) if self.status else 404 if data is None else 206 if start else 200
        if data is not None and start >= len(data) and status in (200, 206):
            status = 416
        request.send_response(status)
        if status in (200, 206):
            request.send_header("Content-Length", str(len(data) - start))
            if status == 206:
                request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            request.end_headers()
            request.wfile.write(data[start:][: self.breaks.pop(0) if self.breaks else None])
        else:
            request.send_header("Content-Length", "0")
            request.end_headers()

    def archive(self, *names: str, data: bytes = DATA, sized: bool = True) -> Archive:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return Archive("a.bin", tuple(self.address + name for name in names), digest, "", len(data) if sized else None)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def get(archive: Archive, folder: Path, **options) -> bytes:
    return fetch(
        archive, folder, options.pop("log", lambda _: None), **{"tries": 2, "pause": 0.0} | options
    ).read_bytes()


def test_a_file_is_downloaded_once_and_leaves_nothing_else(server, tmp_path):
    server.files["x"] = DATA
    archive = server.archive("x")
    assert get(archive, tmp_path / "new") == DATA
    assert get(archive, tmp_path / "new") == DATA
    assert server.asked == [("x", None)]
    assert os.listdir(tmp_path / "new") == ["a.bin"]


@pytest.mark.parametrize("sized", [True, False])
def test_a_download_that_breaks_off_goes_on_where_it_stopped(server, tmp_path, sized):
    server.files["x"], server.breaks = DATA, [100_000, 50_000]
    assert get(server.archive("x", sized=sized), tmp_path) == DATA
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_another_run_goes_on_with_what_an_interrupted_one_has_left(server, tmp_path):
    server.files["x"], server.breaks = DATA, [100_000, 0, 0]
    with pytest.raises(UserError, match=r"broke off after 100,000 of 256,000.*to go on from byte 100,000"):
        get(server.archive("x"), tmp_path)
    assert os.listdir(tmp_path) == ["a.bin.part"]
    server.asked.clear()
    assert get(server.archive("x"), tmp_path) == DATA
    assert [asked for _, asked in server.asked] == ["bytes=100000-"]


@pytest.mark.parametrize("sized", [True, False])
def test_a_part_that_is_already_complete_is_only_verified(server, tmp_path, sized):
    server.files["x"] = DATA
    (tmp_path / "a.bin.part").write_bytes(DATA)
    assert get(server.archive("x", sized=sized), tmp_path) == DATA
    assert server.asked == ([] if sized else [("x", "bytes=256000-")])


@pytest.mark.parametrize("left", [b"other" * 100, DATA + b"too long"])
def test_a_wrong_part_is_thrown_away_and_the_download_starts_again(server, tmp_path, left):
    server.files["x"] = DATA
    (tmp_path / "a.bin.part").write_bytes(left)
    assert get(server.archive("x"), tmp_path) == DATA
    assert [asked for _, asked in server.asked] == [f"bytes={len(left)}-", None]


def test_a_server_without_ranges_sends_the_file_from_its_start(server, tmp_path):
    server.files["x"], server.breaks, server.ranges = DATA, [100_000], False
    assert get(server.archive("x"), tmp_path) == DATA
    assert len(server.asked) == 2


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(server, tmp_path):
    server.files["x"], server.breaks, server.ranges = DATA, [100, 60, 90, 100, 80], False
    with pytest.raises(UserError, match="broke off after 90 of 256,000"):
        get(server.archive("x"), tmp_path)


def test_a_missing_file_is_taken_from_the_mirror_at_once(server, tmp_path):
    server.files["mirror"] = DATA
    log = []
    assert get(server.archive("gone", "mirror"), tmp_path, log=log.append) == DATA
    assert [name for name, _ in server.asked] == ["gone", "mirror"]
    assert any("HTTP 404" in line for line in log)


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.files["x"], server.status = DATA, [503, 429]
    assert get(server.archive("x"), tmp_path, tries=3) == DATA


def test_the_mirror_goes_on_where_the_original_broke_off(server, tmp_path):
    server.files["x"] = server.files["mirror"] = DATA
    server.breaks, server.status = [100_000], [200, 404]
    assert get(server.archive("x", "mirror"), tmp_path) == DATA
    assert server.asked[-1] == ("mirror", "bytes=100000-")


@pytest.mark.parametrize(
    "wrong, reason", [(DATA[::-1], "not the published file"), (b"<html>please sign in", "has 20 bytes")]
)
def test_another_file_is_never_taken_for_the_published_one(server, tmp_path, wrong, reason):
    server.files["x"] = wrong
    with pytest.raises(UserError, match=reason):
        get(server.archive("x"), tmp_path)
    assert os.listdir(tmp_path) == []
    server.files["mirror"] = DATA
    assert get(server.archive("x", "mirror"), tmp_path) == DATA


def test_a_wrong_file_that_was_there_before_is_kept_and_named(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"a\.bin is not the published file .*: delete it"):
        get(server.archive("x"), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"


def test_md5_digests_are_known_too(server, tmp_path):
    server.files["x"] = DATA
    digest = f"md5:{hashlib.md5(DATA).hexdigest()}"
    assert get(Archive("a.bin", (server.address + "x",), digest, ""), tmp_path) == DATA


def test_a_full_disk_is_noticed_before_the_download(server, tmp_path, monkeypatch):
    server.files["x"] = DATA
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"a\.bin needs 0\.00 GB, .* make room"):
        get(server.archive("x"), tmp_path)
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------- unpacking
def make_tar(path: Path, members: dict[str, bytes], **entries: bytes) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, kind in entries.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
    return path


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
def test_only_the_wanted_members_are_unpacked(tmp_path, name):
    members = {
        "./in/one": b"1" * 3_000_000,
        "../../outside": b"bad",
        "/tmp/outside": b"bad",
        "two": b"2",
        "three": b"3",
    }
    (tmp_path / "out").mkdir()
    wanted = {"in/one": tmp_path / "out" / "one", "two": tmp_path / "out" / "zwei"}
    extract(make_tar(tmp_path / name, members), wanted)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "one": b"1" * 3_000_000,
        "zwei": b"2",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out"])


def test_a_link_is_not_unpacked(tmp_path):
    path = make_tar(tmp_path / "a.tar", {}, link=tarfile.SYMTYPE)
    with pytest.raises(UserError, match=r"link in .* is no regular file"):
        extract(path, {"link": tmp_path / "link"})
    assert not (tmp_path / "link").exists()


def test_a_member_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="lacks two"):
        extract(make_tar(tmp_path / "a.tgz", {"one": b"1"}), {"one": tmp_path / "one", "two": tmp_path / "two"})


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_truncated_archive_leaves_no_half_file(tmp_path, name, share):
    path = make_tar(tmp_path / name, {"one": os.urandom(500_000)})
    path.write_bytes(path.read_bytes()[: int(share * 500_000)])
    with pytest.raises(UserError, match="damaged or cut short"):
        extract(path, {"one": tmp_path / "one"})
    assert os.listdir(tmp_path) == [name]
