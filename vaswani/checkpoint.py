"""Sections 5 and 6: checkpoints. A folder each, complete or absent; safetensors and JSON, never a pickle."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file

from .modeling_vaswani import VaswaniForSeq2SeqLM
from .processes import Team
from .run_config import TrainingConfig, UserError, as_user_error


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [path for path in (run / "checkpoints").glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return sorted((path for path in found if (path / "state.json").exists()), key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


@dataclass
class Progress:
    """How far a run is: all that is not a tensor."""

    step: int = 0  # optimizer updates
    epoch: int = 0
    batch: int = 0  # of the epoch, to be taken next
    target_tokens: int = 0
    seconds: float = 0.0  # of training, without validations and checkpoints
    first_nll: float | None = None  # of the first update
    scores: dict[int, float] = field(default_factory=dict)  # by step of each validation; higher is better

    def advance(self, target_tokens: int) -> None:
        self.step, self.batch, self.target_tokens = self.step + 1, self.batch + 1, self.target_tokens + target_tokens

    def best_steps(self) -> list[int]:
        """Steps of validations, the best first; of equals the earlier."""
        return sorted(self.scores, key=lambda step: (-self.scores[step], step))

    def validations_since_best(self) -> int:
        return sum(step > self.best_steps()[0] for step in self.scores)


class Checkpoints:
    """The checkpoints of a run as training writes and reads them.

    The files of `RUN/checkpoints/step_N` are as `save_pretrained` writes them, so a checkpoint is a model for the Auto
    classes. Beside them: optimizer.safetensors, random.safetensors (the state of every process), state.json (progress,
    settings, code) and checksums.json. A folder is written beside its place, forced to disk and renamed: whoever sees it
    sees all of it, and a checkpoint that is there is never touched by one that fails.

    Args:
        run: the run folder, which every process must see.
        model, optimizer: what is trained, as `accelerator.prepare` returned it, but the model bare.
        record: goes into state.json: {"settings": ..., "code": ...}.
        say: what the user should know goes here.
    """

    def __init__(
        self, run: Path, accelerator: Accelerator, team: Team, model, optimizer, tokenizer,
        settings: TrainingConfig, record: dict, say: Callable[[str], None],
    ):  # fmt: skip
        self.run, self.accelerator, self.team = run, accelerator, team
        self.model, self.optimizer, self.tokenizer = model, optimizer, tokenizer
        self.settings, self.record, self.say = settings, record, say
        self.saved: int | None = None  # the step of the newest

    # ----------------------------------------------------------------------------------------------------------- saving
    def save(self, progress: Progress, by_stop: bool = False) -> None:
        """Saves this step, unless that is done, and deletes what need not be kept.

        Args:
            by_stop: it is saved only because the run is asked to stop here, see `regular`.

        Raises:
            UserError: there is no space, or the weights are no longer numbers. Earlier checkpoints are as they were.
        """
        if self.saved == progress.step:
            return
        random = {f"{rank}.{name}": value for rank, states in enumerate(self.team.gather(_random_state()))
                  for name, value in states.items()}  # fmt: skip
        self.team.main_only(lambda: self._write(progress, random, by_stop))
        self.saved = progress.step

    def _write(self, progress: Progress, random: dict[str, torch.Tensor], by_stop: bool) -> None:
        folder = self.run / "checkpoints" / f"step_{progress.step}"
        if not all(weight.isfinite().all() for weight in self.model.parameters()):
            raise UserError(not_a_number(progress.step))
        work = folder.with_name(f".{folder.name}")
        shutil.rmtree(work, ignore_errors=True)
        try:
            self._fill(work, progress, random, by_stop)
            _seal(work)
            shutil.rmtree(folder, ignore_errors=True)  # one that was found damaged
            os.replace(work, folder)
            _force_to_disk(folder.parent)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(work, ignore_errors=True)
            newest = f"the newest is {found[-1]}" if (found := checkpoints(self.run)) else "there is none before it"
            raise UserError(
                f"cannot save {folder} ({' '.join(str(error).split())}): make room, then the same command continues; "
                f"earlier checkpoints are untouched, {newest}"
            ) from None
        for old in superfluous(checkpoints(self.run), progress, self.settings):
            shutil.rmtree(old)

    def _fill(self, work: Path, progress: Progress, random: dict[str, torch.Tensor], by_stop: bool) -> None:
        self.model.save_pretrained(work, max_shard_size="100GB")
        self.tokenizer.save_pretrained(work)
        moments = self.optimizer.state_dict()["state"]
        tensors = {f"{i}.{name}": value for i, entry in moments.items() for name, value in entry.items()}
        save_file(tensors, work / "optimizer.safetensors")
        save_file(random, work / "random.safetensors")
        scaler = self.accelerator.scaler  # fp16 has one
        state = {
            "progress": dataclasses.asdict(progress),
            "by_stop": by_stop,
            "processes": self.team.world,
            "scaler": scaler.state_dict() if scaler else None,
            **self.record,
        }
        (work / "state.json").write_text(json.dumps(state, indent=2, ensure_ascii=False), encoding="utf-8")

    # --------------------------------------------------------------------------------------------------------- resuming
    def resume(self) -> Progress:
        """Restores the newest good checkpoint and says so; without one, the beginning.

        A damaged one is set aside as checkpoints/damaged_step_N with a message, and the one before it is taken.
        """
        folder = self.team.main_only(self._newest_good)
        if folder is None:
            return Progress()
        if not all(self.team.gather((folder / "state.json").exists())):
            raise UserError(f"not every process sees {folder}: put output_dir on a file system that all machines share")
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        load_model(self.model, folder / "model.safetensors", strict=True)
        moments = self.optimizer.state_dict()
        for key, value in load_file(folder / "optimizer.safetensors").items():
            index, name = key.split(".", 1)
            moments["state"].setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict(moments)
        if self.accelerator.scaler and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.say(f"continuing from {folder}")
        if (code := state["code"]) != self.record["code"]:
            self.say(f"note: the code has changed since it was saved ({_named(code)} -> {_named(self.record['code'])})")
        if state["processes"] == self.team.world:
            prefix = f"{self.team.rank}."
            random = load_file(folder / "random.safetensors")
            _set_random_state({key.removeprefix(prefix): x for key, x in random.items() if key.startswith(prefix)})
        else:
            self.say(
                f"note: saved by {state['processes']} process(es), continued by {self.team.world}: the same batches and "
                f"updates, but other random numbers for dropout"
            )
        progress = Progress(**state["progress"])
        progress.scores = {int(step): score for step, score in progress.scores.items()}
        self.saved = progress.step
        return progress

    def _newest_good(self) -> Path | None:
        for unfinished in (self.run / "checkpoints").glob(".step_*"):
            shutil.rmtree(unfinished)
        damaged = {}
        for folder in reversed(checkpoints(self.run)):
            if (wrong := damage(folder)) is None:
                break
            damaged[folder] = wrong
        else:
            if damaged:
                folder, wrong = next(iter(damaged.items()))
                raise UserError(
                    f"no checkpoint of {self.run} is whole (of {folder.name}: {wrong}): bring one back from a copy, or start "
                    f"over with --fresh true, which keeps this run beside the new one"
                )
            return None
        for bad, wrong in damaged.items():
            aside = bad.with_name(f"damaged_{bad.name}")
            shutil.rmtree(aside, ignore_errors=True)
            bad.rename(aside)
            self.say(f"warning: {bad} is damaged ({wrong}): set aside as {aside.name}")
        return folder


def not_a_number(step: int) -> str:
    return (
        f"the loss or the weights are no longer numbers at step {step:,}: lower lr_factor or raise warmup_steps; checkpoints "
        f"up to here are kept, --fresh starts over"
    )


def regular(found: list[Path]) -> list[Path]:
    """Those at the run's own interval, and its end. One that a stop saved in between is no member of an average."""
    states = (json.loads((folder / "state.json").read_text(encoding="utf-8")) for folder in found)
    return [folder for folder, state in zip(found, states, strict=True) if not state.get("by_stop")]


