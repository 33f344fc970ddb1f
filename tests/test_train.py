"""The training script as a user runs it: in this process where one is enough, through `accelerate launch` elsewhere."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState
from load_script import ROOT, load_script
from trainers import arguments, free_port, launch, launched, metrics, same_weights, train_here, train_together

from vaswani.checkpoint import checkpoints


def test_it_learns_and_leaves_a_whole_run_folder(corpus, tmp_path, capsys):
    run = tmp_path / "run"
    changes = {"max_steps": 700, "eval_steps": 200, "save_steps": 300, "keep_checkpoints": 2, "log_steps": 50}
    changes |= {"figures": "true", "eval_sentences": 40, "report_to": "tensorboard"}
    pytest.importorskip("tensorboard")
    assert train_here(corpus, run, **changes) == 0
    output = capsys.readouterr().out
    results = json.loads((run / "results.json").read_text())
    (scored,) = results["scores"]
    assert (scored["set"], scored["split"], scored["weights"], scored["sentences"]) == ("test", "test", "last", 60)
    bleu = scored["scores"]["sacrebleu"]
    assert bleu["score"] > 90 and scored["ppl"] < 1.5  # it must look at the source, and reverse it
    assert bleu["signature"].startswith("nrefs:1|case:mixed")
    assert json.loads((run / "data.json").read_text())["train"]["kept"] == 1500
    generation = json.loads((run / "generation_config.json").read_text())
    assert (generation["num_beams"], generation["length_penalty"], generation["length_penalty_type"]) == (
        2,
        0.6,
        "gnmt",
    )
    assert metrics(run)[-1] < metrics(run)[0] / 2
    assert [line[0] for line in (run / "validations.txt").read_text().splitlines()].count("*") >= 1
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_600", "step_700"]
    expected = {
        "config.yaml",
        "environment.json",
        "samples/step_200.txt",
        "samples/test.translation",
        "model.safetensors",
        "curves.png",
        "attention/step_200.png",
    }
    assert expected <= {str(path.relative_to(run)) for path in run.rglob("*")}
    assert output.count("  translation ") >= 3 and "test: sacrebleu " in output
    assert metrics(run, "valid_source_gain")[-1] > 1  # nats per token that the source is worth
    assert "warning: the translations ignore" not in output
    assert "1 process(es) x 1.0 micro-batch(es) of any size" in output
    check_tensorboard(run)

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
    assert scored["sacrebleu"] == pytest.approx(bleu["score"])
    assert scored["signature"] == bleu["signature"]
    assert scored["ppl"] == pytest.approx(results["scores"][0]["ppl"], rel=1e-5)
    check_record(run, results, capsys)
    assert load_script("evaluate").main([str(run), "--all", *options]) == 0  # the curve over the checkpoints
    points = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["points"]
    assert [point["step"] for point in points] == [600, 700]
    assert points[-1]["sacrebleu"] == pytest.approx(bleu["score"], abs=0.01)
    assert points[0]["sacrebleu"] > 50 and points[0]["paper_bleu"] > 0
    assert json.loads((run / "bleu_curve.json").read_text())["points"] == points
    assert (run / "bleu_curve.png").read_bytes().startswith(b"\x89PNG")
    assert load_script("evaluate").main([str(corpus), "--all", *options]) == 2
    assert "has no checkpoints" in capsys.readouterr().err


def check_record(run, results, capsys):
    """What `evaluate.py --record` adds stands beside what training wrote."""
    evaluate, average = load_script("evaluate").main, load_script("average_checkpoints").main
    assert evaluate([str(run), "--split", "test", "--record"]) == 0
    again = json.loads((run / "results.json").read_text())
    assert len(again["scores"]) == 1 and again["step"] == results["step"]  # the same text, weights and search
    assert again["scores"][0]["scores"] == results["scores"][0]["scores"]
    assert average([str(run), "--last", "2"]) == 0
    assert evaluate([str(run / "averaged"), "--split", "valid", "--record", "--num_beams", "1"]) == 0
    new = json.loads((run / "results.json").read_text())["scores"][1]
    assert (new["set"], new["weights"], new["sentences"]) == ("valid", "average of steps 600, 700", 40)
    assert new["checkpoints"] == ["step_600", "step_700"] and new["decoding"]["num_beams"] == 1
    assert "recorded: " in capsys.readouterr().out
    for foreign in (run / "averaged" / "tokenizer.json", run / "samples"):
        assert evaluate([str(foreign), "--split", "valid"]) == 2
        assert "is no model of a run" in capsys.readouterr().err


def check_tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = (run / "trackers" / "vaswani").glob("events*")
    read = EventAccumulator(str(events)).Reload()
    assert {"loss", "lr", "tokens_per_second", "valid_bleu"} <= set(read.Tags()["scalars"])
    assert [event.value for event in read.Scalars("loss")] == pytest.approx(metrics(run, "loss"))
    assert [event.step for event in read.Scalars("valid_bleu")] == [200, 400, 600, 700]


def test_resume_is_exact(corpus, tmp_path, capsys):
    changes = {"dropout": 0.2, "save_steps": 7, "max_steps": 25}
    assert train_here(corpus, tmp_path / "whole", **changes) == 0
    assert train_here(corpus, tmp_path / "halves", **changes | {"max_steps": 14}) == 0
    assert train_here(corpus, tmp_path / "halves", **changes) == 0
    assert "continuing from" in capsys.readouterr().out
    assert same_weights(tmp_path / "whole", tmp_path / "halves")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "halves")


def test_an_interrupted_run_leaves_no_trace_of_its_lost_steps(corpus, tmp_path):
    """Interrupted between checkpoints and past an epoch's end, resumed: the same weights and the same record."""
    changes = {"save_steps": 15, "max_steps": 50, "log_steps": 5, "eval_steps": 10}
    assert train_here(corpus, tmp_path / "whole", **changes) == 0
    script, calls = load_script("train"), []

    def interrupted(*given):
        calls.append(1)
        if len(calls) == 42:  # steps 31 to 41 are lost
            raise KeyboardInterrupt
        return original(*given)

    original, script.update = script.update, interrupted
    AcceleratorState._reset_state(reset_partial_state=True)
    assert script.main(arguments(corpus, tmp_path / "killed", num_threads=1, **changes)) == 130
    assert metrics(tmp_path / "killed", "step")[-1] == 40
    assert train_here(corpus, tmp_path / "killed", **changes) == 0
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    for name in ("loss", "valid_nll", "valid_bleu", "step"):
        assert metrics(tmp_path / "whole", name) == metrics(tmp_path / "killed", name)
    texts = [(tmp_path / name / "validations.txt").read_text() for name in ("whole", "killed")]
    assert texts[0] == texts[1] and texts[0].count("\n") == 5


