"""The implementations that `train.py` measures. Each trains without end and calls `turn(target tokens)` after a step."""

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.compute
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from vaswani.batching import TokenBatches, collate
from vaswani.cpu import bound_kernel_caches, computes_bf16, fast_float32, keep_freed_memory
from vaswani.embedding_vaswani import sinusoids
from vaswani.loss import IGNORE
from vaswani.objective import Objective
from vaswani.optim import adam, set_rate
from vaswani.run_config import DataConfig, ModelSettings, RunConfig, TrainingConfig
from vaswani.starting import starting_model
from vaswani.tokenization_vaswani import train_tokenizer

PAD = 0


def any_tokenizer() -> PreTrainedTokenizerFast:
    """Texts are token ids already: it only says which id pads and which one ends."""
    return train_tokenizer(["a"], 300)


class Work(NamedTuple):
    sizes: dict
    dataset: Dataset  # input_ids, labels
    turn: Callable[[int], None]
    device: str
    options: argparse.Namespace


def lengths_of(dataset: Dataset, name: str) -> np.ndarray:
    return pyarrow.compute.list_value_length(dataset.data[name]).to_numpy()


def own_batches(work: Work) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    """Padded tensors of our batches and their target tokens, without end."""
    lengths = [lengths_of(work.dataset, name) for name in ("input_ids", "labels")]
    batches = TokenBatches(*lengths, tokens_per_batch=work.options.tokens_per_batch)
    for epoch in itertools.count():
        for batch in batches.epoch(epoch):
            tensors = collate(work.dataset, batch.micro_batches[0], PAD)
            yield {name: x.to(work.device) for name, x in tensors.items()}, batch.target_tokens


def ours(work: Work) -> None:
    """As scripts/train.py does it."""
    bf16 = computes_bf16() or work.device == "cuda"
    if work.device == "cpu":
        keep_freed_memory()
        bound_kernel_caches()
        fast_float32()
    sizes, chosen = dict(work.sizes), work.options
    training = TrainingConfig(
        vocab_multiple=sizes.pop("vocab_size"), attention=chosen.attention or "auto", torch_compile=chosen.compile,
        gradient_checkpointing=chosen.gradient_checkpointing,
    )  # fmt: skip
    config = RunConfig("benchmark", DataConfig(), ModelSettings(**sizes), training)
    model = starting_model(config, any_tokenizer(), 0, torch.device(work.device)).to(work.device)
    objective, optimizer = Objective(model).train(), adam(model.parameters(), fused=True)
    set_rate(optimizer, 1e-4)
    for inputs, tokens in own_batches(work):
        with torch.autocast(work.device, torch.bfloat16, enabled=bf16):
            loss = objective(**inputs)
        (loss.smoothed / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        work.turn(tokens)


def marian_model(work: Work, attention: str = "sdpa") -> MarianMTModel:
    sizes = work.sizes
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", sizes["num_layers"]), ("attention_heads", sizes["num_heads"]), ("ffn_dim", sizes["d_ff"])
        )
    }  # fmt: skip
    config = MarianConfig(
        vocab_size=sizes["vocab_size"], d_model=sizes["d_model"], dropout=sizes["dropout"], activation_function="relu",
        scale_embedding=True, pad_token_id=PAD, eos_token_id=1, decoder_start_token_id=PAD, **sides,
    )  # fmt: skip
    config._attn_implementation = attention
    return MarianMTModel(config)


def plain_loop(work: Work, model: nn.Module, logits: Callable, bf16: bool) -> None:
    """A loop as tutorials have it, on our batches."""
    model.to(work.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    for inputs, tokens in own_batches(work):
        labels = inputs["labels"]
        shifted = nn.functional.pad(labels, (1, 0), value=PAD)[:, :-1]
        with torch.autocast(work.device, torch.bfloat16, enabled=bf16):
            scores = logits(inputs["input_ids"], inputs["attention_mask"], shifted.masked_fill(shifted == IGNORE, PAD))
            loss = nn.functional.cross_entropy(
                scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, label_smoothing=0.1
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del scores, loss  # the logits of a base model are large, and the others want memory in their turn
        work.turn(tokens)


def marian(work: Work, attention: str = "sdpa", bf16: bool = False) -> None:
    model = marian_model(work, attention)
    plain_loop(
        work, model, lambda ids, mask, shifted: model(ids, attention_mask=mask, decoder_input_ids=shifted).logits, bf16
    )


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with tied embeddings and sinusoids, in which it leaves its user alone."""

    def __init__(self, sizes: dict):
        super().__init__()
        d, layers = sizes["d_model"], sizes["num_layers"]
        self.embed = nn.Embedding(sizes["vocab_size"], d)
        nn.init.normal_(self.embed.weight, std=d**-0.5)
        self.positions = nn.Buffer(sinusoids(512, d).float())
        self.dropout = nn.Dropout(sizes["dropout"])
        self.transformer = nn.Transformer(
            d, sizes["num_heads"], layers, layers, sizes["d_ff"], sizes["dropout"], batch_first=True
        )

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embed(ids) * self.embed.embedding_dim**0.5 + self.positions[: ids.shape[1]])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        padding, length = mask.eq(0), shifted.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        output = self.transformer(
            self.embedded(ids), self.embedded(shifted), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # fmt: skip
        return output @ self.embed.weight.t()


def torch_transformer(work: Work) -> None:
    model = TorchTransformer(work.sizes)
    plain_loop(work, model, model, bf16=False)


class CountingTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that knows the target tokens of its last step."""

    tokens = 0

    def training_step(self, model, inputs, *arguments):
        self.tokens = int(inputs["labels"].ne(IGNORE).sum())
        return super().training_step(model, inputs, *arguments)


class AfterStep(TrainerCallback):
    trainer: CountingTrainer

    def __init__(self, turn: Callable[[int], None]):
        self.turn = turn

    def on_step_end(self, arguments, state, control, **_):
        self.turn(self.trainer.tokens)


def trainer(work: Work, bf16: bool = False) -> None:
    """Seq2SeqTrainer with its defaults: random batches, of as many sentences as hold `tokens_per_batch` target tokens."""
    model = marian_model(work)
    lengths = lengths_of(work.dataset, "labels")
    collator, after = DataCollatorForSeq2Seq(any_tokenizer(), model=model), AfterStep(work.turn)
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            folder, per_device_train_batch_size=round(work.options.tokens_per_batch / np.mean(lengths)),
            max_steps=1_000_000, label_smoothing_factor=0.1, bf16=bf16, use_cpu=work.device == "cpu", report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        after.trainer = CountingTrainer(
            model, arguments, train_dataset=work.dataset, data_collator=collator, callbacks=[after]
        )
        after.trainer.train()


CONTENDERS: dict[str, Callable[[Work], None]] = {
    "ours": ours,
    "trainer": trainer,
    "trainer_bf16": lambda work: trainer(work, bf16=True),
    "torch_transformer": torch_transformer,
    "marian": marian,
    "marian_bf16": lambda work: marian(work, "eager", bf16=True),
}
DESCRIPTIONS = {
    "ours": "scripts/train.py's model, batches and optimizer",
    "trainer": "MarianMTModel, Seq2SeqTrainer, its random batches, float32",
    "trainer_bf16": "the same, bf16=True",
    "torch_transformer": "torch.nn.Transformer in a plain loop on our batches, float32",
    "marian": "MarianMTModel in a plain loop on our batches, float32",
    "marian_bf16": "the same, bfloat16 autocast, attn_implementation='eager'",
}
