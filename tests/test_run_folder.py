"""The record of a run survives whatever ends the run, wherever it ends."""

import json
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from vaswani.run_config import DataConfig, ModelSettings, RunConfig, TrainingConfig, UserError, read_yaml, write_whole
from vaswani.run_folder import RunFolder

CODE = {"commit": None, "digest": "0"}


class Killed(BaseException):
    """In place of SIGKILL: nothing of ours catches it."""


def opened(path: Path, data: str = "data", **settings) -> RunFolder:
    config = RunConfig("", DataConfig(), ModelSettings(), TrainingConfig(output_dir=str(path), **settings))
    prepared = path.parent / data
    prepared.mkdir(exist_ok=True)
    (prepared / "report.json").write_text('{"train": {"kept": 5}}')
    run = RunFolder(config, prepared, True, CODE)
    try:
        run.open({})
    except BaseException:
        run.close()  # the lock ends with a killed process
        raise
    return run


def trained(path: Path, steps: int = 4) -> None:
    """A run with a checkpoint at its step 2."""
    run = opened(path)
    for step in range(1, steps + 1):
        run.note(step, text="a\u2028b", loss=1.0)
        run.append("validations.txt", f"* step {step:,} | valid loss 1.0")
    (path / "checkpoints" / "step_2").mkdir()
    run.close()


def kill(monkeypatch, moment: str, number: int) -> None:
    """At the `number`th time that a file is forced to disk ("fsync"), or would then be put in place ("replace")."""
    calls, original = [], getattr(os, moment)

    def killed(*given):
        calls.append(given)
        if len(calls) == number:
            raise Killed
        return original(*given)

    monkeypatch.setattr(os, moment, killed)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "old ä\n")
    for moment in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill(patch, moment, 1)
            write_whole(path, "new")
        assert path.read_text(encoding="utf-8") == "old ä\n"
    write_whole(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*config\.yaml'"):
        write_whole(tmp_path / "config.yaml", "text")


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("number", [1, 2])  # config.yaml, environment.json
@pytest.mark.parametrize("known", [False, True])
def test_a_start_that_is_killed_before_its_first_step(tmp_path, monkeypatch, moment, number, known):
    path = tmp_path / "run"
    if known:
        trained(path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill(patch, moment, number)
        opened(path)
    run = opened(path)
    assert read_yaml(path / "config.yaml")["d_model"] == 512
    assert json.loads((path / "environment.json").read_text())["data"] == "data"
    assert [record["step"] for record in run.records()] == ([1, 2, 3, 4] if known else [])
    run.close()


@pytest.mark.parametrize("number", [1, 2, 3])  # metrics.jsonl, validations.txt, nothing any more
def test_a_rewind_that_is_killed(tmp_path, monkeypatch, number):
    trained(tmp_path / "run")
    run = opened(tmp_path / "run")
    with monkeypatch.context() as patch:
        kill(patch, "replace", number)
        try:
            run.rewind(2)
        except Killed:
            assert number < 3
    run.close()
    run = opened(tmp_path / "run")
    run.rewind(2)
    assert run.records() == [{"step": step, "text": "a\u2028b", "loss": 1.0} for step in (1, 2)]
    validations = (tmp_path / "run" / "validations.txt").read_text()
    assert validations == "* step 1 | valid loss 1.0\n* step 2 | valid loss 1.0\n"
    run.close()


def test_a_rewind_that_drops_nothing_writes_nothing(tmp_path, monkeypatch):
    trained(tmp_path / "run")
    run = opened(tmp_path / "run")
    with monkeypatch.context() as patch:
        kill(patch, "fsync", 1)
        run.rewind(4)
    run.close()
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(
            '{"step": 5, "text": "ä'.encode()[:-1]
        )  # a kill within a character; the next line is not glued to it
    run = opened(tmp_path / "run")
    run.rewind(4)
    run.note(5, loss=0.5)
    assert [record["step"] for record in run.records()] == [1, 2, 3, 4, 5]
    run.close()


@pytest.mark.parametrize("text", ["", "a: [", "\0\0\0\0"])
def test_a_damaged_record(tmp_path, text):
    """Where there are checkpoints, nothing is guessed; where there are none, nothing is lost."""
    path = tmp_path / "run"
    opened(path).close()
    for name in ("config.yaml", "environment.json"):
        (path / name).write_text(text)
    opened(path).close()
    assert read_yaml(path / "config.yaml")["d_model"] == 512

    (path / "checkpoints" / "step_2").mkdir()
    whole = (path / "config.yaml").read_text()
    for name in ("config.yaml", "environment.json"):
        (path / name).write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is empty or damaged: put the config .* --fresh"):
        opened(path)
    (path / "config.yaml").write_text(whole)
    opened(path).close()
    with pytest.raises(UserError, match="was trained on prepared data data, and this is other"):
        opened(path, "other")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="is not a run folder"):
        opened(tmp_path)


class Saved:
    """In place of a model or tokenizer: writes its files, or finds the disk full at one of them."""

    def __init__(self, full: str = "", **files: str):
        self.full, self.files = full, files

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name, text in self.files.items():
            (folder / f"{name}.json").write_text(text[: 2 if name == self.full else None])
            if name == self.full:
                raise SafetensorError("I/O error: No space left on device (os error 28)")


def test_the_final_model_is_there_or_not(tmp_path, monkeypatch):
    run = opened(tmp_path / "run")
    path, files = tmp_path / "run", {"config": "config", "model": "weights"}
    before = {x.name for x in path.iterdir()}
    with pytest.raises(UserError, match=r"cannot save the model in .*run \(I/O error: No space .*: make room"):
        run.save_model(Saved(full="model", **files), Saved())
    assert {x.name for x in path.iterdir()} == before
    for number in (1, 2, 3):  # killed before any file is in its place: there is no config.json, thus no model
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill(patch, "replace", number)
            run.save_model(Saved(**files), Saved(tokenizer="words"))
        assert not (path / "config.json").exists()
    run.save_model(Saved(**files), Saved(tokenizer="words"))
    added = {name: (path / name).read_text() for name in {x.name for x in path.iterdir()} - before}
    assert added == {"config.json": "config", "model.json": "weights", "tokenizer.json": "words"}
    run.close()
