"""The folder that is published: weights, tokenizer, code, card and record of a run, whole and in one place."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from .cards import Statement, bibtex, make_card
from .hub import save_for_hub
from .own_sentences import as_trained, draw_attention, sentences, translated
from .plots import training_curves
from .prepared import sha256
from .publish_checks import inspect, published, verify
from .run_config import UserError
from .run_folder import code_version
from .run_record import RunRecord, cleaned
from .translation import load

MARK = ".assembled.json"  # from what the folder was made, and what is in it; never published
RECORD = ("config.yaml", "environment.json", "data.json", "metrics.jsonl", "results.json", "bleu_curve.png")


def assemble(
    record: RunRecord, said: Statement, output: Path, citation_file: Path, given: Sequence[str] = (), log=print
) -> Path:
    """Makes the folder, checked and verified, unless it stands there already, made from the same things and unchanged.

    Args:
        given: sentences of the publisher's own writing that the card shows.

    Raises:
        UserError: something in it must not be published, or it does not work in a clean process; or `output` is
            something else.
    """
    mark, wanted = output / MARK, _fingerprint(record, said, citation_file, given)
    if output.exists() and not mark.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and was not made by publish.py: choose another --output")
    if mark.exists() and json.loads(mark.read_text(encoding="utf-8")) == {"from": wanted, "files": digests(output)}:
        log(f"assembled and verified before: {output}")
        return output
    work = output.with_name(f".{output.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        examples = _fill(work, record, said, citation_file, given)
        inspect(work)
        log("inspected: no secrets, no paths of this machine, nothing but safetensors and text")
        verify(work, said.repo_id, examples)
        log("verified in clean processes, with and without this package: loads, translates alike, the card's lines run")
        (work / MARK).write_text(json.dumps({"from": wanted, "files": digests(work)}, indent=2), encoding="utf-8")
        shutil.rmtree(output, ignore_errors=True)
        os.replace(work, output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log(f"assembled: {output}")
    return output


def _fill(
    folder: Path, record: RunRecord, said: Statement, citation_file: Path, given: Sequence[str]
) -> list[tuple[str, str]]:
    """Writes everything into an empty folder; returns the sentences of the card and their translations."""
    model, tokenizer = load(str(record.model), device="cpu")
    source = record.languages[0]
    save_for_hub(model, tokenizer, folder)
    settings = cleaned(record.settings)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    for name, part in (("environment", record.environment), ("data", record.data), ("results", record.results)):
        text = json.dumps(cleaned(part), indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in record.metrics)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    name = said.repo_id.split("/")[-1]
    training_curves(record.metrics, folder / "curves.png", title=name)
    if (record.path / "bleu_curve.png").exists():
        shutil.copy(record.path / "bleu_curve.png", folder)
    shown = sentences(record.settings, source, given)
    form = (source, record.settings["tokenized"], record.lowercased)
    examples = translated(model, tokenizer, [as_trained(text, *form) for text in shown])
    draw_attention(
        model, tokenizer, examples[0][0], folder / "attention.png", f"{name}: where each token was read from"
    )
    make_card(record, said, shown[0], examples, bibtex(citation_file)).save(folder / "README.md")
    return examples


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that is published."""
    return {path.name: sha256(path) for path in published(folder)}


def _fingerprint(record: RunRecord, said: Statement, citation_file: Path, given: Sequence[str]) -> dict:
    """Changes with whatever the folder is made from."""
    files = [record.path / name for name in RECORD]
    files += [record.model / name for name in ("model.safetensors", "tokenizer.json", "generation_config.json")]
    inputs = {path.name: sha256(path) for path in [*files, citation_file] if path.exists()}
    template = sha256(Path(__file__).with_name("model_card.md"))
    return {
        "inputs": inputs,
        "said": asdict(said),
        "sentences": list(given),
        "code": [code_version()["digest"], template],
    }
