"""Pages of models that are not trained yet, made from their configs, and the index of all cards: `model_cards/`."""

import re
from pathlib import Path

from .card_tables import MEANINGS, table
from .corpora import with_recipe
from .paper import parameters
from .run_config import RunConfig, flat, read_config
from .training_data import training_data

INDEX = "README.md"
SHOWN = (
    "num_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "dropout",
    "label_smoothing",
    "max_steps",
    "tokens_per_batch",
    "warmup_steps",
)


def header(config: Path) -> tuple[str, dict[str, str], list[str]]:
    """The comment that opens a config: its title, what it says by name (Launch, Hardware, Expected; lines kept), the rest."""
    lines = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:])
    title, said, rest, name = lines[0].strip(), {}, [], None
    for line in lines[1:]:
        if named := re.match(r" ([A-Z][a-z]+):\s+(.*)", line):
            name = named[1]
            said[name] = named[2]
        elif name and re.match(r" {3,}\S", line):
            said[name] += "\n" + line.strip()
        else:
            name = None
            rest.append(line.strip())
    return title, said, rest


def page(config: Path, root: Path) -> str:
    """Says that there is no such model, and what would make it."""
    title, said, rest = header(config)
    run = with_recipe(read_config([str(config)]))
    settings, data = flat(run), training_data(flat(run), {})
    rows = [[MEANINGS[name], f"{settings[name]:,}"] for name in SHOWN]
    rows += [["entries of the shared vocabulary", f"{run.data.vocab_size:,}"], ["parameters", f"{_parameters(run):,}"]]
    parts = [
        f"# {title.rstrip('.')}",
        "**Not trained yet.** There are no weights and no scores of ours: what stands here was made from "
        f'`{config.relative_to(root)}` by `python scripts/model_cards.py`, and the numbers under "Expected" are others\' or '
        "calculated. When it is trained, `scripts/publish.py` makes the card from the record of the run.",
        "## How to train it",
        f"```bash\n{_commands(said['Launch'])}\n```",
        *(f"**{name}.** {' '.join(text.split())}" for name, text in said.items() if name != "Launch"),
        *([" ".join(rest)] if rest else []),
        f"Then `python scripts/publish.py {settings['output_dir']} --repo-id ORG/NAME --dry-run`.",
        "## What it will be",
        table(["setting", ""], rows),
        f"Data: {data.title}{'; ' + data.note if data.note else ''}.",
        table(["corpus", "terms"], [list(corpus) for corpus in data.corpora], 2),
    ]
    return "\n\n".join(parts) + "\n"


def _commands(launch: str) -> str:
    """The lines of a Launch entry as a shell reads them: what is said in brackets behind a command is a comment."""
    return re.sub(r"[ ]{2,}\((.*)\)$", r"  # \1", launch, flags=re.MULTILINE)


def _parameters(run: RunConfig) -> int:
    model = run.model
    each = model.d_model // model.num_heads
    sizes = {name: getattr(model, name) for name in ("num_layers", "d_model", "d_ff", "num_heads", "attention_bias")}
    return parameters(
        vocab_size=run.data.vocab_size,
        d_k=model.d_k or each,
        d_v=model.d_v or each,
        tied=model.tie_word_embeddings,
        **sizes,
    )


def planned(root: Path) -> dict[str, str]:
    """The page of every config of Table 2, by file name."""
    configs = [path for path in sorted((root / "configs").glob("*.yaml")) if header(path)[0].startswith("Table 2")]
    return {f"{path.stem}.md": page(path, root) for path in configs}


def index(cards: list[Path], pages: dict[str, str]) -> str:
    """The list of both. `cards`: folders with the README.md and results.json of a trained model."""
    trained = [f"- [{card.name}]({card.name}/README.md): {_title(card / 'README.md')}" for card in sorted(cards)]
    waiting = [
        f"- [{name.removesuffix('.md')}]({name}): {text.splitlines()[0].removeprefix('# ')}"
        for name, text in pages.items()
    ]
    return "\n".join([
        "# Model cards", "",
        "One card for each trained model, made from the record of its run by `scripts/publish.py`, never typed by hand; and a page for "
        "each model of the paper's Table 2 that is not trained yet, made from its config. `python scripts/model_cards.py` "
        "writes this folder; `python scripts/model_cards.py --add RUN/hub` puts in the card of a folder that `publish.py` assembled.", "",
        "## Trained", "", *(trained or ["None yet."]), "",
        "## Not trained yet", "", *waiting, "",
    ])  # fmt: skip


def _title(card: Path) -> str:
    lines = card.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))
