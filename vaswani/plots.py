"""Figures of a run, drawn from its record."""

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
