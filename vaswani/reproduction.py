"""Section 6: the paper's tables as runs: what each row trains, whether it is done, and what came out beside the paper's."""

import dataclasses
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from . import paper, results
from .card_tables import table
from .configuration_vaswani import VaswaniConfig
from .corpora import embedded_corpus, with_recipe
from .modeling_vaswani import VaswaniForSeq2SeqLM
from .plots import differences
from .run_config import ModelSettings, RunConfig, UserError, flat, read_config, write_whole
from .run_folder import changed, read_lines

CONFIGS = Path(__file__).parent.parent / "configs"
TOLERANCE = 0.5  # BLEU, either way: about what two seeds of one row can differ
BEAM = 4


@dataclass(frozen=True)
class Row:
    """A row of a table: one YAML, perhaps with `changes`, trained once for each seed."""

    table: str
    name: str
    config: Path
    split: str  # that is scored
    average: int | None = None  # of how many last checkpoints; None: the last weights
    changes: dict = field(default_factory=dict)
    bleu: float | None = None  # the paper's
    ppl: float | None = None
    flops: float | None = None  # the paper's estimate, of the hardware
    parameters: int | None = None  # the paper's, in millions
    same_training: str | None = None  # as which other row, of which table

    def run(self, folder: Path, seed: int) -> Path:
        """The run folder."""
        return folder / (self.same_training or f"{self.table}/{self.name}") / f"seed_{seed}"

    def settings(self, *more: str) -> RunConfig:
        """The resolved config. `more`: words of a command line."""
        return with_recipe(read_config([str(self.config), *self.words(), *more]))

    def words(self) -> list[str]:
        return [word for key, value in self.changes.items() for word in (f"--{key}", str(value))]


def table2() -> list[Row]:
    models = {row.model: row for row in paper.TABLE2}
    rows = []
    for pair, size, variant, average in (
        ("en_de", "base", "", 5), ("en_de", "big", "", 20), ("en_fr", "base", "", 5), ("en_fr", "big", "", 20),
        ("en_fr", "big", "_untied", 20),
    ):  # fmt: skip
        published, name = models[f"Transformer ({size})"], f"{pair}_{size}{variant}"
        bleu, flops = getattr(published, f"bleu_{pair}"), getattr(published, f"flops_{pair}")
        config = CONFIGS / f"wmt14_{name}.yaml"
        rows.append(Row("table2", name, config, "test", average, bleu=bleu, flops=flops))
    return rows


def table3() -> list[Row]:
    """Its base and big model are those of Table 2, scored on the other text and before averaging."""
    rows, of_table_2 = [], {"base": "en_de_base", "big": "en_de_big"}
    for row in paper.TABLE3:
        same = of_table_2.get(row.name)
        config = CONFIGS / (f"wmt14_{same}.yaml" if same else f"table3/{row.name}.yaml")
        published = {"bleu": row.bleu, "ppl": row.ppl, "parameters": row.parameters}
        rows.append(Row("table3", row.name, config, "valid", **published, same_training=same and f"table2/{same}"))
    return rows


SCALED = {
    "base": ("base", {}),
    "a_heads_1": ("a_heads_1", {"num_heads": 1, "d_k": 128, "d_v": 128}),
    "a_heads_2": ("a_heads_4", {"num_heads": 2, "d_k": 64, "d_v": 64}),
    "a_heads_8": ("a_heads_16", {"num_heads": 8, "d_k": 16, "d_v": 16}),
    "a_heads_16": ("a_heads_32", {"num_heads": 16, "d_k": 8, "d_v": 8}),
    "b_d_k_8": ("b_d_k_16", {"d_k": 8}),
    "b_d_k_16": ("b_d_k_32", {"d_k": 16}),
    "c_layers_1": ("c_layers_2", {"num_layers": 1}),
    "c_layers_2": ("c_layers_4", {"num_layers": 2}),
    "c_layers_4": ("c_layers_8", {"num_layers": 4}),
    "c_d_model_64": ("c_d_model_256", {"d_model": 64, "d_k": 16, "d_v": 16}),
    "c_d_model_256": ("c_d_model_1024", {"d_model": 256, "d_k": 64, "d_v": 64}),
    "c_d_ff_256": ("c_d_ff_1024", {"d_ff": 256}),
    "c_d_ff_1024": ("c_d_ff_4096", {"d_ff": 1024}),
    "d_dropout_0.0": ("d_dropout_0.0", {"dropout": 0.0}),
    "d_dropout_0.3": ("d_dropout_0.2", {"dropout": 0.3}),
    "d_smoothing_0.0": ("d_smoothing_0.0", {"label_smoothing": 0.0}),
    "d_smoothing_0.2": ("d_smoothing_0.2", {"label_smoothing": 0.2}),
    "e_learned_positions": ("e_learned_positions", {"position_encoding": "learned"}),
    "big": ("big", {"d_model": 256, "d_ff": 1024, "num_heads": 8, "dropout": 0.3}),
}
"""Table 3 on Multi30k: the paper's row that each stands for, and what it changes in configs/multi30k_table3.yaml."""