def superfluous(found: list[Path], progress: Progress, settings: TrainingConfig) -> list[Path]:
    """Those that are neither among the newest, nor among the best, nor spaced as wanted. What a stop saved is kept as
    long as it is the newest, or there is nothing else."""
    steps = [step_of(folder) for folder in found]
    best = [step for step in progress.best_steps() if step in steps][: settings.keep_best]
    newest = [step_of(folder) for folder in (regular(found) or found)[-settings.keep_checkpoints :]]
    kept = {steps[-1], *newest, *best}
    if settings.keep_every:
        kept |= {step for step in steps if step % settings.keep_every == 0}
    return [folder for folder in found if step_of(folder) not in kept]


def _seal(folder: Path) -> None:
    """Writes checksums.json, and forces the folder and its files to disk."""
    sums = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            sums[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    (folder / "checksums.json").write_text(json.dumps(sums, indent=2), encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        _force_to_disk(path)


def _force_to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows has no such thing for folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, None if nothing is."""
    try:
        for name, digest in json.loads((folder / "checksums.json").read_text(encoding="utf-8")).items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} is not as it was written"
    except (OSError, ValueError, AttributeError) as error:
        return " ".join(str(error).split())
    return None


def _named(code: dict) -> str:
    return f"{code['commit'] or 'no commit'}, {code['digest']}"


def _random_state() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@torch.no_grad()
def average(folders: list[Path]) -> VaswaniForSeq2SeqLM:
    """Section 6.1: the model whose every weight is the mean of those of some checkpoints, computed in float32.

    Raises:
        UserError: no or unequal models: the config key that differs is named.
    """
    if not folders:
        raise UserError("there is nothing to average: name checkpoints, or a run folder that has some")
    total: dict[str, torch.Tensor] = {}
    config = None
    for folder in folders:
        with as_user_error(OSError, SafetensorError):
            model = VaswaniForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
        settings = {
            key: value for key, value in model.config.to_dict().items() if key not in ("dtype", "_name_or_path")
        }
        if config is not None and settings != config:
            differing = [key for key in settings.keys() | config.keys() if settings.get(key) != config.get(key)]
            raise UserError(
                f"{folder} differs from {folders[0]} in {', '.join(differing)}: average checkpoints of one run"
            )
        config = settings
        for name, weight in model.named_parameters():  # a tied matrix is one parameter
            total[name] = weight.clone() if name not in total else total[name].add_(weight)
    for name, weight in model.named_parameters():
        weight.copy_(total[name] / len(folders))
    return model
