import pytest

from vaswani.resumable import ResumableOutput, file_fingerprint
from vaswani.run_config import UserError


def test_continues_behind_the_last_whole_chunk(tmp_path):
    path = tmp_path / "deep" / "out.txt"
    first = ResumableOutput(path, "f")
    first.write("eins\nzwei\n", 2)
    first.write("drei\n", 1)
    first.file.write(b"torn, \xc3")  # what a kill leaves
    first.file.flush()
    second = ResumableOutput(path, "f")
    assert second.done == 3 and not path.exists()
    second.write("vier\n", 1)
    second.finish()
    assert path.read_text() == "eins\nzwei\ndrei\nvier\n"
    assert [p.name for p in path.parent.iterdir()] == ["out.txt"]
    with pytest.raises(UserError, match="exists already"):
        ResumableOutput(path, "f")


def test_killed_before_the_first_chunk(tmp_path):
    begun = ResumableOutput(tmp_path / "out", "f")
    begun.file.write(b"half a ch")
    begun.file.flush()
    again = ResumableOutput(tmp_path / "out", "g")  # nothing was said of it yet
    assert again.done == 0
    again.finish()
    assert (tmp_path / "out").read_bytes() == b""


def test_other_work_is_not_continued(tmp_path):
    ResumableOutput(tmp_path / "out", "f").write("a\n", 1)
    with pytest.raises(UserError, match="another input, model or options"):
        ResumableOutput(tmp_path / "out", "g")
    (tmp_path / "out.partial").write_text("")
    with pytest.raises(UserError, match="delete both"):
        ResumableOutput(tmp_path / "out", "f")
    (tmp_path / "out.partial.json").write_text("not JSON")
    with pytest.raises(UserError, match="delete both"):
        ResumableOutput(tmp_path / "out", "f")


def test_fingerprints(tmp_path):
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(text)
    a, b, c = (file_fingerprint(tmp_path / name, "beam=4") for name in "abc")
    assert a == b != c and a != file_fingerprint(tmp_path / "a", "beam=5")