def multi30k() -> list[Row]:
    published, config = {row.name: row for row in paper.TABLE3}, CONFIGS / "multi30k_table3.yaml"
    return [
        Row("multi30k", name, config, "valid", changes=changes, bleu=published[like].bleu, ppl=published[like].ppl)
        for name, (like, changes) in SCALED.items()
    ]


TABLES = {"table2": table2, "table3": table3, "multi30k": multi30k}


def rows_of(table: str, names: list[str] | None = None) -> list[Row]:
    """The rows of a table, or those of them that are named.

    Raises:
        UserError: there is no such row.
    """
    rows = {row.name: row for row in TABLES[table]()}
    if unknown := [name for name in names or [] if name not in rows]:
        raise UserError(f"{table} has no row {unknown[0]!r}: choose from {', '.join(rows)}")
    return [rows[name] for name in names or rows]


# ------------------------------------------------------------------------------------------------------------- planning
def flops_per_pair(model: ModelSettings | VaswaniConfig, vocab_size: int) -> float:
    """Of training on one source and one target token."""
    d_k = model.d_k or model.d_model // model.num_heads
    sizes = {key: getattr(model, key) for key in ("num_layers", "d_model", "d_ff", "num_heads")}
    return paper.model_flops(vocab_size=vocab_size, d_k=d_k, d_v=model.d_v or d_k, **sizes)


def planned(row: Row) -> dict:
    """Steps, target tokens, epochs (None where the corpus is not the paper's) and model FLOPs of one seed."""
    config = row.settings()
    tokens = config.training.max_steps * config.training.tokens_per_batch
    epoch = paper.TOKENS_PER_EPOCH[config.data.languages[1]] if config.data.recipe else None
    pair = flops_per_pair(config.model, config.data.vocab_size)
    return {
        "row": row.name, "steps": config.training.max_steps, "tokens": tokens, "epochs": epoch and tokens / epoch,
        "flops_per_pair": pair, "flops": pair * tokens,
    }  # fmt: skip


def gpu_hours(flops: float, gpu: str, mfu: float) -> float:
    """On one GPU that reaches this share of its peak."""
    return flops / (paper.PEAK_FLOPS[gpu] * mfu) / 3600


def plan(rows: list[Row], seeds: int, gpus: list[str], mfus: list[float]) -> str:
    """A table of what the runs take, all seeds."""
    machines = [(gpu, mfu) for gpu in gpus for mfu in mfus]
    header = ["row", "steps", "target tokens", "epochs", "MFLOP/pair", "FLOPs"]
    header += [f"{gpu} hours at {mfu:.0%}" for gpu, mfu in machines]
    lines, total = [], 0.0
    for row in rows:
        p = planned(row)
        repeated = any(other.run(Path(), 1) == row.run(Path(), 1) for other in rows[: rows.index(row)])
        if not repeated and row.name != "en_fr_big_untied":  # the authors' variant of a row
            total += p["flops"] * seeds
        hours = [f"{gpu_hours(p['flops'] * seeds, *machine):,.2f}" for machine in machines]
        epochs = f"{p['epochs']:.1f}" if p["epochs"] else "-"
        lines.append([row.name, f"{p['steps']:,}", f"{p['tokens'] * seeds:.2e}", epochs,
                      f"{p['flops_per_pair'] / 1e6:,.0f}", f"{p['flops'] * seeds:.2e}", *hours])  # fmt: skip
    sums = [f"{gpu_hours(total, *machine):,.2f}" for machine in machines]
    lines.append(["all, each training once, without the untied variant", "", "", "", "", f"{total:.2e}", *sums])
    return table(header, lines, len(header)) + "\n"


