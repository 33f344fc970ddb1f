"""What all tests share: no network, one thread, and models small enough to reason about."""

import copy
import json
import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: idle threads do not spin

from pathlib import Path

import pytest
import small_corpus
import torch

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.prepared import prepare
from vaswani.run_config import read_config

torch.set_num_threads(1)  # models this small lose time on more

PAD, EOS = 0, 1


def pytest_configure(config):
    for name in ("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test"):
        config.addinivalue_line("markers", f"{name}: used inside transformers' common tests")


@pytest.fixture
def tiny_config():
    """A function: `tiny_config(d_k=5)` is a config of a few thousand parameters with that option changed."""

    def make(**options) -> VaswaniConfig:
        sizes = {"vocab_size": 31, "d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 2}
        return VaswaniConfig(**sizes | {"max_position_embeddings": 64} | options)

    return make


@pytest.fixture
def tiny_model(tiny_config):
    """A function: `tiny_model(**options)` is a model in evaluation mode, as if trained: no weight is zero, one or tiny.

    Freshly initialised models hide faults: their biases and pad row are zero, their attention is nearly uniform.
    """

    def make(*, seed: int = 0, **options) -> VaswaniForSeq2SeqLM:
        torch.manual_seed(seed)
        model = VaswaniForSeq2SeqLM(tiny_config(**options))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "embed" in name or "shared" in name or "lm_head" in name:
                    weight.normal_(std=model.config.d_model**-0.5)
                elif weight.ndim == 2:
                    weight.normal_(std=weight.shape[1] ** -0.5)
                else:
                    weight.normal_(mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.2)
        return model.eval()

    return make


@pytest.fixture
def sentences():
    """A function: `sentences(4, 7, 2)` is a right-padded batch of random token ids, each ending in EOS."""

    def make(*lengths: int, vocab_size: int = 31, seed: int = 0) -> torch.LongTensor:
        generator = torch.Generator().manual_seed(seed)
        batch = torch.full((len(lengths), max(lengths)), PAD)
        for row, length in zip(batch, lengths, strict=True):
            row[:length] = torch.randint(2, vocab_size, (length,), generator=generator)
            row[length - 1] = EOS
        return batch

    return make


@pytest.fixture(scope="session")
def translator():
    """A function: `translator()` is a fresh copy of a model trained for two seconds, with label smoothing.

    Token n means token 32 - n, in the same order. It has learned most of it, so that its outputs end, depend on the
    source, and differ between greedy and beam search; those of a random model repeat one token whatever the source.
    """
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "dropout": 0.0}
    trained = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=31, max_position_embeddings=64, **sizes))
    adam = torch.optim.Adam(trained.parameters(), betas=(0.9, 0.98))
    for step in range(200):
        adam.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 30)
        source = torch.randint(2, 31, (32, int(torch.randint(2, 10, ()))))
        source[:, -1] = EOS
        labels = torch.where(source == EOS, EOS, 32 - source)
        logits = trained(source, decoder_input_ids=trained.prepare_decoder_input_ids_from_labels(labels)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        adam.zero_grad()
        loss.backward()
        adam.step()
    trained.eval()

    def make(attn_implementation: str = "sdpa") -> VaswaniForSeq2SeqLM:
        model = copy.deepcopy(trained)
        model.set_attn_implementation(attn_implementation)
        return model

    return make


ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Numbers in words, the German in reverse order: to be learnt, the decoder has to look at the source.

    A folder with text and a config.yaml for training on it.
    """
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    seen = set()
    for split, size in (("train", 1500), ("valid", 40), ("test", 60)):
        lines = []
        while len(lines) < size:
            numbers = tuple(rng.randrange(10) for _ in range(rng.randint(2, 5)))
            if split == "train" or numbers not in seen:
                lines.append(numbers)
            if split == "train":
                seen.add(numbers)
        for lang, words, order in (("en", ENGLISH, 1), ("de", GERMAN, -1)):
            text = "".join(" ".join(words[i] for i in numbers[::order]) + "\n" for numbers in lines)
            (folder / f"{split}.{lang}").write_text(text, encoding="utf-8")
    config = {
        "data_dir": str(folder), "train_files": ["train"], "valid_files": ["valid"], "test_files": ["test"],
        "prepared_dir": str(folder / "prepared"), "vocab_size": 300, "d_model": 64, "d_ff": 128, "num_layers": 1,
        "num_heads": 4, "dropout": 0.0, "tokens_per_batch": 400, "warmup_steps": 100, "lr_factor": 0.4, "log_steps": 1,
        "eval_steps": 1000, "save_steps": 1000, "mixed_precision": "no", "num_beams": 2, "max_steps": 20,
        "figures": False, "eval_sentences": 5, "num_workers": 1,
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    prepare(read_config([str(folder / "config.yaml")]).data)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Training, validation and test text of a few lines, for `small_corpus.config`."""
    for split in ("train", "val", "test"):
        small_corpus.write(tmp_path / f"{split}.en", small_corpus.ENGLISH)
        small_corpus.write(tmp_path / f"{split}.de", small_corpus.GERMAN)
    return tmp_path