def test_resuming_reads_no_batch_that_is_done(corpus, tmp_path, monkeypatch):
    """Nothing is skipped through: from epoch 2 on, the first batch that is made is the next one."""
    assert train_here(corpus, tmp_path / "run", max_steps=50, log_steps=50) == 0
    from vaswani.batching import TokenBatches

    asked, original = [], TokenBatches.epoch

    def epoch(self, number, start=0):
        asked.append((number, start))
        return original(self, number, start)

    monkeypatch.setattr(TokenBatches, "epoch", epoch)
    assert train_here(corpus, tmp_path / "run", max_steps=51, log_steps=50) == 0
    state = json.loads((checkpoints(tmp_path / "run")[0] / "state.json").read_text())["progress"]
    assert state["epoch"] >= 1 and state["batch"] > 0
    assert asked[-1] == (state["epoch"], state["batch"]) and all(number == state["epoch"] for number, _ in asked)


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
    assert "are no longer numbers at step" in capsys.readouterr().err
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
    (kept,) = tmp_path.glob("run.*")
    assert f"the earlier run, 2 steps, 1 checkpoint(s), is kept in {kept}" in capsys.readouterr().out
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
    """The same losses for the same global batches; threads are shared out."""
    launched(["--num_processes", "1"], arguments(corpus, tmp_path / "alone"))
    config = str(ROOT / "configs" / "accelerate" / "cpu2.yaml")
    launched(["--config_file", config], arguments(corpus, tmp_path / "two"))
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


def test_two_nodes_train_together(corpus, tmp_path):
    """Two launchers on loopback, as on two machines, one process each."""
    config, port = str(ROOT / "configs" / "accelerate" / "nodes2.yaml"), str(free_port())
    options = ["--config_file", config, "--num_processes", "2", "--main_process_ip", "127.0.0.1"]
    options += ["--main_process_port", port, "--machine_rank"]
    nodes = [launch([*options, str(rank)], arguments(corpus, tmp_path / "run", num_threads=1)) for rank in (0, 1)]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "2 process(es) x 1.0 micro-batch(es)" in outputs[0] and "loss" not in outputs[1]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
    assert train_here(corpus, tmp_path / "alone") == 0
    assert metrics(tmp_path / "run") == pytest.approx(metrics(tmp_path / "alone"), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "nodes", "processes"), [("cpu", 1, 1), ("cpu2", 1, 2), ("gpu1", 1, 1), ("gpu8", 1, 8), ("nodes2", 2, 16)]
)
def test_launch_configs_are_what_their_names_say(name, nodes, processes):
    path = ROOT / "configs" / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert set(yaml.safe_load(path.read_text())) <= set(vars(config))
    assert (config.num_machines, config.num_processes) == (nodes, processes)
    assert config.use_cpu == (name == "cpu")


def test_processes_without_work_wait_for_the_others(corpus, tmp_path):
    """Batches of a single pair, one validation sentence: one of two processes has nothing to add."""
    small = {"tokens_per_batch": 6, "max_steps": 4, "eval_steps": 2, "eval_sentences": 1}
    assert "fewer than the" not in train_together(arguments(corpus, tmp_path / "alone", **small), tmp_path / "1.txt")
    assert "fewer than the 2" in train_together(
        arguments(corpus, tmp_path / "two", **small), tmp_path / "2.txt", world=2
    )
    assert metrics(tmp_path / "two") == pytest.approx(metrics(tmp_path / "alone"), rel=1e-5)
    assert metrics(tmp_path / "two", "valid_bleu") == metrics(tmp_path / "alone", "valid_bleu")


