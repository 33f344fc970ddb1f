"""A small corpus in files, and sentences that a translator meets, for the tests of several modules."""

import gzip
from pathlib import Path

from vaswani.run_config import DataConfig

SENTENCES = [
    "The man reads a book.",
    "",
    "Two dogs run.",
    " \t ",
    "It rains in the city and the dogs run home.",
    "A house.",
]
ENGLISH = ["A house.", "Two dogs run.", "", "The man reads a book.", "It rains."]
GERMAN = ["Ein Haus.", "Zwei Hunde rennen.", "Leer.", "Der Mann liest ein Buch.", "Es regnet."]


def write(path: Path, lines: list[str] | bytes) -> Path:
    data = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def config(folder: Path, **changes) -> DataConfig:
    files = {"train_files": ["train"], "valid_files": ["val"], "test_files": ["test"]}
    values = {"data_dir": str(folder), "vocab_size": 300, "prepared_dir": str(folder / "prepared"), **files, **changes}
    return DataConfig(**values)
