"""The record of a finished run, read and checked: all that a model card is made from."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from .results import FILE, read, weights_of
from .run_config import UserError, defaults, read_yaml
from .run_folder import read_lines

ABSOLUTE_PATH = re.compile(r"""(?:(?<=[\s"'`=(\[,:>])|^)(?:~?/[\w.+@-]+(?:/[\w.+@-]*)*|[A-Za-z]:\\{1,2}\w[^"'`\s]*)""")
PRIVATE = {"host", "process"}  # of environment.json
SCORE = "python scripts/evaluate.py {model} --record"


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of one of its models: the last weights, or the average of some checkpoints."""

    path: Path
    settings: dict  # of config.yaml, and the defaults of those that it lacks
    environment: dict
    data: dict  # the report of preparation
    metrics: list[dict]
    results: dict
    model: Path  # the folder of weights and tokenizer
    weights: dict  # what they are, as `weights_of` says it

    @property
    def languages(self) -> tuple[str, str]:
        source, target = self.settings["source_lang"], self.settings["target_lang"]
        return (target, source) if self.settings["reverse"] else (source, target)

    @property
    def lowercased(self) -> bool:
        """Whether the text was: a vocabulary learned from other text has entries with capitals."""
        merges = json.loads((self.model / "tokenizer.json").read_text(encoding="utf-8"))["model"].get("merges", [])
        return not any(re.search("[A-Z]", str(merge)) for merge in merges)

    @property
    def training(self) -> dict:
        """The last line of the log: step, target_tokens, seconds, ..."""
        return next(line for line in reversed(self.metrics) if "target_tokens" in line)

    @property
    def validation(self) -> dict:
        """The last validation, of the last weights; empty where there was none."""
        return next((line for line in reversed(self.metrics) if "valid_nll" in line), {})

    @property
    def scores(self) -> list[dict]:
        """All scores in results.json, those of the published weights first, the test text before the validation text."""
        scores = self.results.get("scores", [])
        return sorted(scores, key=lambda entry: (not self.is_of_model(entry), entry["split"] == "valid"))

    def is_of_model(self, entry: dict) -> bool:
        """Whether a score is one of these weights."""
        return entry["weights"] == self.weights["weights"]


def read_record(run: Path, weights: str | None = None) -> RunRecord:
    """Reads a run folder.

    Args:
        weights: "last", "averaged" (by average_checkpoints.py), or None: averaged where there are such.

    Raises:
        UserError: it is no run folder, the run is not finished, or these weights have no score on record.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(
            f"{run} is no run folder, it has no config.yaml: a model card is made from the record of a run, by train.py"
        )
    settings = defaults() | read_yaml(run / "config.yaml")
    metrics = [json.loads(line) for line in read_lines(run / "metrics.jsonl")]
    results = _finished(run, settings, metrics)
    environment = _json(run / "environment.json", "the same training command writes it")
    data = _json(run / "data.json", "copy report.json of the run's prepared data there")
    model = _model(run, weights)
    record = RunRecord(run, settings, environment, data, metrics, results, model, weights_of(str(model)))
    if not any(map(record.is_of_model, record.scores)):
        raise UserError(
            f"{run / FILE} has no score of the weights in {model}: score them with "
            f"`{SCORE.format(model=model)}` and a test set, then publish"
        )
    return record


def _finished(run: Path, settings: dict, metrics: list[dict]) -> dict:
    """The results of a run that has ended; a later step in the log means that it was trained on."""
    again = "the same training command continues it, publish when it has ended"
    if not (run / FILE).is_file():
        raise UserError(f"the run {run} is not finished, it has no {FILE}: {again}")
    results = read(run)
    last = max((line["step"] for line in metrics if "target_tokens" in line), default=None)
    if last is None:
        raise UserError(f"{run} has no training log, metrics.jsonl: a model card cannot be made without one")
    ended = last >= settings["max_steps"] or settings["early_stopping_patience"]
    if not ended or results.get("step") != last:
        raise UserError(f"the run {run} is not finished, it is at step {last:,} of {settings['max_steps']:,}: {again}")
    return results


def _model(run: Path, weights: str | None) -> Path:
    """The folder of these weights."""
    averaged = run / "averaged"
    if (averaged / "averaged_from.json").is_file():
        folder = run if weights == "last" else averaged
    elif weights == "averaged":
        raise UserError(
            f"{run} has no averaged weights: make them with `python scripts/average_checkpoints.py {run} --last 5`, "
            f"or publish --weights last"
        )
    else:
        folder = run
    if missing := [
        name for name in ("model.safetensors", "config.json", "tokenizer.json") if not (folder / name).is_file()
    ]:
        raise UserError(f"{folder} holds no whole model, it has no {missing[0]}: is the run finished?")
    return folder


def _json(path: Path, remedy: str) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}, which the model card needs: {remedy}") from None
    except ValueError:
        raise UserError(f"{path} is damaged: {remedy}") from None


def cleaned(value):
    """Values of a record as others may see them: of absolute paths the last part, and nothing of who trained where."""
    if isinstance(value, dict):
        return {key: cleaned(x) for key, x in value.items() if key not in PRIVATE}
    if isinstance(value, list):
        return [cleaned(x) for x in value]
    return (
        ABSOLUTE_PATH.sub(lambda match: re.split(r"[/\\]+", match[0].rstrip("/\\"))[-1], value)
        if isinstance(value, str)
        else value
    )


def outdone(record: RunRecord) -> str | None:
    """What to say where other weights of the run score better on the same text by the same search; else None."""

    def key(entry: dict) -> str:
        return json.dumps([entry["set"], entry["split"], entry["decoding"]], sort_keys=True)

    scored = [entry for entry in record.scores if "sacrebleu" in entry["scores"]]
    own = {key(entry): entry["scores"]["sacrebleu"]["score"] for entry in scored if record.is_of_model(entry)}
    for entry in scored:
        score, published = entry["scores"]["sacrebleu"]["score"], own.get(key(entry))
        if published is not None and score > published:
            return (
                f"these weights have {published:.2f} sacreBLEU on {entry['set']}, and {entry['weights']} has {score:.2f}: "
                f"an average helps where the loss has flattened; --weights chooses"
            )
    return None
