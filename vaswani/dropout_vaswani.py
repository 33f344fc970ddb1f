"""Section 5.4: residual dropout. On CPU with masks that are cheap to draw."""

import torch
from torch import nn

STEPS = 1 << 15  # probabilities are multiples of 1 / STEPS


def random_mask(x: torch.Tensor, dropped: int) -> torch.Tensor:
    """Ones and zeros in bfloat16, in the shape of x; each is zero with probability dropped / STEPS.

    From 16 random bits each, four to a number of torch's generator: a tenth of the time of `bernoulli_`, which draws
    one number each. Arithmetic in place on integers, as comparing and converting truth values is slow too.
    """
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
    bits = bits[: x.numel()].view(x.shape)
    bits >>= 1  # from -STEPS / 2 up to STEPS / 2
    torch.sub(dropped - STEPS // 2 - 1, bits, out=bits)  # negative: keep
    bits >>= 15  # all bits or none
    bits &= 0x3F80  # the bits of 1.0
    return bits.view(torch.bfloat16)


class VaswaniDropout(nn.Dropout):
    """P_drop of the elements become zero, the others are scaled by 1 / (1 - P_drop).

    On CPU the probability is rounded to 1/32,768, and the scale is that of the rounded one: the mean is kept exactly.
    """

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Dropout(x), or residual + Dropout(x); any shape."""
        if not self.training:
            return x if residual is None else residual + x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            dropped = super().forward(x)
            return dropped if residual is None else residual + dropped
        steps = round(self.p * STEPS)
        if steps in (0, STEPS):
            dropped = x * (1 - self.p)
            return dropped if residual is None else residual + dropped
        mask, scale = random_mask(x, steps), STEPS / (STEPS - steps)
        mask = mask.to(x.dtype)
        return (x * mask) * scale if residual is None else torch.addcmul(residual, x, mask, value=scale)


__all__ = ["VaswaniDropout"]
