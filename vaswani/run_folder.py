"""The run folder, the record of a training:

config.yaml, environment.json, data.json, metrics.jsonl, validations.txt, results.json, curves.png, samples/, attention/, checkpoints/,
and the final model with its tokenizer at the root.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from tqdm import tqdm

from .run_config import (
    RunConfig,
    UserError,
    defaults,
    flat,
    read_yaml,
    unfinished,
    write_whole,
    write_yaml,
)

MAY_CHANGE_ON_RESUME = {
    "output_dir", "fresh", "dry_run", "overfit_one_batch", "max_steps", "max_tokens", "mixed_precision", "attention",
    "num_threads", "process_timeout", "log_steps", "report_to", "eval_steps", "eval_sentences", "early_stopping_patience",
    "figures", "tokenized", "save_steps", "keep_checkpoints", "keep_best", "keep_every", "num_beams", "length_penalty", "num_samples",
    "prepared_dir", "num_workers", "gradient_checkpointing", "torch_compile", "find_max_tokens", "data_dir",
}  # fmt: skip
LOCK = ".lock"
BEGUN = {LOCK, unfinished(Path("config.yaml")).name}  # what a start that was killed at once can leave


class RunFolder:
    """The folder of this run: new, continued, or (`fresh`) new beside the earlier one, which is moved aside.

    Every process has one; only the main one opens it, writes and speaks.

    Args:
        data: the folder of the prepared data.
        code: the code that runs, as `code_version` says it.
    """

    def __init__(self, config: RunConfig, data: Path, main: bool, code: dict):
        self.path, self.main, self.config = Path(config.training.output_dir), main, config
        self.data, self.report = data.name, data / "report.json"
        self.code, self.lock = code, None
        self.metrics, self.track = None, None

    def open(self, environment: dict) -> None:
        """Claims the folder and writes what is known of the run.

        Raises:
            UserError: it holds something else, or a run with other settings, or one that another process trains.
        """
        path, config, known = self.path, self.config, (self.path / "config.yaml").exists()
        if path.exists() and not known and (not path.is_dir() or any(x.name not in BEGUN for x in path.iterdir())):
            raise UserError(f"{path} exists and is not a run folder: choose another --output_dir")
        if known and not config.training.fresh:
            self._check_unchanged(config, self.data)
        self._claim()
        if known and config.training.fresh:
            kept = path.with_name(f"{path.name}.{datetime.datetime.now():%Y%m%d-%H%M%S}")
            path.rename(kept)
            steps = [record["step"] for line in read_lines(kept / "metrics.jsonl") if (record := json.loads(line))]
            saved = len(list(kept.glob("checkpoints/step_*")))
            print(
                f"starting over; the earlier run, {max(steps, default=0):,} steps, {saved} checkpoint(s), is kept in {kept}"
            )
            self.close()
            self._claim()
        write_yaml(path / "config.yaml", config._replace(training=dataclasses.replace(config.training, fresh=False)))
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
            **environment,
            "data": self.data,
            "commit": self.code["commit"],
            "code": self.code["digest"],
        }
        who = {"host": platform.node(), "process": os.getpid()}
        self.write("environment.json", json.dumps(environment | who, indent=2))
        self.write("data.json", self.report.read_text(encoding="utf-8"))
        for name in ("samples", "attention", "checkpoints"):
            (path / name).mkdir(exist_ok=True)
        self.metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self.say(f"run: {path}; " + ", ".join(f"{key} {value}" for key, value in environment.items()))

    def _claim(self) -> None:
        """One trainer a folder: two would overwrite each other. The lock ends with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            owner = self._environment()
            raise UserError(
                f"{self.path} is being trained by process {owner.get('process', '?')} on {owner.get('host', 'this machine')}: "
                f"wait for it or stop it, or choose another --output_dir"
            ) from None
        except NotImplementedError:  # a file system without locks
            self.say(f"warning: {self.path} cannot be locked; take care that nothing else trains there")
            return
        self.lock = lock

    def close(self) -> None:
        if self.metrics:
            self.metrics.close()
        if self.lock:
            self.lock.release()
            self.lock = None

    def _check_unchanged(self, config: RunConfig, data: str) -> None:
        """A run continues with its own settings on its own data: its vocabulary means nothing to another's."""
        now = flat(config)
        if listed := changed(defaults() | (self._started_with() or now), now):
            raise UserError(
                f"{self.path} was started with other settings ({listed}): choose another --output_dir, or --fresh"
            )
        known = self._environment().get("data", data)
        if known != data:
            raise UserError(
                f"{self.path} was trained on prepared data {known}, and this is {data}: the text, or how it is prepared, "
                f"has changed; choose another --output_dir, or --fresh"
            )

    def _started_with(self) -> dict:
        """The settings in config.yaml. A damaged one is as none where there is no checkpoint yet, and nothing to lose."""
        path = self.path / "config.yaml"
        try:
            settings = read_yaml(path)
        except UserError:
            settings = {}
        if not settings and any(self.path.glob("checkpoints/step_*")):
            raise UserError(
                f"{path} is empty or damaged: put the config that this run was started with in its place and it "
                f"continues; or choose another --output_dir, or --fresh"
            )
        return settings

    def _environment(self) -> dict:
        """What environment.json says; nothing where there is none, or a damaged one."""
        try:
            return json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}

    def rewind(self, step: int) -> None:
        """Drops what was recorded after `step`: a run that continues from a checkpoint does those steps again."""
        if self.main:
            self.metrics.close()
            self._keep("metrics.jsonl", lambda line: json.loads(line)["step"] <= step)
            self.metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
            step_of = re.compile(r"step ([\d,]+)")
            self._keep("validations.txt", lambda line: int(step_of.search(line)[1].replace(",", "")) <= step)

    def _keep(self, name: str, wanted: Callable[[str], bool]) -> None:
        """Only those lines, and no line that was cut short; most often that is all, and nothing is written."""
        path = self.path / name
        kept = "".join(filter(wanted, read_lines(path)))
        if path.exists() and kept.encode("utf-8") != path.read_bytes():
            self.write(name, kept)

    def say(self, text: str) -> None:
        if self.main:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def note(self, step: int, **values) -> None:
        """One line of metrics.jsonl, and the trackers where there are any. What is no number is null there."""
        if self.main:
            values = {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in values.items()}
            print(json.dumps({"step": step, **values}, ensure_ascii=False), file=self.metrics, flush=True)
            if self.track:
                self.track({key: value for key, value in values.items() if value is not None}, step)

    def records(self) -> list[dict]:
        """What was noted so far."""
        return [json.loads(line) for line in read_lines(self.path / "metrics.jsonl")]

    def write(self, name: str, text: str) -> None:
        if self.main:
            write_whole(self.path / name, text)

    def save_model(self, model, tokenizer) -> None:
        """The model and its tokenizer, at the root: written aside first, then moved there; on the main process alone.

        Without config.json, the last one, a folder is no model; where an earlier model was, each file is whole.

        Raises:
            UserError: there is no space. What was there is as it was.
        """
        work = self.path / ".model"
        shutil.rmtree(work, ignore_errors=True)
        try:
            model.save_pretrained(work)
            tokenizer.save_pretrained(work)
            for path in sorted(work.iterdir(), key=lambda path: path.name == "config.json"):
                os.replace(path, self.path / path.name)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot save the model in {self.path} ({' '.join(str(error).split())}): make room, then the same command "
                f"continues; the checkpoints are untouched"
            ) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def append(self, name: str, line: str) -> None:
        if self.main:
            with (self.path / name).open("a", encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")


def changed(before: dict, now: dict) -> str:
    """The settings in which a run would be another one than before, listed; "" where there are none."""
    other = [key for key in now if before.get(key) != now[key] and key not in MAY_CHANGE_ON_RESUME]
    return ", ".join(f"{key} {before.get(key)!r} -> {now[key]!r}" for key in other)


def read_lines(path: Path) -> list[str]:
    """Whole lines; one that was cut short, perhaps within a character, is none."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line + "\n" for line in text.split("\n")[:-1]]  # only a line feed ends one: text may hold U+2028


def samples(sources: list[str], references: list[str], translations: list[str], count: int) -> str:
    """Some translations beside source and reference, evenly spread over the set, the same ones every time."""
    chosen = sorted({round(i * (len(sources) - 1) / max(1, count - 1)) for i in range(min(count, len(sources)))})
    return "\n".join(
        f"  source      {sources[i]}\n  reference   {references[i]}\n  translation {translations[i]}\n" for i in chosen
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def code_version() -> dict:
    """The code that runs: its commit (with `-dirty` where it was changed since) and a digest of the files."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return {"commit": commit, "digest": hashlib.sha256(text).hexdigest()[:12]}
