"""Figures of a run and of its data, drawn from their records."""

from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from .loss import perplexity

COLOURS = ("#1f4e79", "#b5541c", "#4c7a34", "#6b4c9a")


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _plain(axes, **labels) -> None:
    axes.set(**labels)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def bleu_curve(points: list[dict], path: Path, title: str) -> None:
    """BLEU over checkpoints. `points` hold "step" and a score by name, as {"step": 1500, "sacrebleu": 24.1, ...}."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    steps = [point["step"] for point in points]
    for name, colour in zip([name for name in points[0] if name != "step"], COLOURS, strict=False):
        scores = [point[name] for point in points]
        axes.plot(steps, scores, marker="o", markersize=4, color=colour, label=f"{name} (best {max(scores):.2f})")
    _plain(axes, xlabel="step (optimizer updates)", ylabel="BLEU", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def training_curves(records: list[dict], path: Path, title: str) -> None:
    """Loss, perplexity, BLEU and learning rate over steps, from the lines of metrics.jsonl."""
    plt = _pyplot()
    panels = (
        ("loss in nats per target token", {"nll": "training", "valid_nll": "validation", "loss": "training, smoothed"}),
        ("perplexity", {"ppl": "training", "valid_ppl": "validation"}),
        ("BLEU of greedy translations", {"valid_bleu": "validation"}),
        ("learning rate", {"lr": "learning rate"}),
    )
    records = [line | ({"ppl": perplexity(line["nll"])} if line.get("nll") is not None else {}) for line in records]
    figure, grid = plt.subplots(2, 2, figsize=(9.6, 6.4), layout="constrained")
    for axes, (label, curves) in zip(grid.flat, panels, strict=True):
        for (key, name), colour in zip(curves.items(), COLOURS, strict=False):
            points = [(line["step"], line[key]) for line in records if line.get(key) is not None]
            few = {"marker": "o", "markersize": 3} if key.startswith("valid") else {}
            axes.plot(
                *zip(*points, strict=True) if points else ([], []), color=colour, label=name, linewidth=1.2, **few
            )
        _plain(axes, xlabel="step (optimizer updates)", ylabel=label)
        if label == "perplexity":
            axes.set_yscale("log")
        if len(curves) > 1:
            axes.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def attention_heads(weights: np.ndarray, source: list[str], target: list[str], path: Path, title: str) -> None:
    """Encoder-decoder attention of one sentence pair, a panel for each head of each layer.

    Args:
        weights: (layers, heads, target tokens, source tokens), each row a distribution over the source.
    """
    plt = _pyplot()
    layers, heads, rows, columns = weights.shape
    width, height = max(1.1, 0.13 * columns), max(1.1, 0.15 * rows)
    size = (width * heads + 1.2, height * layers + 1.4)
    figure, grid = plt.subplots(
        layers, heads, figsize=size, squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    for layer, head in np.ndindex(layers, heads):
        axes = grid[layer, head]
        axes.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.tick_params(length=0, labelsize=6)
        axes.tick_params(axis="x", rotation=90)
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=7)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", fontsize=7)
    grid[0, 0].set_xticks(range(columns), [_shown(token) for token in source])
    grid[0, 0].set_yticks(range(rows), [_shown(token) for token in target])
    figure.suptitle(title, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _shown(token: str) -> str:
    return token.replace("$", r"\$").replace(" ", "·")


def length_histograms(lengths: dict, path: Path, title: str) -> None:
    """Lengths in words before and after cleaning. `lengths` is that of a cleaning report: counts by side and time."""
    plt = _pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True, sharey=True, layout="constrained")
    longest = max(_quantile(counts["before"], 0.998) for counts in lengths.values())
    for axes, (side, counts), colour in zip(panels, lengths.items(), COLOURS, strict=False):
        before, after = (counts[when][: longest + 1] for when in ("before", "after"))
        axes.stairs(after, range(len(after) + 1), fill=True, color=colour, alpha=0.7, label=_summary("after", counts))
        axes.stairs(before, range(len(before) + 1), color="#333333", label=_summary("before", counts))
        axes.set(xlabel="words", title=side)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="upper right", fontsize="small")
    panels[0].set_ylabel("pairs")
    panels[0].set_xlim(0, longest + 1)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _summary(when: str, counts: dict) -> str:
    total, words = sum(counts[when]), sum(length * count for length, count in enumerate(counts[when]))
    return f"{when}: {total:,} pairs\nmean {words / max(total, 1):.1f}, 99 % up to {_quantile(counts[when], 0.99)}"


def _quantile(counts: list[int], share: float) -> int:
    """The least length that `share` of the texts do not exceed."""
    return next((length for length, so_far in enumerate(accumulate(counts)) if so_far >= share * sum(counts)), 0)


def differences(rows: list[dict], spread: dict[str, float], path: Path, title: str) -> None:
    """Rows of a table against its base row: BLEU and perplexity, the paper's differences beside ours.

    Args:
        rows: {"row", "bleu", "ppl": ours less our base row's, "paper_bleu", "paper_ppl": the paper's likewise}.
        spread: by "bleu" and "ppl", two standard deviations of our base row over its seeds, drawn as a band.
    """
    plt = _pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10, 0.3 * len(rows) + 1.4), sharey=True, layout="constrained")
    places = [
        -i - 0.6 * sum(a["row"][:2] != b["row"][:2] for a, b in pairwise(rows[: i + 1])) for i in range(len(rows))
    ]
    for axes, (key, label) in zip(panels, {"bleu": "BLEU", "ppl": "perplexity per piece"}.items(), strict=True):
        axes.axvspan(-spread[key], spread[key], color="#e8e8e8", label="spread of our base row (2 sd)")
        axes.axvline(0, color="#888888", linewidth=0.8)
        for name, colour, marker in ((f"paper_{key}", COLOURS[1], "o"), (key, COLOURS[0], "D")):
            label_of = "the paper, WMT14" if name.startswith("paper") else "here"
            axes.scatter(
                [row[name] for row in rows], places, color=colour, marker=marker, s=26, label=label_of, zorder=3
            )
        axes.set(xlabel=f"{label}, less the base row's")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(places, [row["row"] for row in rows])
    panels[1].legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
