"""Decoding on a CPU is reading weights: matrices of a few rows times matrices of millions of entries. oneDNN multiplies
faster with weights that it has laid out for itself, by 1.1 times for a hundred rows and 2 to 3 times for four."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import nn
from torch.nn.functional import pad

SMALLEST = {torch.float32: 2**17, torch.bfloat16: 2**14, torch.int8: 2**18}  # weights in a matrix that gain by it
FULL = 256  # outputs: whole blocks of the vocabulary are 4 % faster; also whole blocks of the search
TINY = torch.finfo(torch.float32).tiny
WHOLE = 1.5 * 2.0**23  # a float32 of this size is rounded to an integer, which stands in its last bits


class Product:
    """x -> x W^T + b."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, None), bias

    def __call__(self, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, then, [], "")

    def plus(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


class Int8Product:
    """x -> x W^T + b in integers of 8 bits, and x's own type outside. The weights of an output share a scale, and so do all
    entries of `x`, at each call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        weight, bias = weight.float(), None if bias is None else bias.float()
        scales = (weight.abs().amax(1) / 127).clamp(min=TINY)
        integers = torch.ops.onednn.qlinear_prepack((weight / scales[:, None]).round().to(torch.int8), None)
        self.weight, self.bias = (integers, scales, torch.zeros(len(weight), dtype=torch.int32)), bias

    def __call__(self, x: torch.Tensor, then: str = "none", dtype: torch.dtype | None = None) -> torch.Tensor:
        output = self.bias, 1.0, 0, dtype or x.dtype  # with scale and zero point
        return torch.ops.onednn.qlinear_pointwise(*quantized(x), *self.weight, *output, then, [], "")

    def plus(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        output = self.bias, 1.0, 0, x.dtype  # with scale and zero point
        add = 1.0, 0, "add", 1.0  # scale and zero point of the residual, and its factor
        product = torch.ops.onednn.qlinear_pointwise.binary
        return product(*quantized(x), *self.weight, residual, *output, *add, "none", [], "")


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, float, int]:
    """uint8 integers q, scale and zero point: x = scale * (q - zero), as nearly as 255 steps allow."""
    x = x.float()
    lowest, highest = x.aminmax()
    lowest, highest = min(lowest.item(), 0.0), max(highest.item(), 0.0)  # zero must be one of the steps
    if not math.isfinite(highest - lowest):
        raise ValueError("the model computes infinity or NaN: its weights are damaged")
    scale = max((highest - lowest) / 254, TINY)  # the step that is left lets the zero point be rounded up
    zero = math.ceil(-lowest / scale)
    return torch.rsub(x, WHOLE + zero, alpha=-1 / scale).view(torch.int32).to(torch.uint8), scale, zero


def kind_of(linear: nn.Module, int8: bool) -> type | None:
    """Product, Int8Product, or None: what torch does by itself is as fast or all that there is."""
    if type(linear) is not nn.Linear or "forward" in vars(linear) or linear.weight.device.type != "cpu":
        return None
    dtype, size = linear.weight.dtype, linear.weight.numel()
    if int8 and dtype in (torch.float32, torch.bfloat16) and size >= SMALLEST[torch.int8]:
        return Int8Product
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return Product if size >= SMALLEST.get(dtype, float("inf")) else None


@contextmanager
def packed_linears(module: nn.Module, int8: bool = False) -> Iterator[None]:
    """Inside, the linear layers of `module` compute with packed copies of their weights; nothing is done where that
    cannot help: on a GPU, under autocast, with gradients, or inside another such block, which has packed them already.

    Packing copies every large matrix once, where it is first used, so the weights must not change inside, and their memory
    is needed twice (lm_head's again where it is also called by itself).

    Args:
        int8: multiply in integers of 8 bits, which rounds, so that outputs also depend on what else is in a batch. Only
            where `cpu.computes_int8()`: other processors overflow.
    """
    usable = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not usable:
        yield
        return
    packed = {linear: kind for linear in module.modules() if (kind := kind_of(linear, int8))}
    attentions = [  # of our kind: pipelines pack other models, too
        part for part in module.modules() if hasattr(part, "is_cross") and {*projections(part)} <= packed.keys()
    ]
    try:
        for linear, kind in packed.items():
            linear.packed, linear.filled = _when_used(kind, _joined, linear), _when_used(kind, _filled, linear)
            linear.forward = partial(_call, linear.packed)
        for attention in attentions:
            linears = projections(attention)
            attention.packed = _when_used(packed[linears[0]], _joined, *linears)
        yield
    finally:
        for part in (*packed, *attentions):
            for name in ("forward", "packed", "filled"):
                vars(part).pop(name, None)


def _when_used(kind: type, weights_of: Callable, *linears: nn.Linear) -> Callable:
    return cache(lambda: kind(*weights_of(*linears)))


def _call(packed: Callable, x: torch.Tensor) -> torch.Tensor:
    return packed()(x)


def _joined(*linears: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of all, with the outputs one behind the other."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    return weight, None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])


def _filled(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias, with outputs of -inf behind the others, up to whole blocks."""
    extra = -linear.out_features % FULL
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
    return pad(linear.weight.detach(), (0, 0, 0, extra)), pad(bias, (0, extra), value=-float("inf"))


# -------------------------------------- for those who call a layer by parts, again and again: fewer passes where packed
def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _is_packed(part: nn.Module, *linears: nn.Linear) -> bool:
    return "packed" in vars(part) and not any(map(hooked, linears))


def projections(attention: nn.Module) -> tuple[nn.Linear, ...]:
    """Those of one input: queries, keys and values of self-attention, keys and values of encoder-decoder attention."""
    of_memory = attention.k_proj, attention.v_proj
    return of_memory if attention.is_cross else (attention.q_proj, *of_memory)


def projection(attention: nn.Module) -> Callable:
    """x -> what `projections` make of it, (B, L, h * width) each."""
    linears = projections(attention)
    if not _is_packed(attention, *linears):
        return lambda x: [linear(x) for linear in linears]
    product, widths = attention.packed(), [linear.out_features for linear in linears]
    return lambda x: product(x).split(widths, dim=-1)


def bare(module: nn.Linear | nn.LayerNorm) -> Callable:
    """The module's function: what torch does around a module's call takes as long as a small product."""
    return module if hooked(module) else module.forward


def relu_of(linear: nn.Linear) -> Callable:
    """x -> max(0, linear(x))."""
    if not _is_packed(linear, linear):
        return lambda x: torch.relu(linear(x))
    return partial(linear.packed(), then="relu")


def logits_of(linear: nn.Linear) -> Callable:
    """x -> linear(x), maybe with some more entries, of -inf, behind it; in float32 where that costs nothing."""
    if not _is_packed(linear, linear):
        return linear
    product = linear.filled()
    return partial(product, dtype=torch.float32) if isinstance(product, Int8Product) else product


def sum_with(linear: nn.Linear) -> Callable:
    """(residual, x) -> residual + linear(x)."""
    if not _is_packed(linear, linear):
        return lambda residual, x: residual + linear(x)
    return linear.packed().plus


__all__ = ["bare", "hooked", "logits_of", "packed_linears", "projection", "projections", "relu_of", "sum_with"]
