"""Whatever ends a run, the same command continues it, and it ends with the weights of one that nothing disturbed."""

import functools
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from trainers import Trainers, arguments, launch, metrics, same_weights, train_here, train_together

from vaswani.checkpoint import checkpoints, damage, step_of

SMALL = {"dropout": 0.2, "d_model": 32, "eval_steps": 100_000, "log_steps": 1}


def slow_saving(train, rank: int, seconds: float = 0.03) -> None:
    """Every file of a checkpoint takes its time, so that a kill often falls into the middle of one."""
    from vaswani import checkpoint

    save_file, force_to_disk = checkpoint.save_file, checkpoint._force_to_disk

    def slowly(function, *given, **named):
        time.sleep(seconds)
        return function(*given, **named)

    checkpoint.save_file = functools.partial(slowly, save_file)
    checkpoint._force_to_disk = functools.partial(slowly, force_to_disk)


def newest(run: Path) -> int:
    return max(map(step_of, checkpoints(run)), default=0)


def killed_again_and_again(corpus: Path, tmp_path: Path, world: int, kills: int, start) -> None:
    """Kills at random moments, each after a checkpoint more than there was; then lets the run end."""
    steps, rng, half_written = 10 * kills, random.Random(world), 0
    run, settings = tmp_path / "killed", SMALL | {"max_steps": steps, "keep_checkpoints": 3}
    train_together(arguments(corpus, tmp_path / "whole", **settings, save_steps=steps), tmp_path / "whole.txt", world)
    argv = arguments(corpus, run, **settings, save_steps=2)
    killed = 0
    while killed < kills and newest(run) < steps:
        known = newest(run)
        trainers = start(argv, tmp_path / "killed.txt", world, slow_saving if killed % 2 else None)
        trainers.wait_for(lambda known=known: newest(run) > known)
        time.sleep(rng.uniform(0, 0.3))
        trainers.kill()
        killed += 1
        half_written += bool(list((run / "checkpoints").glob(".step_*")))
    print(
        f"\n{killed} kills of {world} process(es), {half_written} in the middle of a checkpoint; at step {newest(run)}/{steps}"
    )
    assert killed == kills
    text = train_together(argv, tmp_path / "end.txt", world)
    assert "continuing from" in text and "damaged" not in text
    assert same_weights(tmp_path / "whole", run)
    assert metrics(run) == metrics(tmp_path / "whole") and metrics(run, "step") == [*range(1, steps + 1), steps]
    assert all(damage(folder) is None for folder in checkpoints(run))


@pytest.mark.parametrize(("world", "kills"), [(1, 3), (2, 2)])
def test_some_kills_change_nothing(corpus, tmp_path, world, kills):
    killed_again_and_again(corpus, tmp_path, world, kills, Trainers)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "kills"), [(1, 50), (2, 10)])
def test_many_kills_change_nothing(corpus, tmp_path, world, kills):
    killed_again_and_again(corpus, tmp_path, world, kills, Trainers)


@pytest.mark.slow
def test_kills_of_the_launcher_and_all_that_it_started_change_nothing(corpus, tmp_path):
    """The process group of `accelerate launch`, two processes."""

    class Launched:
        def __init__(self, argv, output, world, hook):
            self.process = launch(["--multi_gpu", "--num_processes", str(world)], [*argv, "--num_threads", "1"])

        def wait_for(self, condition):
            end = time.monotonic() + 180
            while not condition():
                assert self.process.poll() is None and time.monotonic() < end
                time.sleep(0.02)

        def kill(self):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()

    killed_again_and_again(corpus, tmp_path, 2, 4, Launched)


@pytest.mark.parametrize(("world", "number"), [(1, signal.SIGTERM), (1, signal.SIGUSR1), (2, signal.SIGINT)])
def test_a_signal_saves_and_ends(corpus, tmp_path, world, number):
    """Between checkpoints, in the middle of an epoch; with two processes, one of them is asked and both stop."""
    run, settings = tmp_path / "run", SMALL | {"max_steps": 300, "save_steps": 100_000}
    argv = arguments(corpus, run, **settings)
    trainers = Trainers(argv, tmp_path / "out.txt", world)
    trainers.wait_for(lambda: "| loss" in trainers.text() and len(metrics(run)) > 5)
    os.kill(trainers.processes[-1].pid, number)
    assert trainers.codes() == [128 + number] * world
    reached = metrics(run, "step")[-1]
    assert newest(run) == reached < 300
    assert f"stopped by signal {int(number)} at step {reached}, which is saved" in trainers.text()
    assert not (run / "results.json").exists()
    if number == signal.SIGTERM:
        train_together(argv, tmp_path / "out.txt", world)
        train_together(arguments(corpus, tmp_path / "whole", **settings), tmp_path / "whole.txt", world)
        assert same_weights(run, tmp_path / "whole") and metrics(run) == metrics(tmp_path / "whole")


