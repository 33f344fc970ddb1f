"""What must be true of a folder before anybody else sees it: nothing private in it, and it works where nothing else is."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from .hub import CODE
from .run_config import UserError
from .run_record import ABSOLUTE_PATH

ALLOWED = {
    *CODE, "README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "config.yaml",
    "environment.json", "data.json", "metrics.jsonl", "results.json", "curves.png", "attention.png", "bleu_curve.png",
}  # fmt: skip
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib"}
SECRETS = {
    "a token of Hugging Face": r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "a key of Google": r"\bAIza[\w-]{35}",
    "a token of Slack": r"\bxox[abeoprs]-[\w-]{10,}",
    "an API key": r"\bsk-[\w-]{20,}",
    "a web token": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
    "an address with a password": r"\b\w+://[^\s/:@\"']+:[^\s/@\"']+@",
    "a secret": r"(?i)\b\w*(?:passw(?:or)?d|secret|api_?key|access_?key|auth_?token|wandb_?key)\w*[\"']?\s*[:=]\s*[\"']?[\w+/.=-]{12,}",
}  # fmt: skip


def published(folder: Path) -> list[Path]:
    """The files of the folder that go to the Hub."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".assembled"))


def inspect(folder: Path) -> None:
    """Looks at every file.

    Raises:
        UserError: one is a pickle, part of a checkpoint, text of a corpus or something unknown; or text in one has a
            secret or an absolute path.
    """
    for path in published(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix in PICKLES:
            raise UserError(
                f"{path} may run code when it is loaded: models are published as safetensors alone; remove it"
            )
        if path.name in ("optimizer.safetensors", "random.safetensors", "state.json") or "checkpoints/" in name:
            raise UserError(
                f"{path} is part of a checkpoint, as is the optimizer's state: a model alone is published; remove it"
            )
        if name not in ALLOWED and not WEIGHTS.fullmatch(name):
            raise UserError(f"{path} is nothing that a published model consists of: remove it")
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                _look(path, json.dumps(file.metadata()))
        elif path.suffix != ".png":
            _look(path, _text(path))


def _text(path: Path) -> str:
    """Of a tokenizer, all but the vocabulary: its entries look like anything."""
    text = path.read_text(encoding="utf-8")
    if path.name != "tokenizer.json":
        return text
    tokenizer = json.loads(text)
    return json.dumps(
        tokenizer | {"model": {key: x for key, x in tokenizer["model"].items() if key not in ("vocab", "merges")}}
    )


def _look(path: Path, text: str) -> None:
    for what, pattern in SECRETS.items():
        if found := re.search(pattern, text):
            line = text.count("\n", 0, found.start()) + 1
            raise UserError(
                f"{path}, line {line}, has what looks like {what} ({found[0][:8]}...): take it out of the run's record"
            )
    if found := ABSOLUTE_PATH.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise UserError(
            f"{path}, line {line}, names a path of this machine, {found[0].strip()}: take it out of the run's record"
        )


CLEAN_PROCESS = """
import contextlib, io, json, re, sys
from pathlib import Path
folder, repo_id, sentences, installed = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] == "installed"
if installed:
    import vaswani
else:
    sys.modules["vaswani"] = None  # importing it fails, as where it is not installed
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
trust = {} if installed else {"trust_remote_code": True}
model = AutoModelForSeq2SeqLM.from_pretrained(folder, **trust)
tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
batch = tokenizer(sentences, return_tensors="pt", padding=True)
found = {"generate": tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)}
task = "vaswani-translation" if installed else "translation"
translate = pipeline(task, model=folder, device="cpu", **trust)
found["the pipeline"] = [result["translation_text"] for result in translate(sentences)]
if not installed:
    assert AutoModel.from_pretrained(folder, **trust).num_parameters() > 0
    for number, block in enumerate(re.findall("```python\\n(.*?)```", Path(folder, "README.md").read_text("utf-8"), re.DOTALL), 1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(block.replace('"' + repo_id + '"', repr(folder)), {})
        found[f"Python block {number} of the card"] = [printed.getvalue().removesuffix("\\n")]
print(json.dumps({"code": type(model).__module__.split(".")[0], "found": found}))
"""


def verify(folder: Path, repo_id: str, examples: Sequence[tuple[str, str]]) -> None:
    """Loads the folder in two new processes, without and with this package, and translates with each.

    Without it the Auto classes, the pipeline and the Python lines of the card run on the code in the folder.

    Args:
        examples: sentences and the translations that must come out.

    Raises:
        UserError: it does not load, or translates otherwise.
    """
    sources, expected = map(list, zip(*examples, strict=True))
    for how, code in (("without", "transformers_modules"), ("installed", "vaswani")):
        said = _run(folder, repo_id, sources, how)
        where = "with this package" if how == "installed" else "without this package"
        if said["code"] != code:
            raise UserError(f"{folder} runs code of {said['code']} {where}, not of {code}: it is not self-contained")
        for what, outputs in said["found"].items():
            if outputs != expected[: len(outputs)] or not outputs:
                raise UserError(
                    f"{folder} translates otherwise in a clean process {where}: {what} gave {outputs[:1]}, not {expected[:1]}"
                )


def _run(folder: Path, repo_id: str, sources: list[str], how: str) -> dict:
    """What the clean process says. It sees an empty folder, no network, and a cache of its own for the code."""
    with tempfile.TemporaryDirectory() as empty:
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{empty}/modules", "TQDM_DISABLE": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if how == "installed" else {}
        command = [sys.executable, "-c", CLEAN_PROCESS, str(folder.absolute()), repo_id, json.dumps(sources), how]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            f"{folder} does not work in a clean process ({how} vaswani): {reason[:300]}".replace("installed", "with")
        )
    return json.loads(done.stdout.splitlines()[-1])
