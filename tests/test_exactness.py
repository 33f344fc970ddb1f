"""An update means the same however many processes and micro-batches it is made of; and it is the paper's update."""

import json
import math

import pytest
import torch
from datasets import load_from_disk
from torch import nn
from torch.nn import functional as F
from trainers import arguments, metrics, train_here, train_together, weights
from transformers import AutoTokenizer

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.batching import TokenBatches
from vaswani.embedding_vaswani import sinusoids


def in_float64(train, rank: int) -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_processes_and_micro_batches_change_nothing(corpus, tmp_path, dtype, tolerance):
    """20 updates of 1 process x 4 micro-batches, 2 x 2 and 4 x 1.

    The biases of the keys are left out: adding a vector to every key changes no attention weight, so their true gradient
    is zero, and Adam with an epsilon of 1e-9 makes steps out of what rounding leaves of it.
    """
    hook = in_float64 if dtype == "float64" else None
    runs = {}
    for world, micro_batches in ((1, 4), (2, 2), (4, 1)):
        run = tmp_path / f"{world}"
        argv = arguments(corpus, run, max_tokens=135, eval_steps=20)
        train_together(argv, tmp_path / f"{world}.txt", world, hook)
        assert json.loads((run / "environment.json").read_text())["processes"] == world
        counts = metrics(run, "micro_batches")
        assert len(counts) == 20 and round(sum(counts) / 20) == micro_batches
        runs[world] = weights(run)
        assert next(iter(runs[world].values())).dtype == getattr(torch, dtype)
    for world in (2, 4):
        assert metrics(tmp_path / f"{world}") == pytest.approx(
            metrics(tmp_path / "1"), rel=1e-6 if hook is None else 1e-12
        )
        assert metrics(tmp_path / f"{world}", "valid_nll") == pytest.approx(
            metrics(tmp_path / "1", "valid_nll"), rel=1e-5
        )
        for name, weight in runs[1].items():
            if not name.endswith("k_proj.bias"):
                difference = (runs[world][name] - weight).norm() / weight.norm()
                assert difference < tolerance, (world, name, float(difference))


class Reference(nn.Module):
    """The Transformer out of torch's own modules, with the weights of ours."""

    def __init__(self, model: VaswaniForSeq2SeqLM):
        super().__init__()
        config = model.config
        options = {"dropout": 0.0, "activation": "relu", "layer_norm_eps": config.layer_norm_eps, "batch_first": True}
        sizes = (config.d_model, config.num_heads, config.d_ff)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **options), config.num_layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), config.num_decoder_layers)
        self.embedding = nn.Parameter(model.lm_head.weight.detach().clone())
        self.positions = sinusoids(64, config.d_model)
        with torch.no_grad():
            for theirs, ours in zip(
                (*self.encoder.layers, *self.decoder.layers),
                (*model.model.encoder.layers, *model.model.decoder.layers),
                strict=True,
            ):
                pairs = [
                    ("self_attn", "self_attn"),
                    *([("multihead_attn", "encoder_attn")] if hasattr(ours, "encoder_attn") else []),
                ]
                for name, source in pairs:
                    attention, own = getattr(theirs, name), getattr(ours, source)
                    projections = (own.q_proj, own.k_proj, own.v_proj)
                    attention.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
                    attention.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
                    attention.out_proj.load_state_dict(own.out_proj.state_dict())
                theirs.linear1.load_state_dict(ours.fc1.state_dict())
                theirs.linear2.load_state_dict(ours.fc2.state_dict())  # every LayerNorm starts from ones and zeros

    def embed(self, ids: torch.Tensor, pad: int) -> torch.Tensor:
        vectors = self.embedding[ids] * self.embedding.shape[1] ** 0.5
        return vectors * (ids != pad)[..., None] + self.positions[: ids.shape[1]]

    def forward(self, source: torch.Tensor, target: torch.Tensor, pad: int) -> torch.Tensor:
        shifted = F.pad(target, (1, -1), value=pad)
        hidden = source == pad
        memory = self.encoder(self.embed(source, pad), src_key_padding_mask=hidden)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.decoder(
            self.embed(shifted, pad), memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=hidden
        )
        return states @ self.embedding.T


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_two_hundred_losses_equal_those_of_a_plain_loop(corpus, tmp_path, float64):
    """torch's own modules, optimizer and loss, and the formulas as the paper prints them; the same weights and order.

    In float64: in float32 two equal trainings part by rounding alone, here by 1e-4 after about a hundred steps.
    """
    run = tmp_path / "run"
    assert train_here(corpus, run, max_steps=200, num_layers=2) == 0
    prepared = corpus / "prepared" / json.loads((run / "environment.json").read_text())["data"]
    tokenizer, pairs = AutoTokenizer.from_pretrained(prepared / "tokenizer"), load_from_disk(str(prepared / "train"))
    torch.manual_seed(1)
    sizes = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
    model = Reference(VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=len(tokenizer), **sizes)))
    adam = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    batches = TokenBatches(pairs["source_length"][:], pairs["target_length"][:], tokens_per_batch=400, seed=1)
    order = [batch.micro_batches[0] for epoch in range(50) for batch in batches.epoch(epoch)][:200]
    pad, losses = tokenizer.pad_token_id, []
    for step, rows in enumerate(order, start=1):
        source, target = (
            nn.utils.rnn.pad_sequence(
                [torch.tensor(ids) for ids in pairs[rows][side]], batch_first=True, padding_value=pad
            )
            for side in ("input_ids", "labels")
        )
        logits = model(source, target, pad)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad, label_smoothing=0.1)
        losses.append(loss.item())
        adam.param_groups[0]["lr"] = 0.4 * 64**-0.5 * min(step**-0.5, step * 100**-1.5)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert losses[-1] < losses[0] - 2 and not math.isnan(losses[-1])
    assert metrics(run) == pytest.approx(losses, rel=1e-4)
