"""The paper's tables at toy scale: the same rows, each a sixteenth as wide, on the embedded corpus."""

import dataclasses
from pathlib import Path

import yaml

from .corpora import embedded_corpus
from .rows import Row
from .run_config import flat, write_whole

PAIRS = {"train": 600, "valid": 30, "test": 30}  # of the embedded corpus
SCHEDULE = {"tokens_per_batch": 500, "max_steps": 160, "warmup_steps": 60, "lr_factor": 0.2,
            "save_steps": 8, "eval_steps": 160, "log_steps": 50, "figures": False}  # fmt: skip


def rehearsed(row: Row, folder: Path) -> Row:
    """The row with a sixteenth of every width, half the layers, on the embedded English-German corpus.

    Its YAML and the text are written below `folder`.
    """
    config = row.settings()
    d_k = config.model.d_k or config.model.d_model // config.model.num_heads
    wide = {"d_model": config.model.d_model, "d_ff": config.model.d_ff, "d_k": d_k, "d_v": config.model.d_v or d_k}
    settings = {key: value for key, value in flat(config).items() if value is not None}
    settings |= {key: max(1, width // 16) for key, width in wide.items()}
    settings |= {"num_layers": max(1, config.model.num_layers // 2), "vocab_size": 400, "num_workers": 1}
    settings |= {"data_dir": str(text(folder)), "prepared_dir": str(folder / "prepared"), "target_lang": "de"}
    settings |= {f"{split}_files": [split] for split in PAIRS} | SCHEDULE
    for key in ("recipe", "max_words", "max_ratio"):
        settings.pop(key, None)
    path = folder / "configs" / row.table / f"{row.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(settings, sort_keys=False))
    return dataclasses.replace(row, config=path, changes={})


def is_rehearsal(folder: Path) -> bool:
    return (folder / "corpus").exists()


def text(folder: Path) -> Path:
    """The folder of the text, written at the first call."""
    path = folder / "corpus"
    if not (path / "whole").exists():
        path.mkdir(parents=True, exist_ok=True)
        corpus = embedded_corpus()
        for split, count in PAIRS.items():
            for lang in ("en", "de"):
                write_whole(path / f"{split}.{lang}", "".join(pair[lang] + "\n" for pair in corpus[split][:count]))
        (path / "whole").touch()
    return path
