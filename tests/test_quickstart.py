"""README's first command, without the installation: what a newcomer sees."""

import json
import subprocess
import sys

import pytest
from load_script import ROOT

FLOOR = 90.0  # measured: 97.1


@pytest.mark.slow
def test_quickstart_reaches_its_floor(tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "scripts" / "train.py")]
    command += [str(ROOT / "configs" / "quickstart.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    run = tmp_path / "runs" / "quickstart"
    results = json.loads((run / "results.json").read_text())
    assert results["scores"][0]["scores"]["sacrebleu"]["score"] >= FLOOR
    assert results["exact_match"].keys() == {"date", "name", "number"}
    assert min(results["exact_match"].values()) > 70
    ending = done.stdout[done.stdout.rindex("test: sacrebleu") :]
    assert ending.count("  translation ") >= 3
    assert len((run / "samples" / "test.translation").read_text().splitlines()) == 1000