def test_the_end_of_its_launcher_saves_and_ends(corpus, tmp_path):
    """SIGTERM to `accelerate launch` of one process ends the launcher alone."""
    run = tmp_path / "run"
    launcher = launch(
        ["--num_processes", "1"], arguments(corpus, run, **SMALL | {"max_steps": 100_000, "num_threads": 1})
    )
    end = time.monotonic() + 120
    while not ((run / "metrics.jsonl").exists() and len(metrics(run)) > 5):
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    os.kill(launcher.pid, signal.SIGTERM)  # and to nobody else
    output, _ = launcher.communicate(timeout=120)  # ends when the last one that holds the pipe does
    assert launcher.returncode == -signal.SIGTERM
    assert re.search(r"SIGTERM: saving .*stopped by signal 15 at step", output, re.DOTALL), output
    assert newest(run) == metrics(run, "step")[-1]


def test_a_second_trainer_is_refused(corpus, tmp_path, capsys):
    run = tmp_path / "run"
    argv = arguments(corpus, run, **SMALL | {"max_steps": 100_000})
    first = Trainers(argv, tmp_path / "out.txt")
    first.wait_for(lambda: "| loss" in first.text())
    for fresh in ("false", "true"):
        assert train_here(corpus, run, **SMALL, max_steps=100_000, fresh=fresh) == 2
        error = capsys.readouterr().err
        assert f"is being trained by process {first.processes[0].pid} on" in error and "--output_dir" in error
    first.kill()
    assert train_here(corpus, run, **SMALL, max_steps=1) == 0  # the lock ended with its owner


def test_a_dead_process_ends_the_others(corpus, tmp_path):
    run = tmp_path / "run"
    argv = arguments(corpus, run, **SMALL | {"max_steps": 100_000, "save_steps": 5})
    trainers = Trainers(argv, tmp_path / "out.txt", world=2)
    trainers.wait_for(lambda: newest(run) >= 5)
    trainers.processes[1].kill()
    assert trainers.codes(60) == [2, -signal.SIGKILL]
    assert "error: another process has died or does not answer" in trainers.text()
    assert damage(checkpoints(run)[-1]) is None


def test_a_process_that_hangs_ends_the_others(corpus, tmp_path):
    run = tmp_path / "run"
    argv = arguments(corpus, run, **SMALL | {"max_steps": 100_000, "save_steps": 5, "process_timeout": 3})
    trainers = Trainers(argv, tmp_path / "out.txt", world=2)
    trainers.wait_for(lambda: newest(run) >= 5)
    os.kill(trainers.processes[1].pid, signal.SIGSTOP)
    trainers.wait_for(lambda: not trainers.processes[0].is_alive(), 60)
    trainers.kill()
    assert trainers.processes[0].exitcode == 2
    assert "error: another process has died or does not answer" in trainers.text()
    assert damage(checkpoints(run)[-1]) is None


def full_disk(train, rank: int) -> None:
    from vaswani import checkpoint

    def save_file(tensors, path):
        if "step_4" in str(path):
            raise OSError(28, "No space left on device", str(path))
        original(tensors, path)

    original, checkpoint.save_file = checkpoint.save_file, save_file


def test_a_full_disk_ends_all_processes(corpus, tmp_path):
    run = tmp_path / "run"
    argv = arguments(corpus, run, **SMALL | {"max_steps": 8, "save_steps": 2})
    trainers = Trainers(argv, tmp_path / "out.txt", 2, full_disk)
    assert trainers.codes() == [2, 2]
    assert trainers.text().count("error: cannot save") == 1 and "No space left on device" in trainers.text()
    assert [folder.name for folder in checkpoints(run)] == ["step_2"]
    train_together(argv, tmp_path / "out.txt", 2)
    train_together(arguments(corpus, tmp_path / "whole", **SMALL | {"max_steps": 8}), tmp_path / "whole.txt", 2)
    assert same_weights(run, tmp_path / "whole")


def full_at_the_end(train, rank: int) -> None:
    from vaswani import modeling_vaswani

    def save_pretrained(self, folder, **options):
        if "checkpoints" not in str(folder):
            raise OSError(28, "No space left on device", str(folder))
        original(self, folder, **options)

    model = modeling_vaswani.VaswaniForSeq2SeqLM
    original, model.save_pretrained = model.save_pretrained, save_pretrained


def test_a_disk_that_is_full_for_the_final_model_ends_all_processes(corpus, tmp_path):
    run = tmp_path / "run"
    argv = arguments(corpus, run, **SMALL | {"max_steps": 3})
    trainers = Trainers(argv, tmp_path / "out.txt", 2, full_at_the_end)
    assert trainers.codes() == [2, 2]
    assert trainers.text().count("error: ") == 1 and "error: cannot save the model in" in trainers.text()
    train_together(argv, tmp_path / "out.txt", 2)
    assert same_weights(run, checkpoints(run)[-1])