# ------------------------------------------------------------------------------------------------------------ rehearsal
PAIRS = {"train": 600, "valid": 30, "test": 30}  # of the embedded corpus


def rehearsed(row: Row, folder: Path) -> Row:
    """The row at toy scale: a sixteenth of every width, half the layers, 300 steps on the embedded English-German corpus.

    Its YAML and the text are written below `folder`.
    """
    text = folder / "corpus"
    if not (text / "whole").exists():
        text.mkdir(parents=True, exist_ok=True)
        corpus = embedded_corpus()
        for split, count in PAIRS.items():
            pairs = corpus[split][:count]
            for lang in ("en", "de"):
                write_whole(text / f"{split}.{lang}", "".join(pair[lang] + "\n" for pair in pairs))
        (text / "whole").touch()
    config = row.settings()
    model = {key: max(1, getattr(config.model, key) // 16) for key in ("d_model", "d_ff")}
    d_k = config.model.d_k or config.model.d_model // config.model.num_heads
    model |= {"d_k": max(1, d_k // 16), "d_v": max(1, (config.model.d_v or d_k) // 16)}
    model["num_layers"] = max(1, config.model.num_layers // 2)
    settings = {key: value for key, value in (flat(config) | model).items() if value is not None}
    settings |= {"target_lang": "de", "data_dir": str(text), **{f"{split}_files": [split] for split in PAIRS}}
    settings |= {"vocab_size": 400, "prepared_dir": str(folder / "prepared"), "num_workers": 1, "tokens_per_batch": 500}
    settings |= {"max_steps": 160, "warmup_steps": 60, "lr_factor": 0.2, "save_steps": 8, "eval_steps": 160}
    settings |= {"log_steps": 50, "figures": False}
    for key in ("recipe", "max_words", "max_ratio"):
        settings.pop(key, None)
    path = folder / "configs" / row.table / f"{row.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(settings, sort_keys=False))
    return dataclasses.replace(row, config=path, changes={})


# -------------------------------------------------------------------------------------------------------------- results
def scored(row: Row, run: Path) -> dict | None:
    """The entry of the run's record that the table is about; None where it is not there yet."""
    weights = f"average of {row.average} " if row.average else "last"
    for entry in results.read(run)["scores"]:
        kind = f"average of {len(entry['checkpoints'])} " if len(entry.get("checkpoints", [])) > 1 else entry["weights"]
        if (entry["split"], kind, entry["decoding"]["num_beams"]) == (row.split, weights, BEAM):
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


def is_averaged(run: Path, count: int, steps: int) -> bool:
    """Are RUN/averaged the last `count` checkpoints of the whole run?"""
    names = results.weights_of(str(run / "averaged")).get("checkpoints", [])
    return len(names) == count and names[-1] == f"step_{steps}"


def collect(folder: Path, rehearsal: bool = False) -> list[dict]:
    """What is done, a line for each row and seed, from the run folders: `folder`/TABLE/ROW/seed_N."""
    lines = []
    for row in (row for name in TABLES for row in rows_of(name)):
        for run in sorted(row.run(folder, 0).parent.glob("seed_*")):
            entry = scored(row, run)
            if not run.name.removeprefix("seed_").isdigit() or not entry or "paper_bleu" not in entry["scores"]:
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
    """Of a row, among those of its table, from the mean over its seeds. For the paper's tables: within `TOLERANCE` BLEU of it? For Multi30k, whose
    scores are no WMT scores: is the difference from the base row the paper's, up to the spread of the base's seeds?"""
    own = statistics.mean(seeds(line["row"], lines))
    if line["table"] != "multi30k":
        difference = own - line["paper_bleu"]
        return "inside" if abs(difference) <= TOLERANCE else "above" if difference > 0 else "below"
    base = seeds("base", lines)
    if line["row"] == "base" or len(base) < 2:
        return "-"
    noise = 2 * statistics.stdev(base)
    ours, theirs = own - statistics.mean(base), line["paper_bleu"] - paper.TABLE3[0].bleu
    if abs(ours) <= noise:
        return "as in the paper" if abs(theirs) <= 0.3 else "within the spread of seeds"
    return "as in the paper" if ours * theirs > 0 else "not as in the paper"


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
