"""The training script as a user runs it: in this process where one is enough, through `accelerate launch` elsewhere."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from load_script import ROOT, load_script
from safetensors.torch import load_file

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Numbers in words, the German in reverse order: to be learnt, the decoder has to look at the source."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    seen = set()
    for split, size in (("train", 1500), ("valid", 40), ("test", 60)):
        lines = []
        while len(lines) < size:
            numbers = tuple(rng.randrange(10) for _ in range(rng.randint(2, 5)))
            if split == "train" or numbers not in seen:
                lines.append(numbers)
            if split == "train":
                seen.add(numbers)
        for lang, words, order in (("en", ENGLISH, 1), ("de", GERMAN, -1)):
            text = "".join(" ".join(words[i] for i in numbers[::order]) + "\n" for numbers in lines)
            (folder / f"{split}.{lang}").write_text(text, encoding="utf-8")
    config = {
        "data_dir": str(folder), "train_files": ["train"], "valid_files": ["valid"], "test_files": ["test"],
        "prepared_dir": str(folder / "prepared"), "vocab_size": 300, "d_model": 64, "d_ff": 128, "num_layers": 1,
        "num_heads": 4, "dropout": 0.0, "tokens_per_batch": 400, "warmup_steps": 100, "lr_factor": 0.4, "log_steps": 1,
        "eval_steps": 1000, "save_steps": 1000, "mixed_precision": "no", "num_beams": 2, "max_steps": 20,
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


def arguments(corpus: Path, run: Path, **changes) -> list[str]:
    options = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    return [str(corpus / "config.yaml"), "--output_dir", str(run), *options]


def train_here(corpus: Path, run: Path, **changes) -> int:
    """As a process of its own would: accelerate keeps its state for the life of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return load_script("train").main(arguments(corpus, run, num_threads=1, **changes))


def metrics(run: Path, key: str = "loss") -> list[float]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line[key] for line in lines if key in line]


