"""One YAML = one run: flat keys, read into three frozen dataclasses; the command line wins; unknown keys are errors."""

import argparse
import dataclasses
import difflib
import os
import re
import sys
import typing
from argparse import ArgumentDefaultsHelpFormatter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser
from transformers.utils import logging


class UserError(Exception):
    """Something the user can mend. The message is one sentence that says what to do next; scripts exit with code 2."""


def exit_code(work: Callable[[], None]) -> int:
    """Does a script's work. A UserError becomes one sentence on standard error and exit code 2."""
    logging.disable_progress_bar()
    try:
        work()
    except BrokenPipeError:
        raise
    except (UserError, OSError) as error:  # an OSError names its file and reason: no permission, no space, no folder
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def positive(text: str) -> int:
    """An argparse type."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


@contextmanager
def as_user_error(*more: type[Exception]) -> Iterator[None]:
    """What our own modules say of bad values, and `more` kinds of errors, become a sentence for the user."""
    try:
        yield
    except (ValueError, StrictDataclassError, *more) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(lines[-1].strip().removeprefix("ValueError: ")) from None


def option(default: Any, text: str, **metadata) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


def check(right: bool, sentence: str) -> None:
    if not right:
        raise UserError(sentence)


@dataclass(frozen=True)
class DataConfig:
    """Section 5.1: the parallel text and its vocabulary."""

    source_lang: str = option("en", "language code of the source")
    target_lang: str = option("de", "language code of the target")
    reverse: bool = option(False, "translate from target_lang to source_lang instead")
    recipe: str | None = option(None, "data of the paper by name; `scripts/fetch.py --list` shows them")
    recipe_source: str = option(
        "archives",
        "where a recipe's text is from: the original archives (downloaded), datasets of the Hub, or files in data_dir",
        choices=["archives", "hub", "files"],
    )
    dataset: str | None = option(
        None, "'cldr' (embedded, no download), a dataset of the Hub by name, or a folder saved by `datasets`"
    )
    dataset_config: str | None = option(None, "configuration of the Hub dataset, as 'de-en'")
    train_split: str = option("train", "split of the dataset to train on")
    valid_split: str = option("validation", "split of the dataset to validate on")
    test_split: str = option("test", "split of the dataset to test on")
    data_dir: str | None = option(None, "folder of the files below; when given, files are read and not the dataset")
    train_files: list[str] | None = option(
        None,
        "training text, one or several of: PREFIX (reads PREFIX.SOURCE and PREFIX.TARGET), two aligned files, a .tsv, "
        ".jsonl, .parquet or .tmx, two .sgm of a test set; plain, .gz, .xz, .bz2 or .zst",
    )
    valid_files: list[str] | None = option(None, "validation text, given likewise")
    test_files: list[str] | None = option(None, "test text, given likewise")
    on_bad_utf8: str = option("error", "bytes that are not UTF-8", choices=["error", "skip", "replace"])
    unicode_form: str = option("none", "normal form that all text is put in", choices=["none", "NFC", "NFKC"])
    min_words: int = option(
        1, "training pairs with a side of fewer words are dropped; words are what white space divides"
    )
    max_words: int | None = option(
        None, "training pairs with a longer side, in words, are dropped (ConvS2S, EN-FR: 175)"
    )
    max_ratio: float | None = option(
        None, "training pairs are dropped whose one side has more than this times the words of the other (EN-FR: 1.5)"
    )
    drop_identical: bool = option(False, "drop training pairs whose two sides are the same words")
    drop_duplicates: bool = option(False, "drop training pairs that occurred before, both sides the same")
    min_script: float | None = option(
        None, "least share of a side's letters in the script of its language, or the training pair is dropped (as 0.5)"
    )
    drop_overlap: str = option(
        "none",
        "drop training pairs with a side of four or more words that is a line of the validation or test text, but for "
        "case and white space, or that shares ten words in a row with it",
        choices=["none", "lines", "10-grams"],
    )
    tokenizer: str | None = option(None, "a tokenizer to take over, a folder or a name on the Hub; none: learn one")
    vocab_size: int = option(37000, "entries of the vocabulary shared by source and target")
    vocab_sample: int = option(1_000_000, "pairs, evenly spread over the corpus, that the vocabulary is learned from")
    split_digits: bool = option(False, "never merge digits in the vocabulary, so that unseen numbers can be copied")
    max_length: int = option(256, "training pairs with a longer side, in tokens, are dropped (authors' code: 256)")
    prepared_dir: str = option("prepared", "folder in which tokenised corpora are kept, one sub-folder each")
    num_workers: int | None = option(None, "processes that clean and tokenise; none: one for each core")

    @property
    def languages(self) -> tuple[str, str]:
        """Of what is translated and into what."""
        return (self.target_lang, self.source_lang) if self.reverse else (self.source_lang, self.target_lang)

    @property
    def workers(self) -> int:
        return self.num_workers or (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        )

    def __post_init__(self):
        languages = f"source_lang and target_lang are both {self.source_lang!r}: the model would learn to copy"
        check(self.source_lang != self.target_lang, languages)
        for language in self.languages:
            known = bool(re.fullmatch(r"[A-Za-z0-9_-]+", language))
            check(known, f"{language!r} is no language code: it is the last part of file names, as in train.en")
        check(self.min_words >= 1, f"min_words={self.min_words} must be at least 1")
        fewest = f"max_words={self.max_words} is less than min_words={self.min_words}: no pair would be left"
        check(self.max_words is None or self.max_words >= self.min_words, fewest)
        check(
            self.max_ratio is None or self.max_ratio >= 1,
            f"max_ratio={self.max_ratio} must be at least 1: longer/shorter",
        )
        in_range = self.min_script is None or 0 < self.min_script <= 1
        check(in_range, f"min_script={self.min_script} is a share of letters and must lie in (0, 1]")
        for name in ("vocab_sample", "num_workers"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"{name}={value} must be at least 1")
        check(self.max_length >= 2, f"max_length={self.max_length} leaves no room for a word and the end token")


@dataclass(frozen=True)
class ModelSettings:
    """Section 3 and Table 3. The defaults are the base model; see VaswaniConfig for what each one means."""

    d_model: int = option(512, "width of every sub-layer output")
    d_ff: int = option(2048, "inner width of the feed-forward networks")
    num_layers: int = option(6, "N: encoder layers, and decoder layers unless given apart")
    num_decoder_layers: int | None = option(None, "decoder layers, where they differ")
    num_heads: int = option(8, "h: attention heads")
    d_k: int | None = option(None, "width of a query or key in one head")
    d_v: int | None = option(None, "width of a value in one head")
    dropout: float = option(0.1, "P_drop")
    position_encoding: str = option("interleaved", "positions", choices=["interleaved", "tensor2tensor", "learned"])
    max_position_embeddings: int = option(1024, "positions in a learned table; sinusoids have no limit")
    attention_bias: bool = option(True, "biases in the attention projections")
    layer_norm_eps: float = option(1e-6, "added to the variance in layer normalisation")
    tie_word_embeddings: bool = option(True, "one matrix for both embeddings and the softmax")


@dataclass(frozen=True)
class TrainingConfig:
    """Sections 5.2 to 6.1: how the model is trained, watched and scored."""

    output_dir: str = option("runs/default", "the run folder")
    fresh: bool = option(False, "start over: an earlier run in output_dir is moved aside, not continued")
    init_from: str | None = option(
        None, "start from the weights, with the tokenizer, of this model: a folder, or a name on the Hub"
    )
    dry_run: bool = option(False, "show config, size, batches and expected hours; no run folder is made")
    overfit_one_batch: bool = option(False, "only see whether the model can learn one batch by heart")
    seed: int = option(1, "of the initial weights, the order of the data and dropout")
    max_steps: int = option(100_000, "optimizer updates")
    tokens_per_batch: int = option(25_000, "mean target tokens per update, over all devices and accumulation")
    batching: str = option(
        "length",
        "which pairs share a batch: nearly equal lengths, or the authors' buckets (base, big)",
        choices=["length", "tensor2tensor", "tensor2tensor_big"],
    )
    vocab_multiple: int = option(
        1, "rows of the vocabulary are padded to a multiple of this (8192: the 40,960 of Table 3's parameter counts)"
    )
    max_tokens: int | None = option(None, "padded positions a side in one micro-batch of one device; none: no limit")
    warmup_steps: int = option(4000, "steps of linear warm-up in the learning-rate formula")
    lr_factor: float = option(1.0, "multiplies the learning-rate formula; 1 is the paper")
    label_smoothing: float = option(0.1, "epsilon_ls")
    smoothing_over: str = option("all", "entries that share epsilon_ls", choices=["all", "others"])
    adam_beta1: float = option(0.9, "beta_1")
    adam_beta2: float = option(0.98, "beta_2")
    adam_eps: float = option(1e-9, "epsilon")
    mixed_precision: str = option(
        "auto", "autocast; auto: bf16 where the hardware computes it", choices=["auto", "no", "bf16", "fp16"]
    )
    attention: str = option(
        "auto", "attention backend; auto: eager on CPU, sdpa elsewhere", choices=["auto", "eager", "sdpa"]
    )
    gradient_checkpointing: bool = option(
        False, "keep only the layers' inputs and compute the rest again: less memory, a third more time"
    )
    torch_compile: bool = option(False, "compile encoder and decoder (minutes at the start; needs a compiler)")
    find_max_tokens: bool = option(False, "find the largest max_tokens that fits into memory, and stop")
    num_threads: int | None = option(None, "CPU threads per process; none: the cores shared by the local processes")
    process_timeout: float = option(600.0, "seconds to wait for another process before the run ends")
    log_steps: int = option(50, "steps between lines of the log")
    report_to: list[str] | None = option(None, "trackers: tensorboard, wandb, or another that accelerate knows")
    eval_steps: int = option(1000, "steps between validations")
    eval_sentences: int | None = option(None, "validation sentences that are translated for BLEU; none: all")
    metric_for_best: str = option("bleu", "what is best at validation", choices=["bleu", "loss"])
    early_stopping_patience: int | None = option(
        None, "end after so many validations in a row that were not the best; none: train max_steps"
    )
    figures: bool = option(True, "draw curves and attention at each validation")
    save_steps: int = option(1500, "steps between checkpoints (1,500 base or 600 big were 10 minutes for the paper)")
    keep_checkpoints: int = option(20, "checkpoints that are kept: the newest of those at save_steps")
    keep_best: int = option(0, "and the best ones, by the validation of the same step")
    keep_every: int | None = option(None, "and those of steps that this divides, for averaging")
    tokenized: bool = option(False, "the text is Moses-tokenised: it is scored as it stands, and not tokenised again")
    num_beams: int = option(4, "beam for the test set, and the trained model's default")
    length_penalty: float = option(0.6, "alpha of the length penalty, likewise")
    num_samples: int = option(5, "translations that are printed")

    def __post_init__(self):
        counts = ("max_steps", "tokens_per_batch", "warmup_steps", "log_steps", "eval_steps", "save_steps")
        optional = ("max_tokens", "num_threads", "eval_sentences", "early_stopping_patience", "keep_every")
        for name in (*counts, "vocab_multiple", "keep_checkpoints", "num_beams", *optional):
            if (value := getattr(self, name)) is not None:
                check(value >= 1, f"{name}={value} must be at least 1")
        check(0 <= self.label_smoothing < 1, f"label_smoothing={self.label_smoothing} must lie in [0, 1)")
        check(self.lr_factor > 0, f"lr_factor={self.lr_factor} must be positive")
        check(self.keep_best >= 0, f"keep_best={self.keep_best} must be at least 0")
        check(self.process_timeout > 0, f"process_timeout={self.process_timeout} must be positive")


class RunConfig(NamedTuple):
    name: str  # of the YAML file
    data: DataConfig
    model: ModelSettings
    training: TrainingConfig
    given: frozenset[str] = frozenset()  # keys that the file or the command line names: the others are defaults


GROUPS = (DataConfig, ModelSettings, TrainingConfig)
NOT_GIVEN = object()


class Parser(HfArgumentParser):
    """One that says what is wrong in a sentence, without the usage of some eighty settings."""

    def error(self, message: str) -> None:
        message, hint = re.sub(r"^argument --(\w+)[^:]*: ", r"\1: ", message.rstrip(".")), ""
        if unknown := re.search(r"^unrecognized arguments: .*?(--[^\s=]+)", message):
            hint = did_you_mean(unknown[1], self._option_string_actions)
        raise UserError(f"{message}{hint or '; --help explains every setting'}")


def did_you_mean(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def read_config(argv: list[str] | None = None) -> RunConfig:
    """Parses `CONFIG.yaml [--key value ...]`.

    Raises:
        UserError: the file is missing or not flat YAML, or has a key that no setting has; a value is of the wrong type, in
            the file or on the command line, or the latter has an unknown option.
    """
    parser = Parser(GROUPS, formatter_class=ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    parser.add_argument("config", help="a YAML file of the settings below, as those in configs/")
    config = Path(parser.parse_args(argv).config)
    types = {key: kind for group in GROUPS for key, kind in typing.get_type_hints(group).items()}
    from_file, given = [], set()
    for key, value in read_yaml(config).items():
        if key not in types:
            hint = did_you_mean(str(key), types) or "; see --help for all keys"
            raise UserError(f"{config} has an unknown key {key!r}{hint}")
        if value is not None and value != []:
            given.add(key)
            from_file += [f"--{key}", *_words(value, types[key], f"{config}: {key}")]
    try:
        known = parser.parse_args([str(config), *from_file])
    except UserError as error:
        raise UserError(f"{config}: {error}") from None
    settings = parser.parse_args(argv, namespace=known)
    groups = [group(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(group)}) for group in GROUPS]
    seen = vars(parser.parse_args(argv, namespace=argparse.Namespace(**dict.fromkeys(types, NOT_GIVEN))))
    given |= {name for name in types if seen[name] is not NOT_GIVEN}
    return RunConfig(config.stem, *groups, given=frozenset(given))


def _words(value: Any, wanted: Any, where: str) -> list[str]:
    """A value of the file as words of a command line."""
    several = isinstance(value, list)
    check(not several or list[str] in typing.get_args(wanted), f"{where} takes one value, not a list")
    values = value if several else [value]
    check(
        wanted is bool or not any(isinstance(x, bool) for x in values),
        f"{where}: YAML reads yes, no, on, off, true and false as truth values: write what is meant in quotes, as 'no'",
    )
    return list(map(str, values))


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no config {path}: give one of configs/*.yaml, or a file of your own") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as YAML: {' '.join(str(error).split())}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict) or any(isinstance(value, dict) for value in settings.values()):
        raise UserError(f"{path} must hold flat `key: value` lines, as the files in configs/ do")
    return settings


def defaults() -> dict[str, Any]:
    """Every setting, as it is where nobody says otherwise."""
    return flat(RunConfig("", DataConfig(), ModelSettings(), TrainingConfig()))


def flat(config: RunConfig) -> dict[str, Any]:
    return {name: value for group in config[1:4] for name, value in dataclasses.asdict(group).items()}


def write_yaml(path: Path, config: RunConfig) -> None:
    """The resolved settings, readable by `read_config` again."""
    write_whole(path, yaml.safe_dump(flat(config), sort_keys=False, allow_unicode=True))


def write_whole(path: Path, text: str) -> None:
    """Writes beside the file and puts that in its place: whenever this ends, the file has all of the old or of the new text."""
    work = unfinished(path)
    try:
        with work.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(work, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def unfinished(path: Path) -> Path:
    """Where `write_whole` writes; what a killed process left there is written over."""
    return path.with_name(f".{path.name}")
