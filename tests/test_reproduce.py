"""scripts/reproduce.py: from the name of a table to the numbers beside the paper's."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from accelerate.state import AcceleratorState
from load_script import ROOT, load_script

from vaswani.corpora import embedded_corpus
from vaswani.rows import rows_of

KEYS = {"table", "row", "seed", "ppl", "bleu", "parameters", "flops", "paper_bleu", "paper_ppl", "verdict"}
SCRIPT = str(ROOT / "scripts" / "reproduce.py")


def reproduce(*words: str) -> int:
    AcceleratorState._reset_state(reset_partial_state=True)
    return load_script("reproduce").main(list(words))


def test_the_chain_of_a_row_of_table_2_and_two_of_table_3(tmp_path, capsys):
    folder = ["--rehearse", "--output-dir", str(tmp_path)]
    assert reproduce("table2", "--row", "en_de_base", *folder) == 0
    out = capsys.readouterr().out
    steps = [line.split()[1].removeprefix("scripts/") for line in out.splitlines() if line.startswith("+ ")]
    assert steps == ["prepare_data.py", "train.py", "average_checkpoints.py", "evaluate.py"]
    assert reproduce("table3", "--row", "base", "d_smoothing_0.0", *folder) == 0
    out = capsys.readouterr().out
    steps = [line.split()[1].removeprefix("scripts/") for line in out.splitlines() if line.startswith("+ ")]
    assert steps == ["evaluate.py", "prepare_data.py", "train.py", "evaluate.py"]  # the base model was trained before
    lines = json.loads((tmp_path / "results.json").read_text())
    assert [(line["table"], line["row"]) for line in lines] == [
        ("table2", "en_de_base"), ("table3", "base"), ("table3", "d_smoothing_0.0")
    ]  # fmt: skip
    for line in lines:
        assert line.keys() >= KEYS and line["seed"] == 1 and line["verdict"] == "rehearsal: not comparable"
        assert 1 < line["ppl"] < 120 and 0 <= line["bleu"] < 100  # 350 entries: it has learned something
    assert (
        lines[0]["set"] == "test" and lines[0]["weights"].startswith("average of steps ") and lines[0]["steps"] == 160
    )
    assert lines[1]["set"] == "valid" and lines[1]["weights"] == "last" and lines[1]["paper_ppl"] == 4.92
    table = (tmp_path / "results.md").read_text().splitlines()
    assert len(table) == 5 and "| 27.3 |" in table[2]
    shutil.copytree(tmp_path / "table2/en_de_base/seed_1", tmp_path / "table2/en_de_base/seed_1.20261130-010101")
    assert reproduce("table3", "--row", "base", *folder) == 0  # an earlier run that --fresh has moved aside is none
    assert "+ scripts" not in capsys.readouterr().out  # all is done
    assert json.loads((tmp_path / "results.json").read_text()) == lines
    assert reproduce("table3", "--row", "base", "--output_dir", str(tmp_path)) == 2
    assert "holds a rehearsal: choose another --output_dir" in capsys.readouterr().err


def test_plans_and_mistakes(tmp_path, capsys):
    assert reproduce("table2", "--plan", "--gpu", "A100", "--mfu", "0.3", "--seeds", "2") == 0
    out = capsys.readouterr().out
    assert (
        "| en_de_base | 2 | 100,000 | 18.5 | 381 | 5.00e+09 | 1.91e+18 | 5.66 |" in out and "A100 hours at 30%" in out
    )
    assert reproduce("table3", "--row", "nonsense", "--plan") == 2
    assert "choose from base" in capsys.readouterr().err
    for words in (["--row", "base"], ["table3", "--plan", "--max_tokens", "9"], [], ["table4"]):
        with pytest.raises(SystemExit):
            reproduce(*words)
    assert reproduce("table3", "--row", "base", "--output_dir", str(tmp_path), "--no_such_setting", "1") == 2
    assert "--help" in capsys.readouterr().err
    words = ["table3", "--row", "c_layers_2", "--output_dir", str(tmp_path)]
    for more in (["--num_layers", "8"], ["--seed", "7"], ["--init_from", "x"]):
        assert reproduce(*words, *more) == 2
        assert f"{more[0]} is what row c_layers_2 or reproduce.py itself sets" in capsys.readouterr().err
    words = ["table2", "--row", "en_de_base", "--output_dir", str(tmp_path)]
    for more, there in ((["--keep_checkpoints", "3"], 3), (["--save_steps", "30000"], 4)):
        assert reproduce(*words, *more) == 2
        assert f"is the mean of 5 checkpoints, and with these settings {there} will be there" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        reproduce("table3", "--plan", "--mfu", "40")
    assert not list(tmp_path.rglob("seed_1"))


def test_a_failing_step_ends_it_with_its_code(tmp_path, capfd):
    """A real run, whose text is not there."""
    words = ["multi30k", "--row", "base", "--output_dir", str(tmp_path), "--data_dir", str(tmp_path / "nowhere")]
    assert reproduce(*words, "--prepared_dir", str(tmp_path / "prepared")) == 2
    assert "nowhere" in capfd.readouterr().err


def multi30k(folder: Path, *more: str) -> list[str]:
    """The command of a real run of the base row, of four steps on a text of its own."""
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    for split, pairs in embedded_corpus().items():
        for lang in ("en", "de"):
            (folder / f"{names[split]}.{lang}").write_text("".join(pair[lang] + "\n" for pair in pairs[:60]))
    options = {"output_dir": "runs", "prepared_dir": "prepared", "data_dir": "."}
    words = [word for key, path in options.items() for word in (f"--{key}", str(folder / path))]
    words += ["--max_steps", "4", "--tokens_per_batch", "200", "--vocab_size", "300", "--num_workers", "1", *more]
    return [sys.executable, SCRIPT, "multi30k", "--row", "base", *words]


def test_a_real_run_is_launched_scored_and_then_skipped(tmp_path):
    command = multi30k(tmp_path)
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    steps = [line.split()[1].removeprefix("scripts/") for line in out.splitlines() if line.startswith("+ ")]
    assert steps == ["prepare_data.py", "train.py", "evaluate.py"]
    (line,) = json.loads((tmp_path / "runs/results.json").read_text())
    assert (line["table"], line["row"], line["seed"], line["steps"]) == ("multi30k", "base", 1, 4)
    assert line.keys() >= KEYS and line["paper_bleu"] == 25.8 and line["verdict"] == "-"
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "+ scripts" not in again and "| multi30k | base | 1 |" in again


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(x, marks=pytest.mark.slow) for x in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_stops_what_it_has_launched_too(tmp_path, number):
    command = multi30k(tmp_path, "--log_steps", "1")
    first = subprocess.Popen([*command, "--max_steps", "100000"], stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if line.startswith("step 3/"):
            break
    first.send_signal(number)
    assert first.wait(timeout=60) == 128 + number
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    left = [command for command in commands if str(tmp_path) in command]
    assert not left
    (saved,) = (tmp_path / "runs/multi30k/base/seed_1/checkpoints").iterdir()
    step = int(saved.name.removeprefix("step_"))
    assert step >= 3
    again = subprocess.run([*command, "--max_steps", str(step + 1)], capture_output=True, text=True, check=True).stdout
    assert f"continuing from {saved}" in again
    (line,) = json.loads((tmp_path / "runs/results.json").read_text())
    assert line["steps"] == step + 1


@pytest.mark.slow
def test_the_whole_rehearsal_stopped_and_continued(tmp_path):
    command = [sys.executable, SCRIPT, "--rehearse", "--output-dir", str(tmp_path)]
    began = time.monotonic()
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if line.startswith("+ scripts/train.py") and "en_de_big" in line:
            break
    for line in first.stdout:
        if line.startswith("step 50/"):
            break
    first.send_signal(signal.SIGTERM)
    rest = first.communicate(timeout=60)[0]
    assert first.returncode == 128 + signal.SIGTERM and "stopped by signal 15" in rest
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    trained = [line for line in done.stdout.splitlines() if line.startswith("+ scripts/train.py")]
    assert "continuing from" in done.stdout and not any(line.endswith("en_de_base/seed_1") for line in trained)
    lines = json.loads((tmp_path / "results.json").read_text())
    assert [line["row"] for line in lines] == [row.name for t in ("table2", "table3") for row in rows_of(t)]
    assert time.monotonic() - began < 600
