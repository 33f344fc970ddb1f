"""Section 5.3: Adam and the learning-rate formula."""

from collections.abc import Iterable

import torch


def learning_rate(step: int, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> float:
    """lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), equation (3); the first update is step 1.

    `factor` multiplies it: 1 is the paper. The authors' code writes 5000 * 0.1 / 500, which is the same 1.
    """
    if step < 1 or warmup_steps < 1:
        raise ValueError(f"step={step} and warmup_steps={warmup_steps} count from 1")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def adam(
    parameters: Iterable[torch.nn.Parameter],
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    fused: bool | None = None,
) -> torch.optim.Adam:
    """Adam with beta1 = 0.9, beta2 = 0.98, eps = 1e-9; no weight decay. Set the rate of each step with `set_rate`."""
    return torch.optim.Adam(parameters, lr=0.0, betas=betas, eps=eps, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
