"""The objective as one module: the same numbers as the model's logits and the loss by themselves, and as ever."""

import itertools

import pytest
import torch

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.loss import label_smoothed_cross_entropy
from vaswani.objective import Objective
from vaswani.optim import adam, learning_rate, set_rate

SOURCE = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]])
LABELS = torch.tensor([[9, 10, 1], [11, 1, -100]])
MASK = SOURCE.ne(0).long()


def plain_loss(model, source, mask, labels, epsilon):
    """By way of all logits."""
    logits = model(input_ids=source, attention_mask=mask, labels=labels).logits
    return label_smoothed_cross_entropy(logits, labels, epsilon)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_the_objective_is_the_loss_of_the_logits(tiny_model, training, tied):
    model = tiny_model(tie_word_embeddings=tied).double()
    objective = Objective(model, epsilon=0.1)
    objective.training = training  # the model itself stays without dropout
    loss = objective(SOURCE, MASK, LABELS)
    expected = plain_loss(model, SOURCE, MASK, LABELS, 0.1 if training else 0.0)
    torch.testing.assert_close(tuple(loss), tuple(expected))
    assert loss.tokens == 5
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss.smoothed, parameters), torch.autograd.grad(expected.smoothed, parameters)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(tiny_model, dtype):
    objective = Objective(tiny_model()).train()
    objective.model.eval()
    exact = objective(SOURCE, MASK, LABELS)
    with torch.autocast("cpu", dtype):
        loss = objective(SOURCE, MASK, LABELS)
    assert float(loss.smoothed.detach()) == pytest.approx(float(exact.smoothed.detach()), rel=0.02)
    weight = objective.model.lm_head.weight
    gradient, truth = (torch.autograd.grad(each.smoothed, weight)[0] for each in (loss, exact))
    assert float((gradient - truth).norm()) < 0.05 * float(truth.norm())


def test_a_process_without_targets_takes_part(tiny_model):
    objective = Objective(tiny_model(dropout=0.1)).train()
    loss = objective(SOURCE, MASK, torch.full_like(LABELS, -100))
    loss.smoothed.backward()
    assert loss.tokens == 0 and float(loss.nll) == 0
    gradients = [parameter.grad for parameter in objective.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_checkpointed_activations_change_nothing(tiny_model):
    gradients = []
    for checkpointing in (False, True):
        objective = Objective(tiny_model(dropout=0.3)).train()
        if checkpointing:
            objective.model.activation_checkpointing_enable()
        torch.manual_seed(4)
        objective(SOURCE, MASK, LABELS).smoothed.backward()
        gradients.append([parameter.grad for parameter in objective.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


# Loss per token at steps 1, 10, 20, 30, 40, 50 of the run below, in float64.
GOLDEN = [2.97630964, 2.24832071, 1.97678501, 1.87265031, 1.68700583, 1.49741725]


def curve(loss_of) -> list[float]:
    """Fifty updates without dropout: sequences of numbers, each to be subtracted from 14, of several lengths."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=13, max_position_embeddings=16, **sizes)).double().train()
    optimizer = adam(model.parameters())
    losses = []
    for step in range(1, 51):
        generator = torch.Generator().manual_seed(step)
        source = torch.randint(2, 13, (32, 6), generator=generator)
        for row, length in zip(source, itertools.cycle((3, 6, 5)), strict=False):
            row[length - 1], row[length:] = 1, 0
        labels = torch.where(source.gt(1), 14 - source, torch.where(source.eq(0), -100, source))
        set_rate(optimizer, learning_rate(step, 32, warmup_steps=20, factor=0.5))
        loss = loss_of(model, source, source.ne(0).long(), labels)
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.smoothed.detach() / loss.tokens))
    return losses


def test_fifty_steps_are_as_they_ever_were():
    """What makes training faster must not change what is computed."""
    fast = curve(lambda model, *inputs: Objective(model).train()(*inputs))
    plain = curve(lambda model, *inputs: plain_loss(model, *inputs, 0.1))
    assert fast == pytest.approx(plain, rel=1e-10)
    assert [fast[0], *fast[9::10]] == pytest.approx(GOLDEN, rel=1e-6)
