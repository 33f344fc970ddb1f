"""Section 6: what is done of a reproduction, and what came out beside the paper's."""

import json
import statistics
from pathlib import Path

import torch

from . import paper, results
from .card_tables import table
from .checkpoint import checkpoints, regular
from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForSeq2SeqLM
from .plots import differences
from .rows import TABLES, Row, flops_per_pair, rows_of
from .run_config import RunConfig, UserError, flat, read_config, write_whole
from .run_folder import changed, read_lines

TOLERANCE = 0.5  # BLEU, either way: about what two seeds of one row can differ
EQUAL = 0.3  # BLEU: rows of the paper's Table 3 that are this near to its base row count as equal to it
BEAM = 4


def scored(row: Row, run: Path) -> dict | None:
    """The entry of the run's record that the table is about; None where it is not there yet."""
    weights = results.weights_of(str(run / "averaged" if row.average else run))
    if row.average and "checkpoints" not in weights:
        return None  # not averaged yet: the last weights are not the row's
    wanted = {"split": row.split} | weights
    for entry in results.read(run)["scores"]:
        found = {key: entry.get(key) for key in wanted} == wanted and entry["decoding"]["num_beams"] == BEAM
        if found and "paper_bleu" in entry["scores"]:
            return entry
    return None


def is_trained(run: Path, config: RunConfig) -> bool:
    """Is there a whole run with these settings?

    Raises:
        UserError: there is one with others.
    """
    whole = results.read(run).get("step") == config.training.max_steps and (run / "config.json").is_file()
    if whole and (listed := changed(flat(read_config([str(run / "config.yaml")])), flat(config))):
        raise UserError(f"{run} was trained with other settings ({listed}): choose another --output_dir")
    return whole


def is_averaged(run: Path, count: int) -> bool:
    """Is RUN/averaged the mean of the last `count` checkpoints?"""
    names = results.weights_of(str(run / "averaged")).get("checkpoints", [])
    there = [folder.name for folder in regular(checkpoints(run))[-count:]]  # none: they were deleted since
    return len(names) == count and names == (there or names)


def collect(folder: Path, rehearsal: bool = False) -> list[dict]:
    """What is done, a line for each row and seed, from the run folders: `folder`/TABLE/ROW/seed_N."""
    lines = []
    for row in (row for name in TABLES for row in rows_of(name)):
        for run in sorted(row.run(folder, 0).parent.glob("seed_*")):
            entry = scored(row, run)
            if not run.name.removeprefix("seed_").isdigit() or not entry:
                continue  # an earlier run that was moved aside, or one that is not done
            config = VaswaniConfig.from_pretrained(run)
            with torch.device("meta"):
                count = VaswaniForSeq2SeqLM(config).num_parameters()
            notes = map(json.loads, read_lines(run / "metrics.jsonl"))
            tokens = max(note.get("target_tokens", 0) for note in notes)
            bleu = entry["scores"]["paper_bleu"]
            lines.append({
                "table": row.table, "row": row.name, "seed": int(run.name.removeprefix("seed_")), "ppl": entry["ppl"],
                "bleu": bleu["score"], "sacrebleu": entry["scores"]["sacrebleu"]["score"],
                "signatures": [bleu["signature"], entry["scores"]["sacrebleu"]["signature"]],
                "set": entry["set"], "weights": entry["weights"], "steps": results.read(run).get("step"), "tokens": tokens,
                "parameters": count, "flops": flops_per_pair(config, config.vocab_size) * tokens,
                "paper_bleu": row.bleu, "paper_ppl": row.ppl, "paper_parameters": row.parameters,
                "paper_flops": row.flops,
            })  # fmt: skip
    for line in lines:
        same_table = [other for other in lines if other["table"] == line["table"]]
        line["verdict"] = "rehearsal: not comparable" if rehearsal else verdict(line, same_table)
    return lines


def verdict(line: dict, lines: list[dict]) -> str:
    """Of a row, among those of its table, from the mean over its seeds.

    For the paper's tables: is it within `TOLERANCE` BLEU of the paper's? For Multi30k, whose scores are no WMT scores: has
    the difference from the base row the paper's sign, as far as the spread of the base's seeds lets it be known?
    """
    own = statistics.mean(seeds(line["row"], lines))
    if line["table"] != "multi30k":
        difference = own - line["paper_bleu"]
        return "inside" if abs(difference) <= TOLERANCE else "above" if difference > 0 else "below"
    base = seeds("base", lines)
    if line["row"] == "base" or len(base) < 2:
        return "-"
    ours = sign(own - statistics.mean(base), 2 * statistics.stdev(base))
    theirs = sign(line["paper_bleu"] - paper.TABLE3[0].bleu, EQUAL)
    if ours == theirs:
        return "as in the paper"
    return "not as in the paper" if ours else "within the spread of seeds"


def sign(difference: float, nothing: float) -> int:
    """-1 or 1, or 0 where the difference is `nothing`. Scores of tables have one decimal, which floats do not hold."""
    return 0 if abs(difference) <= nothing + 1e-9 else 1 if difference > 0 else -1


def seeds(row: str, lines: list[dict], key: str = "bleu") -> list[float]:
    return [line[key] for line in lines if line["row"] == row]


def write(folder: Path, rehearsal: bool = False) -> Path:
    """`results.json` and, for readers, `results.md` of all that is done in a folder. Returns the first."""
    lines, path = collect(folder, rehearsal), folder / "results.json"
    write_whole(path, json.dumps(lines, indent=2))
    write_whole(path.with_suffix(".md"), as_table(lines))
    if len(seeds("base", [line for line in lines if line["table"] == "multi30k"])) > 1:
        figure(lines, folder / "multi30k.png")
    return path


def as_table(lines: list[dict]) -> str:
    """Rows beside the paper's: the mean over seeds, with their standard deviation where there are several."""
    header = ["table", "row", "seeds", "PPL", "paper", "BLEU", "paper", "sacreBLEU", "parameters", "paper", "model FLOPs",
              "the paper's hardware FLOPs", "verdict"]  # fmt: skip
    shown = []
    for line in {(line["table"], line["row"]): line for line in lines}.values():
        same = [x for x in lines if (x["table"], x["row"]) == (line["table"], line["row"])]
        flops, millions = line["paper_flops"], line["paper_parameters"]
        shown.append([
            line["table"], line["row"], len(same), spread([x["ppl"] for x in same]), line["paper_ppl"] or "",
            spread([x["bleu"] for x in same], 1), line["paper_bleu"], spread([x["sacrebleu"] for x in same], 1),
            f"{line['parameters'] / 1e6:.2f}M", f"{millions}M" if millions else "", f"{line['flops']:.2e}",
            f"{flops:.1e}" if flops else "", line["verdict"],
        ])  # fmt: skip
    return table(header, shown, len(header)) + "\n"


def spread(values: list[float], digits: int = 2) -> str:
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def figure(lines: list[dict], path: Path) -> None:
    """Table 3 scaled down: every row's difference from the base row, ours beside the paper's."""
    lines = [line for line in lines if line["table"] == "multi30k"]
    means = {
        key: {row: statistics.mean(seeds(row, lines, key)) for row in dict.fromkeys(line["row"] for line in lines)}
        for key in ("bleu", "ppl", "paper_bleu", "paper_ppl")
    }
    rows = [
        {"row": row} | {key: values[row] - values["base"] for key, values in means.items()}
        for row in means["bleu"]
        if row != "base"
    ]
    noise = {key: 2 * statistics.stdev(seeds("base", lines, key)) for key in ("bleu", "ppl")}
    differences(rows, noise, path, "Table 3 on Multi30k, English to German")
