"""The run folder, the record of a training:

config.yaml, environment.json, metrics.jsonl, validations.txt, results.json, samples/, checkpoints/, and the final model
with its tokenizer at the root.
"""

import dataclasses
import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from tqdm import tqdm

from .run_config import (
    DataConfig,
    ModelSettings,
    RunConfig,
    TrainingConfig,
    UserError,
    flat,
    read_yaml,
    write_yaml,
)

MAY_CHANGE_ON_RESUME = {
    "output_dir", "fresh", "max_steps", "max_tokens", "mixed_precision", "attention", "num_threads", "log_steps",
    "eval_steps", "eval_sentences", "save_steps", "keep_checkpoints", "num_beams", "length_penalty", "num_samples",
    "prepared_dir", "data_dir",
}  # fmt: skip


class RunFolder:
    """The folder of this run: new, continued, or (`fresh`) new beside the earlier one, which is moved aside.

    Every process makes one, which checks the folder; then `open` it. Only the main process writes and speaks.

    Raises:
        UserError: the folder holds something else, or a run with other settings.
    """

    def __init__(self, config: RunConfig, data: Path, main: bool):
        self.path, self.main, self.config, self.data = Path(config.training.output_dir), main, config, data.name
        path, known = self.path, (self.path / "config.yaml").exists()
        if path.exists() and not known and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists and is not a run folder: choose another --output_dir")
        if known and not config.training.fresh:
            self._check_unchanged(config, data.name)

    def open(self, environment: dict) -> None:
        """Writes what is known of the run, once every process has checked the folder."""
        if not self.main:
            return
        path, config, known = self.path, self.config, (self.path / "config.yaml").exists()
        if known and config.training.fresh:
            kept = path.with_name(f"{path.name}.{datetime.datetime.now():%Y%m%d-%H%M%S}")
            path.rename(kept)
            print(f"starting over; the earlier run is kept in {kept}")
        path.mkdir(parents=True, exist_ok=True)
        write_yaml(path / "config.yaml", config._replace(training=dataclasses.replace(config.training, fresh=False)))
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
            **environment,
            "data": self.data,
            "commit": _commit(),
        }
        self.write("environment.json", json.dumps(environment, indent=2))
        for name in ("samples", "checkpoints"):
            (path / name).mkdir(exist_ok=True)
        self.metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self.say(f"run: {path}; " + ", ".join(f"{key} {value}" for key, value in environment.items()))

    def _check_unchanged(self, config: RunConfig, data: str) -> None:
        """A run continues with its own settings on its own data: its vocabulary means nothing to another's."""
        before, now = flat(RunConfig("", DataConfig(), ModelSettings(), TrainingConfig())), flat(config)
        before |= read_yaml(self.path / "config.yaml")
        changed = [key for key in now if before.get(key) != now[key] and key not in MAY_CHANGE_ON_RESUME]
        if changed:
            listed = ", ".join(f"{key} {before.get(key)!r} -> {now[key]!r}" for key in changed)
            raise UserError(
                f"{self.path} was started with other settings ({listed}): choose another --output_dir, or --fresh"
            )
        path = self.path / "environment.json"
        known = json.loads(path.read_text(encoding="utf-8")).get("data") if path.exists() else data
        if known != data:
            raise UserError(
                f"{self.path} was trained on prepared data {known}, and this is {data}: the text, or how it is prepared, "
                f"has changed; choose another --output_dir, or --fresh"
            )

    def rewind(self, step: int) -> None:
        """Drops what was recorded after `step`: a run that continues from a checkpoint does those steps again."""
        if self.main:
            records = [line for line in self._lines("metrics.jsonl") if json.loads(line)["step"] <= step]
            self.metrics.close()
            self.write("metrics.jsonl", "".join(records))
            self.metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
            step_of = re.compile(r"step ([\d,]+)")
            validations = self._lines("validations.txt")
            kept = [line for line in validations if int(step_of.search(line)[1].replace(",", "")) <= step]
            self.write("validations.txt", "".join(kept))

    def _lines(self, name: str) -> list[str]:
        path = self.path / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]  # one cut short is none

    def say(self, text: str) -> None:
        if self.main:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def note(self, step: int, **values) -> None:
        """One line of metrics.jsonl."""
        if self.main:
            print(json.dumps({"step": step, **values}, ensure_ascii=False), file=self.metrics, flush=True)

    def write(self, name: str, text: str, mode: str = "w") -> None:
        if self.main:
            with (self.path / name).open(mode, encoding="utf-8", newline="\n") as file:
                file.write(text)


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


def _commit() -> str | None:
    """The commit of the code that runs, with `-dirty` where it was changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