def launch(corpus: Path, run: Path, *launch_options: str, **changes) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch_options]
    command += [str(ROOT / "scripts" / "train.py"), *arguments(corpus, run, **changes)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_it_learns_and_leaves_a_whole_run_folder(corpus, tmp_path, capsys):
    run = tmp_path / "run"
    changes = {"max_steps": 400, "eval_steps": 200, "save_steps": 150, "keep_checkpoints": 2, "log_steps": 50}
    assert train_here(corpus, run, **changes) == 0
    output = capsys.readouterr().out
    results = json.loads((run / "results.json").read_text())
    assert results["test_bleu"] > 75  # it must look at the source, and reverse it; 84 to 98 over seeds and roundings
    assert results["signature"].startswith("nrefs:1|case:mixed")
    generation = json.loads((run / "generation_config.json").read_text())
    assert (generation["num_beams"], generation["length_penalty"], generation["length_penalty_type"]) == (
        2,
        0.6,
        "gnmt",
    )
    assert metrics(run)[-1] < metrics(run)[0] / 2
    assert [line[0] for line in (run / "validations.txt").read_text().splitlines()].count("*") >= 1
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_300", "step_400"]
    expected = {
        "config.yaml",
        "environment.json",
        "samples/step_200.txt",
        "samples/test.translation",
        "model.safetensors",
    }
    assert expected <= {str(path.relative_to(run)) for path in run.rglob("*")}
    assert output.count("  translation ") >= 3 and "test: BLEU = " in output

    program = f"""
import vaswani
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tok = AutoModelForSeq2SeqLM.from_pretrained({str(run)!r}), AutoTokenizer.from_pretrained({str(run)!r})
ids = model.generate(**tok(["one two three", "nine"], return_tensors="pt", padding=True), num_beams=4)
print(tok.batch_decode(ids, skip_special_tokens=True), model.config.source_lang, model.config.target_lang)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "['drei zwei eins', 'neun'] en de"

    # the scripts that use it
    command = [sys.executable, str(ROOT / "scripts" / "translate.py"), str(run)]
    done = subprocess.run(command, input=b"two five\n\nbad \xff\n", capture_output=True, timeout=120, check=True)
    lines = done.stdout.decode().split("\n")
    assert lines[:2] == ["fünf zwei", ""] and len(lines) == 4 and b"1 line(s), bad UTF-8" in done.stderr
    options = [
        "--source",
        str(corpus / "test.en"),
        "--reference",
        str(corpus / "test.de"),
        "--num_beams",
        "2",
        "--json",
    ]
    assert load_script("evaluate").main([str(run), *options]) == 0
    scored = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert scored["sacrebleu"] == pytest.approx(results["test_bleu"])
    assert scored["signature"] == results["signature"]
    assert load_script("evaluate").main([str(run), "--all", *options]) == 0  # the curve over the checkpoints
    points = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["points"]
    assert [point["step"] for point in points] == [300, 400]
    assert points[-1]["sacrebleu"] == pytest.approx(results["test_bleu"], abs=0.01)
    assert points[0]["sacrebleu"] > 50 and points[0]["paper_bleu"] > 0
    assert json.loads((run / "bleu_curve.json").read_text())["points"] == points
    assert (run / "bleu_curve.png").read_bytes().startswith(b"\x89PNG")
    assert load_script("evaluate").main([str(corpus), "--all", *options]) == 2
    assert "has no checkpoints" in capsys.readouterr().err


def test_resume_is_exact(corpus, tmp_path, capsys):
    changes = {"dropout": 0.2, "save_steps": 7, "max_steps": 25}
    assert train_here(corpus, tmp_path / "whole", **changes) == 0
    assert train_here(corpus, tmp_path / "halves", **changes | {"max_steps": 14}) == 0
    assert train_here(corpus, tmp_path / "halves", **changes) == 0
    assert "continuing from" in capsys.readouterr().out
    whole, halves = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "halves")


def test_a_killed_run_leaves_no_trace_of_its_lost_steps(corpus, tmp_path):
    """Interrupted between checkpoints and past an epoch's end, resumed: the same weights and the same record."""
    changes = {"save_steps": 15, "max_steps": 50, "log_steps": 5, "eval_steps": 10, "eval_sentences": 5}
    assert train_here(corpus, tmp_path / "whole", **changes) == 0
    script, calls = load_script("train"), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 42:  # steps 31 to 41 are lost
            raise KeyboardInterrupt
        return original(*arguments)

    original, script.update = script.update, interrupted
    AcceleratorState._reset_state(reset_partial_state=True)
    assert script.main(arguments(corpus, tmp_path / "killed", num_threads=1, **changes)) == 130
    assert metrics(tmp_path / "killed", "step")[-1] == 40
    assert train_here(corpus, tmp_path / "killed", **changes) == 0
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    for name in ("loss", "valid_nll", "valid_bleu", "step"):
        assert metrics(tmp_path / "whole", name) == metrics(tmp_path / "killed", name)
    texts = [(tmp_path / name / "validations.txt").read_text() for name in ("whole", "killed")]
    assert texts[0] == texts[1] and texts[0].count("\n") == 5


def test_other_data_under_the_same_names_is_refused(corpus, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("prepared"))
    assert train_here(copy, tmp_path / "run", max_steps=1, data_dir=copy) == 0
    text = (copy / "train.de").read_text(encoding="utf-8")
    (copy / "train.de").write_text(text.replace("eins", "ein"), encoding="utf-8")
    assert train_here(copy, tmp_path / "run", max_steps=2, data_dir=copy) == 2
    assert "was trained on prepared data" in capsys.readouterr().err


def test_accumulation_changes_nothing(corpus, tmp_path):
    assert train_here(corpus, tmp_path / "whole") == 0
    assert train_here(corpus, tmp_path / "parts", max_tokens=130) == 0
    assert metrics(tmp_path / "parts") == pytest.approx(metrics(tmp_path / "whole"), rel=1e-5)
    assert metrics(tmp_path / "parts", "grad_norm") == pytest.approx(metrics(tmp_path / "whole", "grad_norm"), rel=1e-3)


def test_a_loss_that_is_no_number_ends_the_run(corpus, tmp_path, capsys):
    changes = {"lr_factor": 1e9, "save_steps": 1, "max_steps": 30, "log_steps": 5}
    assert train_here(corpus, tmp_path / "run", **changes) == 2
    assert "the loss is no longer a number at step" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_another_run_is_not_continued_by_mistake(corpus, tmp_path, capsys):
    run = tmp_path / "run"
    assert train_here(corpus, run, max_steps=2) == 0
    assert train_here(corpus, run, max_steps=2, d_model=32) == 2
    error = capsys.readouterr().err
    assert "was started with other settings (d_model 64 -> 32)" in error
    assert train_here(corpus, run, max_steps=2, d_model=32, fresh="true") == 0
    assert len(list(tmp_path.glob("run.*"))) == 1 and "kept in" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    assert train_here(corpus, tmp_path / "other") == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_refuses_a_world_that_it_does_not_see(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train_here(corpus, tmp_path / "run") == 2
    assert "2 processes train together but this one sees 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_bad_data_ends_the_run_before_it_begins(corpus, tmp_path, capsys):
    assert train_here(corpus, tmp_path / "run", train_files="nothing_there") == 2
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert train_here(corpus, tmp_path / "run", max_tokens=3) == 2
    assert "over max_tokens=3: raise it" in capsys.readouterr().err
    assert train_here(corpus, tmp_path / "run", num_heads=5) == 2
    assert "d_model=64 is not a multiple of num_heads=5" in capsys.readouterr().err
    assert train_here(corpus, tmp_path / "run", dropout=1.5) == 2
    assert "error: dropout=1.5 must lie in [0, 1)" in capsys.readouterr().err
    assert train_here(corpus, tmp_path / "run", position_encoding="learned", max_position_embeddings=5) == 2
    assert "over the 5 learned positions: raise max_position_embeddings" in capsys.readouterr().err
    for option, value in (("log_steps", 0), ("warmup_steps", 0), ("label_smoothing", 1.5), ("keep_checkpoints", 0)):
        assert train_here(corpus, tmp_path / "run", **{option: value}) == 2
        assert f"error: {option}={value} must" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_two_processes_compute_what_one_does(corpus, tmp_path):
    """20 updates without dropout: the same losses for the same global batches; threads are shared out."""
    alone = launch(corpus, tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    two = launch(corpus, tmp_path / "two", "--multi_gpu", "--num_processes", "2")
    assert two.returncode == 0, two.stderr
    cores = len(os.sched_getaffinity(0))
    for run, processes in (("alone", 1), ("two", 2)):
        environment = json.loads((tmp_path / run / "environment.json").read_text())
        assert environment["processes"] == processes
        assert environment["threads_per_process"] == max(1, cores // processes)
    one, both = metrics(tmp_path / "alone"), metrics(tmp_path / "two")
    assert len(one) == 20
    assert both == pytest.approx(one, rel=1e-5)
    assert metrics(tmp_path / "alone", "target_tokens") == metrics(tmp_path / "two", "target_tokens")
    assert metrics(tmp_path / "two", "valid_nll") == pytest.approx(metrics(tmp_path / "alone", "valid_nll"), rel=1e-5)
    translations = [(tmp_path / run / "samples" / "test.translation").read_text() for run in ("alone", "two")]
    assert translations[0] == translations[1] and translations[0].count("\n") == 60


def test_processes_without_work_wait_for_the_others(corpus, tmp_path):
    """Batches of a single pair, one validation sentence: one of two processes has nothing to add."""
    small = {"tokens_per_batch": 6, "max_steps": 4, "eval_steps": 2, "eval_sentences": 1}
    alone = launch(corpus, tmp_path / "alone", **small)
    two = launch(corpus, tmp_path / "two", "--multi_gpu", "--num_processes", "2", **small)
    assert alone.returncode == two.returncode == 0, two.stderr
    assert metrics(tmp_path / "two") == pytest.approx(metrics(tmp_path / "alone"), rel=1e-5)
    assert metrics(tmp_path / "two", "valid_bleu") == metrics(tmp_path / "alone", "valid_bleu")


def test_memory_that_runs_out_and_the_largest_micro_batch(corpus, tmp_path, capfd, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("vaswani.memory.memory_limit", lambda device: 0)  # not all of this machine's
    assert train_here(corpus, tmp_path / "found", find_max_tokens=True) == 0
    assert "fit into this machine's memory" in capfd.readouterr().out
    monkeypatch.setattr(torch.Tensor, "backward", fail)
    assert train_here(corpus, tmp_path / "run", max_tokens=300) == 2
    assert "lower max_tokens (now 300;" in capfd.readouterr().err
