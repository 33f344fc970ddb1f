"""Figures of a run and of its data, drawn from their records."""

from itertools import accumulate
from pathlib import Path

COLOURS = ("#1f4e79", "#b5541c", "#4c7a34", "#6b4c9a")


def bleu_curve(points: list[dict], path: Path, title: str) -> None:
    """BLEU over checkpoints. `points` hold "step" and a score by name, as {"step": 1500, "sacrebleu": 24.1, ...}."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    steps = [point["step"] for point in points]
    for name, colour in zip([name for name in points[0] if name != "step"], COLOURS, strict=False):
        scores = [point[name] for point in points]
        axes.plot(steps, scores, marker="o", markersize=4, color=colour, label=f"{name} (best {max(scores):.2f})")
    axes.set(xlabel="step (optimizer updates)", ylabel="BLEU", title=title)
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def length_histograms(lengths: dict, path: Path, title: str) -> None:
    """Lengths in words before and after cleaning. `lengths` is that of a cleaning report: counts by side and time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True, sharey=True, layout="constrained")
    longest = max(_quantile(counts["before"], 0.998) for counts in lengths.values())
    for axes, (side, counts), colour in zip(panels, lengths.items(), COLOURS, strict=False):
        before, after = (counts[when][: longest + 1] for when in ("before", "after"))
        axes.stairs(after, range(len(after) + 1), fill=True, color=colour, alpha=0.7, label=_summary("after", counts))
        axes.stairs(before, range(len(before) + 1), color="#333333", label=_summary("before", counts))
        axes.set(xlabel="words", title=side)
        axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
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
