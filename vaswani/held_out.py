"""Section 6: the text that a score is about: a test set by its name, or the validation or test text of a run."""

import difflib
import socket
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import sacrebleu

from .corpora import read_pairs, set_name
from .run_config import RunConfig, UserError
from .text_lines import read_lines


class HeldOut(NamedTuple):
    name: str  # what records call it
    sources: list[str] | None
    references: list[str]
    tokenized: bool = False  # Moses-tokenised: to be scored as it stands


def split_of(config: RunConfig, split: str) -> HeldOut:
    """The "valid" or "test" text of a run, read again from where its config says that it is.

    Raises:
        UserError: it is not there.
    """
    pairs = [(pair["source"], pair["target"]) for pair in read_pairs(config.data, split, Counter())]
    kept = [pair for pair in pairs if all(text.strip() for text in pair)]  # as when the data was prepared
    if not kept:
        raise UserError(f"the {split} text of the run has no pair any more: give files with --source and --reference")
    sources, references = map(list, zip(*kept, strict=True))
    return HeldOut(set_name(config.data, split), sources, references, config.training.tokenized)


def testset(name: str, pair: str) -> HeldOut:
    """A test set by name, from sacreBLEU's folder or else its download. `pair`: as en-de.

    Raises:
        UserError: sacreBLEU knows no such set or pair, or cannot get it.
    """
    if name not in sacrebleu.DATASETS:
        close = difflib.get_close_matches(name, sacrebleu.DATASETS, n=3) or ["wmt14/full"]
        raise UserError(f"sacreBLEU has no test set {name!r}: try {', '.join(close)}; `sacrebleu --list` names all")
    dataset = sacrebleu.DATASETS[name]
    if pair not in dataset.langpairs:
        raise UserError(
            f"test set {name} has no {pair}, but {', '.join(dataset.langpairs)}: see --source_lang and --lang"
        )
    socket.setdefaulttimeout(30)
    try:
        paths = dataset.get_source_file(pair), dataset.get_reference_files(pair)[0]
    except (Exception, SystemExit) as error:  # a download has many ways to fail, and the user needs the reason
        raise UserError(
            f"cannot get test set {name}: {error}; connect to a network once (sacreBLEU keeps it), "
            f"or give files with --source and --reference"
        ) from error
    return HeldOut(name, *(list(read_lines(Path(path))) for path in paths))
