"""A folder for the Hub that works where this package is not installed."""

import json
import shutil
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from .modeling_vaswani import VaswaniForSeq2SeqLM

PARTS = ("configuration", "dropout", "embedding", "generation", "modeling", "packing", "pipeline", "search")
CODE = tuple(f"{part}_vaswani.py" for part in PARTS)
AUTO_MAP = {
    "AutoConfig": "configuration_vaswani.VaswaniConfig",
    "AutoModel": "modeling_vaswani.VaswaniModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForSeq2SeqLM",
}
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vaswani.VaswaniTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}


def save_for_hub(model: VaswaniForSeq2SeqLM, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> Path:
    """Saves model, tokenizer and the code that they need.

    With `trust_remote_code=True` the Auto classes load the folder in a process that has no `vaswani`, and so do
    `pipeline("translation", model=folder)` and `pipeline(model=folder)`; with `vaswani` imported no trust is asked for.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in CODE:
        shutil.copy(Path(__file__).parent / name, folder / name)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"auto_map": AUTO_MAP, "custom_pipelines": CUSTOM_PIPELINES}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return folder
