"""The objective as one module: the same numbers as the model's logits and the loss by themselves."""

import pytest
import torch

from vaswani.loss import label_smoothed_cross_entropy
from vaswani.objective import Objective


@pytest.mark.parametrize("training", [True, False])
def test_the_objective_is_the_loss_of_the_logits(tiny_model, training):
    source = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]])
    labels = torch.tensor([[9, 10, 1], [11, 1, -100]])
    mask = source.ne(0).long()
    model = tiny_model().eval()
    objective = Objective(model, epsilon=0.1)
    objective.training = training  # the model itself stays without dropout
    loss = objective(source, mask, labels)
    logits = model(input_ids=source, attention_mask=mask, labels=labels).logits
    expected = label_smoothed_cross_entropy(logits, labels, 0.1 if training else 0.0)
    torch.testing.assert_close(tuple(loss), tuple(expected))
    assert loss.tokens == 5