def test_use_of_the_source_is_probed_only_where_there_are_other_sources(corpus, tmp_path, capsys):
    """One validation sentence has no other; of two, a model after one step does ignore the source."""
    for name, size in (("one", 1), ("two", 2)):
        copy = tmp_path / name
        shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("prepared"))
        for lang in ("en", "de"):
            lines = (corpus / f"valid.{lang}").read_text(encoding="utf-8").splitlines(keepends=True)
            (copy / f"valid.{lang}").write_text("".join(lines[:size]), encoding="utf-8")
        assert train_here(corpus, tmp_path / f"run_{name}", max_steps=1, data_dir=copy) == 0
        probed = size > 1
        output = capsys.readouterr().out
        assert ("source worth" in output) == ("warning: the translations ignore the source" in output) == probed
        (gain,) = metrics(tmp_path / f"run_{name}", "valid_source_gain")
        assert (gain is not None) == probed


def test_memory_that_runs_out_and_the_largest_micro_batch(corpus, tmp_path, capfd, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("vaswani.memory.memory_limit", lambda device: 0)  # not all of this machine's
    assert train_here(corpus, tmp_path / "found", find_max_tokens=True) == 0
    assert "fit into this machine's memory" in capfd.readouterr().out
    monkeypatch.setattr(torch.Tensor, "backward", fail)
    assert train_here(corpus, tmp_path / "run", max_tokens=300) == 2
    assert "lower max_tokens (now 300;" in capfd.readouterr().err


def test_early_stopping_ends_all_processes_and_stays_ended(corpus, tmp_path):
    """A learning rate of nearly nothing: no validation is better than the first."""
    changes = {"lr_factor": 1e-12, "eval_steps": 3, "early_stopping_patience": 2, "max_steps": 60, "keep_best": 1}
    argv = arguments(corpus, tmp_path / "run", **changes, keep_checkpoints=1)
    text = train_together(argv, tmp_path / "out.txt", world=2)
    assert "early stopping: bleu was best at step 3 and not since" in text
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["step"], results["best_step"]) == (9, 3)
    marks = [line[0] for line in (tmp_path / "run" / "validations.txt").read_text().splitlines()]
    assert marks == ["*", " ", " "]
    train_together(argv, tmp_path / "out.txt", world=2)
    assert metrics(tmp_path / "run", "step")[-1] == 9


def test_dry_run_shows_and_leaves_nothing(corpus, tmp_path, capsys):
    before = {path for path in corpus.rglob("*") if "plans" not in path.parts}
    argv = [*arguments(corpus, tmp_path / "run", max_steps=3000), "--dry-run"]
    AcceleratorState._reset_state(reset_partial_state=True)
    assert load_script("train").main(argv) == 0
    out = capsys.readouterr().out
    assert "d_model: 64" in out and "batch 3: " in out and "20 updates took" in out and "take 0." in out
    assert out.count("  source ") == 9 and "padding on the target side" in out
    source = next(line for line in out.splitlines() if line.startswith("  source "))
    assert source.split()[1] in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert not (tmp_path / "run").exists()
    assert before | set(corpus.glob("prepared")) >= {p for p in corpus.rglob("*") if "plans" not in p.parts} - set(
        corpus.glob("prepared/**/*")
    )


def test_overfit_one_batch(corpus, tmp_path, capsys):
    assert train_here(corpus, tmp_path / "run", overfit_one_batch="true", dropout=0.3) == 0
    assert "the model can learn" in capsys.readouterr().out
    assert train_here(corpus, tmp_path / "run", overfit_one_batch="true", lr_factor=1e-9) == 2
    assert "are not learnt by heart after 500 updates" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_there(corpus, tmp_path, capsys):
    assert train_here(corpus, tmp_path / "run", report_to="abacus") == 2
    assert "abacus" in capsys.readouterr().err
    assert train_here(corpus, tmp_path / "run", report_to="aim") == 2
    assert "error: --report_to aim needs its package: pip install aim" in capsys.readouterr().err


def test_tokenised_test_text_is_said_before_training_and_scored_as_it_stands(corpus, tmp_path, capsys):
    for path in corpus.glob("*.??"):
        ending = " , &quot; ja ." if path.name == "test.de" else ""
        lines = path.read_text(encoding="utf-8").splitlines()
        (tmp_path / path.name).write_text("".join(f"{line}{ending}\n" for line in lines), encoding="utf-8")
    changes = {"data_dir": tmp_path, "prepared_dir": tmp_path / "prepared", "max_steps": 1}
    assert train_here(corpus, tmp_path / "run", **changes) == 2
    assert "both sides are already tokenised" in (error := capsys.readouterr().err) and "tokenized: true" in error
    assert not (tmp_path / "run").exists()
    assert train_here(corpus, tmp_path / "run", **changes, tokenized="true") == 0
    (scored,) = json.loads((tmp_path / "run" / "results.json").read_text())["scores"]
    assert "multi_bleu" in scored["scores"] and "tok:none" in scored["scores"]["sacrebleu"]["signature"]
