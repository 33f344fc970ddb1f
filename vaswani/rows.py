"""Section 6: the rows of the paper's tables, and of Table 3 scaled down: what each one trains, and what that takes."""

from dataclasses import dataclass, field
from pathlib import Path

from . import paper
from .card_tables import table
from .configuration_vaswani import VaswaniConfig
from .corpora import with_recipe
from .run_config import ModelSettings, RunConfig, UserError, read_config

CONFIGS = Path(__file__).parent.parent / "configs"


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
    variant_of: str | None = None  # a row of the paper that the authors' code trains otherwise

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
        of = name.removesuffix(variant) if variant else None
        rows.append(Row("table2", name, config, "test", average, bleu=bleu, flops=flops, variant_of=of))
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


def flops_per_pair(model: ModelSettings | VaswaniConfig, vocab_size: int) -> float:
    """Of training on one source and one target token."""
    d_k = model.d_k or model.d_model // model.num_heads
    sizes = {key: getattr(model, key) for key in ("num_layers", "d_model", "d_ff", "num_heads")}
    return paper.model_flops(vocab_size=vocab_size, d_k=d_k, d_v=model.d_v or d_k, **sizes)


def planned(row: Row) -> dict:
    """Steps, target tokens, epochs (None where the corpus is not the paper's) and model FLOPs of one run."""
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


def plan(rows: list[Row], seeds: dict[str, int], gpus: list[str], mfus: list[float]) -> str:
    """A table of what the runs take. `seeds`: runs of each row, by its name."""
    machines = [(gpu, mfu) for gpu in gpus for mfu in mfus]
    header = ["row", "runs", "steps", "epochs", "MFLOP/pair", "target tokens, all runs", "FLOPs, all runs"]
    header += [f"{gpu} hours at {mfu:.0%}" for gpu, mfu in machines]
    lines, trainings = [], {}
    for row in rows:
        p, runs = planned(row), seeds[row.name]
        if row.variant_of not in seeds:
            folder = row.run(Path(), 0).parent  # the same for rows that are one training
            trainings[folder] = max(trainings.get(folder, 0.0), p["flops"] * runs)
        hours = [f"{gpu_hours(p['flops'] * runs, *machine):,.2f}" for machine in machines]
        epochs = f"{p['epochs']:.1f}" if p["epochs"] else "-"
        lines.append([row.name, runs, f"{p['steps']:,}", epochs, f"{p['flops_per_pair'] / 1e6:,.0f}",
                      f"{p['tokens'] * runs:.2e}", f"{p['flops'] * runs:.2e}", *hours])  # fmt: skip
    total = sum(trainings.values())
    sums = [f"{gpu_hours(total, *machine):,.2f}" for machine in machines]
    lines.append(["all, each training once, without variants", "", "", "", "", "", f"{total:.2e}", *sums])
    return table(header, lines, len(header)) + "\n"
