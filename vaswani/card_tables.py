"""The tables of a model card, in Markdown."""

import math
from pathlib import Path

from safetensors import safe_open

from .paper import BASE, TABLE3
from .run_record import RunRecord
from .training_data import TrainingData

SCORES = {  # of results.json, as the heads of columns
    "paper_bleu": "paper's BLEU",
    "paper_bleu_ascii": "the same, ASCII punctuation",
    "multi_bleu": "multi-bleu",
    "sacrebleu": "sacreBLEU",
    "sacrebleu_intl": "sacreBLEU intl",
    "chrf2": "chrF2",
    "length_ratio": "length ratio",
}
PAPER = BASE | {  # and of its training
    "tie_word_embeddings": True, "attention_bias": True, "max_steps": 100_000, "tokens_per_batch": 25_000, "warmup_steps": 4000, "lr_factor": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.98,
    "adam_eps": 1e-9, "num_beams": 4, "length_penalty": 0.6,
}  # fmt: skip
BIG = PAPER | TABLE3[-1].changes | {"max_steps": TABLE3[-1].steps}
MEANINGS = {
    "num_layers": "layers of encoder and of decoder, N",
    "d_model": "width, d_model",
    "d_ff": "inner width of the feed-forward networks, d_ff",
    "num_heads": "attention heads, h",
    "d_k": "width of a query or key in a head, d_k",
    "d_v": "width of a value in a head, d_v",
    "dropout": "dropout",
    "position_encoding": "positional encoding (interleaved: sinusoids as in the text)",
    "tie_word_embeddings": "one matrix for both embeddings and the softmax",
    "attention_bias": "biases in the attention projections",
    "label_smoothing": "label smoothing",
    "max_steps": "updates",
    "tokens_per_batch": "target tokens in an update",
    "warmup_steps": "updates of warm-up",
    "lr_factor": "factor before the paper's learning rate",
    "adam_beta1": "Adam's beta 1",
    "adam_beta2": "Adam's beta 2",
    "adam_eps": "Adam's epsilon",
    "num_beams": "beam",
    "length_penalty": "alpha of the length penalty",
}


def table(head: list[str], rows: list[list], numbers_from: int = 1) -> str:
    """A Markdown table; columns from `numbers_from` on are ranged right."""
    line = ["---" if i < numbers_from else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, line, *rows))


def score_table(record: RunRecord) -> str:
    """All scores on record; those of the published weights come first, in bold."""
    names = [name for name in SCORES if any(name in entry["scores"] for entry in record.scores)]
    rows = []
    for entry in record.scores:
        found = [entry["scores"].get(name) for name in names]
        numbers = [
            f"{score['score']:.{3 if name == 'length_ratio' else 2}f}" if score else ""
            for name, score in zip(names, found, strict=True)
        ]
        numbers = [f"{entry['ppl']:.2f}" if entry["ppl"] is not None else "", *numbers]
        if record.is_of_model(entry):
            numbers = [f"**{number}**" if number else "" for number in numbers]
        split = f" ({entry['split']})" if entry["split"] and entry["split"] not in entry["set"] else ""
        where = f"{entry['set']}{split}, {entry['sentences']:,} sentences"
        rows.append([where, weights(entry), search(entry["decoding"]), *numbers])
    return table(["text", "weights", "search", "perplexity", *(SCORES[name] for name in names)], rows, 3)


