"""Training as users start it, and as `accelerate launch` starts it but without its seconds of imports."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from load_script import ROOT, load_script
from safetensors.torch import load_file

TRAIN = load_script("train")  # at import: a fork server that has this module forks trainers which are ready to run


def arguments(corpus: Path, run: Path, **changes) -> list[str]:
    options = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    return [str(corpus / "config.yaml"), "--output_dir", str(run), *options]


def train_here(corpus: Path, run: Path, **changes) -> int:
    """As a process of its own would: accelerate keeps its state for the life of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return load_script("train").main(arguments(corpus, run, num_threads=1, **changes))


def launch(launch_options: list[str], script_arguments: list[str], script: Path | None = None) -> subprocess.Popen:
    """`accelerate launch`, as the leader of a process group; its output is read from `communicate()`."""
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch_options]
    command += [str(script or ROOT / "scripts" / "train.py"), *script_arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)


def launched(launch_options: list[str], script_arguments: list[str], script: Path | None = None) -> str:
    """The output of a launch that must end well."""
    process = launch(launch_options, script_arguments, script)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def metrics(run: Path, key: str = "loss") -> list[float]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line[key] for line in lines if key in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _train(rank: int, world: int, port: int, argv: list[str], output: Path, hook: Callable | None) -> None:
    with output.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False, buffering=1, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, encoding="utf-8")  # noqa: SIM115
    if world > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if hook:
        hook(TRAIN, rank)
    sys.exit(TRAIN.main(argv))


class Trainers:
    """Processes that train together, forked from a server that has imported everything: they start in no time.

    Args:
        hook: called with the script's module and the rank, before it starts.
    """

    def __init__(self, argv: list[str], output: Path, world: int = 1, hook: Callable | None = None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["trainers"])
        self.output, port, self.processes = output, free_port(), []
        self.seen = output.stat().st_size if output.exists() else 0
        for rank in range(world):
            arguments = (rank, world, port, [*argv, "--num_threads", "1"], output, hook)
            self.processes.append(context.Process(target=_train, args=arguments, daemon=True))
            self.processes[-1].start()

    def text(self) -> str:
        """What these processes have printed so far."""
        return self.output.read_bytes()[self.seen :].decode() if self.output.exists() else ""

    def wait_for(self, condition: Callable[[], object], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited too long: {self.text()}"
            assert any(process.is_alive() for process in self.processes), self.text()
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL to all of them."""
        for process in self.processes:
            process.kill()
        self.codes()

    def codes(self, seconds: float = 120) -> list[int]:
        for process in self.processes:
            process.join(seconds)
        alive = [process for process in self.processes if process.is_alive()]
        for process in alive:
            process.kill()
        assert not alive, f"still running: {self.text()}"
        return [process.exitcode for process in self.processes]


def train_together(argv: list[str], output: Path, world: int = 1, hook: Callable | None = None) -> str:
    """Trains to the end in processes of their own; returns what they printed."""
    trainers = Trainers(argv, output, world, hook)
    assert trainers.codes(240) == [0] * world, trainers.text()
    return trainers.text()
