"""Section 6: what a run has scored: `results.json` of its folder, from which tables and model cards are made."""

import json
from collections.abc import Sequence
from pathlib import Path

import datasets

from . import loss
from .objective import Objective, by_longer_side, summed_nll
from .prepared import tokenise
from .run_config import UserError, write_whole
from .scoring import Score

FILE = "results.json"


def read(run: Path) -> dict:
    """The record of a run, as `train.py` and `evaluate.py --record` write it; {"scores": []} before its end.

    "scores" has an entry, as `entry` makes it, for each text, weights and way to decode.

    Raises:
        UserError: it is damaged.
    """
    try:
        return json.loads((run / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"scores": []}
    except ValueError:
        raise UserError(
            f"{run / FILE} is damaged: delete it, and run train.py with the same command again, which scores a finished run"
        ) from None


def entry(
    text: dict, weights: dict, decoding: dict, scores: dict[str, Score], sentences: int, ppl: float | None
) -> dict:
    """Scores, with how they came about.

    Args:
        text: {"set": its name, "split": "valid", "test" or None}.
        weights: as `weights_of` gives it.
        decoding: the options of the search.
        scores: of `score_all`.
        ppl: perplexity per token of the references, unsmoothed, EOS counted.
    """
    kept = {name: {"score": s.score, "signature": s.signature, "details": s.details} for name, s in scores.items()}
    return text | weights | {"sentences": sentences, "decoding": decoding, "ppl": ppl, "scores": kept}


def put(run: Path, new: dict, **facts) -> None:
    """Adds an entry to the record, in place of an earlier one of the same text, weights and way to decode.

    `facts` are of the run as a whole. Scores of an earlier "step" than theirs are of a model that is gone, and go too.
    """

    def key(entry: dict) -> tuple:
        return entry["set"], entry["weights"], json.dumps(entry["decoding"], sort_keys=True)

    record = read(run)
    if facts and facts["step"] != record.get("step"):
        record = {"scores": []}
    others = [old for old in record.get("scores", []) if key(old) != key(new)]
    write_whole(run / FILE, json.dumps(record | facts | {"scores": [*others, new]}, indent=2, ensure_ascii=False))


def run_of(model: str) -> Path | None:
    """The run folder that a model is, or lies in: RUN, an average in RUN, RUN/checkpoints/step_N."""
    folder = Path(model).absolute()
    owner = folder.parent if (folder / "averaged_from.json").is_file() else folder
    owner = folder.parents[1] if folder.parent.name == "checkpoints" else owner
    return owner if folder.is_dir() and (owner / "config.yaml").is_file() else None


def weights_of(model: str) -> dict:
    """What the weights of a folder are: the last ones of a run, those of one checkpoint, or an average of several."""
    folder = Path(model)
    if (folder / "averaged_from.json").is_file():
        steps = json.loads((folder / "averaged_from.json").read_text(encoding="utf-8"))["checkpoints"]
        numbers = ", ".join(f"{int(step.removeprefix('step_')):,}" for step in steps)
        return {"weights": f"average of steps {numbers}", "checkpoints": steps}
    if folder.name.startswith("step_"):
        return {"weights": f"step {int(folder.name.removeprefix('step_')):,}", "checkpoints": [folder.name]}
    return {"weights": "last"}


def perplexity(model, tokenizer, sources: Sequence[str], references: Sequence[str]) -> float:
    """exp of the mean -log p of a reference token given its source: per token, EOS counted, without smoothing.

    Args:
        model: a VaswaniForSeq2SeqLM, with the tokenizer saved beside it.
    """
    datasets.disable_progress_bars()
    pairs = datasets.Dataset.from_dict({"source": list(sources), "target": list(references)})
    pairs = tokenise(pairs, tokenizer, keep_text=False)
    objective = Objective(model).train(model.training)
    nll, tokens = summed_nll(objective, pairs, by_longer_side(pairs), tokenizer.pad_token_id).tolist()
    return loss.perplexity(nll / tokens)