def weights(entry: dict) -> str:
    """Which weights these are, in few words; results.json lists every checkpoint of an average."""
    steps = [int(name.removeprefix("step_")) for name in entry.get("checkpoints", [])]
    return (
        entry["weights"]
        if len(steps) < 4
        else f"average of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    )


def search(decoding: dict) -> str:
    beams = decoding.get("num_beams", 1)
    options = {name: value for name, value in decoding.items() if name != "num_beams"}
    if beams == 1:
        options.pop("length_penalty", None)  # of beams alone
    return ", ".join(
        ["greedy" if beams == 1 else f"beam {beams}", *(f"{name} {value}" for name, value in options.items())]
    )


def signatures(record: RunRecord) -> list[tuple[str, str]]:
    """What exactly was computed, by score; a name stands twice where two texts were scored in two ways."""
    found = {
        (SCORES[name], score["signature"]): None
        for entry in record.scores for name, score in entry["scores"].items() if name in SCORES and name != "length_ratio"
    }  # fmt: skip
    return list(found)


def counts_table(report: dict) -> str:
    """Pairs read, mended, dropped and kept, by split."""
    splits = [split for split in ("train", "valid", "test") if split in report]
    rows = [["read", *(f"{report[split]['read']:,}" for split in splits)]]
    for what, verb in (("mended", "mended"), ("removed", "dropped")):
        names = {name: None for split in splits for name in report[split].get(what, {})}
        for name in names:
            counts = [report[split].get(what, {}).get(name) for split in splits]
            rows.append([f"{verb}: {name}", *("" if count is None else f"{count:,}" for count in counts)])
    for name, key in (("kept", "kept"), ("source tokens", "source tokens"), ("target tokens", "target tokens")):
        rows.append([name, *(f"{report[split][key]:,}" if key in report[split] else "" for split in splits)])
    return table(["pairs", *splits], rows)


def settings_table(record: RunRecord) -> str:
    """The architecture, and how large that makes the model."""
    settings = full(record.settings)
    names = ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout", "position_encoding")
    rows = [[MEANINGS[name], _shown(settings[name])] for name in names]
    if (layers := settings["num_decoder_layers"]) not in (None, settings["num_layers"]):
        rows.insert(1, ["layers of the decoder, where they differ", layers])
    rows += [
        ["entries of the shared vocabulary", f"{record.data['vocabulary']['entries']:,}"],
        ["parameters", f"{parameters(record.model):,}"],
    ]
    return table(["architecture", ""], rows)


def parameters(model: Path) -> int:
    """Of the weights in a folder; a matrix that is used three times is saved and counted once."""
    with safe_open(model / "model.safetensors", "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no dict


def training_table(record: RunRecord) -> str:
    """What the training cost, and where it ended."""
    settings, seen, run, valid = record.settings, record.training, record.environment, record.validation
    tokens = record.data["train"].get("target tokens")
    rows = [
        ["updates", f"{seen['step']:,}"],
        ["target tokens seen", f"{seen['target_tokens']:,}"],
        ["target tokens in an update, on average", f"{seen['target_tokens'] / seen['step']:,.0f}"],
        ["epochs", f"{seen['target_tokens'] / tokens:.1f}" if tokens else f"{seen['epoch']}"],
        ["hours of training, validation not counted", f"{seen['seconds'] / 3600:.2f}"],
        ["hardware", hardware(run)],
        ["arithmetic", {"no": "float32"}.get(run.get("mixed_precision"), run.get("mixed_precision"))],
        ["loss per target token at the end, smoothed / not", f"{seen['loss']:.3f} / {seen['nll']:.3f}"],
        ["seed", settings["seed"]],
        [
            "software",
            ", ".join(
                f"{name} {run[name]}" for name in ("python", "torch", "transformers", "accelerate") if name in run
            ),
        ],
        ["code", _code(run)],
    ]
    if valid:
        rows.insert(
            8,
            [
                f"validation at step {valid['step']:,}",
                f"perplexity {valid['valid_ppl']:.2f}, BLEU {valid['valid_bleu']:.2f} (greedy)",
            ],
        )
    return table(["training", ""], rows)


def hardware(run: dict) -> str:
    processes, threads = run.get("processes", 1), run.get("threads_per_process")
    several = "1 process" if processes == 1 else f"{processes} processes"
    each = f" of {threads} thread{'s' if threads > 1 else ''}" if threads else ""
    return f"{several}{each} on {run.get('device', 'a device that is not on record')}"


def _code(run: dict) -> str:
    commit = run.get("commit")
    if not commit:
        said = "of no repository"
    elif commit.endswith("-dirty"):
        said = f"commit `{commit.removesuffix('-dirty')}` with changes that were not committed"
    else:
        said = f"commit `{commit}`"
    return f"{said}; digest of its files `{run.get('code', 'not on record')}`"


def full(settings: dict) -> dict:
    """Settings with d_k and d_v as numbers."""
    each = settings["d_model"] // settings["num_heads"]
    return settings | {name: settings[name] or each for name in ("d_k", "d_v")}


def differences(record: RunRecord, data: TrainingData) -> tuple[str, str]:
    """Which of the paper's models this is nearest to, and a table of what differs from it; "" where nothing does."""
    settings = full(record.settings)
    big = (settings["d_model"], settings["d_ff"]) == (BIG["d_model"], BIG["d_ff"])
    name, paper = ("big", BIG) if big else ("base", PAPER)
    rows = [
        [MEANINGS[key], _shown(paper[key]), _shown(settings[key])] for key in MEANINGS if settings[key] != paper[key]
    ]
    if not record.settings["recipe"]:
        rows.insert(
            0,
            [
                "training text",
                "WMT 2014: 4.5 million pairs EN-DE, 36 million EN-FR",
                f"{record.data['train']['kept']:,} pairs of {data.title}",
            ],
        )
    if "checkpoints" not in record.weights and not record.settings["init_from"]:
        rows.append(["weights", "mean of the last 5 (base) or 20 (big) checkpoints", "the last ones"])
    return name, table(["setting", f"the paper's {name} model", "this model"], rows, 3) if rows else ""


def _shown(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
