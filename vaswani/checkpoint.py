"""Sections 5 and 6: checkpoints. A folder each, complete or absent; safetensors and JSON, never a pickle."""

import json
import os
import re
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file

from .modeling_vaswani import VaswaniForSeq2SeqLM
from .run_config import UserError, as_user_error


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [path for path in (run / "checkpoints").glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return sorted((path for path in found if (path / "state.json").exists()), key=lambda path: int(path.name[5:]))


def save_checkpoint(run: Path, accelerator: Accelerator, model, optimizer, tokenizer, state: dict, keep: int) -> Path:
    """Saves model, tokenizer, optimizer, position in the data and every process's random state as `checkpoints/step_N`.

    The files are as `save_pretrained` writes them, so a checkpoint is a model for the Auto classes. Written
    beside its place and renamed: whoever sees the folder sees all of it. Keeps the newest `keep`.
    """
    folder = run / "checkpoints" / f"step_{state['step']}"
    work = folder.with_name(f".{folder.name}")
    if accelerator.is_main_process:
        shutil.rmtree(work, ignore_errors=True)
        model.save_pretrained(work, max_shard_size="100GB")
        tokenizer.save_pretrained(work)
        moments = optimizer.state_dict()
        tensors = {f"{i}.{name}": value for i, entry in moments["state"].items() for name, value in entry.items()}
        save_file(tensors, work / "optimizer.safetensors")
        (work / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    accelerator.wait_for_everyone()
    save_file(_random_state(), work / f"random_{accelerator.process_index}.safetensors")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)
        for old in checkpoints(run)[:-keep]:
            shutil.rmtree(old)
    return folder


def load_checkpoint(folder: Path, accelerator: Accelerator, model, optimizer) -> dict:
    """Restores what `save_checkpoint` saved and returns its state."""
    load_model(model, folder / "model.safetensors", strict=True, device=str(accelerator.device))
    moments = optimizer.state_dict()
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, name = key.split(".", 1)
        moments["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(moments)
    random = folder / f"random_{accelerator.process_index}.safetensors"
    if random.exists():
        _set_random_state(load_file(random))
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))


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
