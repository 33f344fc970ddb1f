"""Decoding on a CPU is reading weights: matrices of a few rows times matrices of millions of entries. oneDNN multiplies
faster with weights that it has laid out for itself, by 1.1 times for a hundred rows and 2 to 3 times for four."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import nn
from torch.nn.functional import pad

SMALLEST = {torch.float32: 2**17, torch.bfloat16: 2**14}  # weights in a matrix; below, torch's own product is faster

FULL = 256  # outputs


def can_pack(linear: nn.Module) -> bool:
    if type(linear) is not nn.Linear or "forward" in vars(linear):
        return False
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in SMALLEST or weight.numel() < SMALLEST[weight.dtype]:
        return False
    return weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def packed_linears(module: nn.Module) -> Iterator[None]:
    """Inside, the linear layers of `module` compute with packed copies of their weights; nothing is done where that
    cannot help: on a GPU, under autocast, with gradients, or inside another such block, which has packed them already.

    Packing copies every large matrix once, where it is first used, so the weights must not change inside, and their memory
    is needed twice.
    """
    usable = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not usable:
        yield
        return
    packed = [linear for linear in module.modules() if can_pack(linear)]
    attentions = [part for part in module.modules() if hasattr(part, "q_proj") and {*projections(part)} <= {*packed}]
    try:
        for linear in packed:
            linear.packed, linear.filled = cache(partial(_pack, linear)), cache(partial(_pack_filled, linear))
            linear.forward = partial(_product, linear.packed)
        for attention in attentions:
            attention.packed = cache(partial(_pack, *projections(attention)))
        yield
    finally:
        for part in (*packed, *attentions):
            for name in ("forward", "packed", "filled"):
                vars(part).pop(name, None)


def _pack(*linears: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias; the outputs of several will stand one behind the other."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    return torch.ops.mkldnn._reorder_linear_weight(weight, None), bias


def _pack_filled(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """With outputs of -inf behind the others, up to whole blocks, which oneDNN multiplies 4 % faster."""
    extra = -linear.out_features % FULL
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
    weight, bias = pad(linear.weight.detach(), (0, 0, 0, extra)), pad(bias, (0, extra), value=-float("inf"))
    return torch.ops.mkldnn._reorder_linear_weight(weight, None), bias


def _product(packed: Callable, x: torch.Tensor, then: str = "none") -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, *packed(), then, [], "")


# -------------------------------------- for those who call a layer by parts, again and again: fewer passes where packed
def _is_packed(part: nn.Module, *linears: nn.Linear) -> bool:
    return "packed" in vars(part) and not any(x._forward_hooks or x._forward_pre_hooks for x in linears)


def projections(attention: nn.Module) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    return attention.q_proj, attention.k_proj, attention.v_proj


def projection(attention: nn.Module) -> Callable:
    """x -> queries, keys and values of self-attention, (B, L, h * width) each."""
    linears = projections(attention)
    if not _is_packed(attention, *linears):
        return lambda x: [linear(x) for linear in linears]
    packed, widths = attention.packed, [linear.out_features for linear in linears]
    return lambda x: _product(packed, x).split(widths, dim=-1)


def bare(module: nn.Linear | nn.LayerNorm) -> Callable:
    """The module's function: what torch does around a module's call takes as long as a small product."""
    if module._forward_hooks or module._forward_pre_hooks:
        return module
    return vars(module).get("forward", module.forward)


def relu_of(linear: nn.Linear) -> Callable:
    """x -> max(0, linear(x))."""
    if not _is_packed(linear, linear):
        return lambda x: torch.relu(linear(x))
    return partial(_product, linear.packed, then="relu")


def logits_of(linear: nn.Linear) -> Callable:
    """x -> linear(x), maybe with some more entries, of -inf, behind it."""
    if not _is_packed(linear, linear):
        return linear
    return partial(_product, linear.filled)


def sum_with(linear: nn.Linear) -> Callable:
    """(residual, x) -> residual + linear(x)."""
    if not _is_packed(linear, linear):
        return lambda residual, x: residual + linear(x)
    packed, product = linear.packed, torch.ops.mkldnn._linear_pointwise.binary
    return lambda residual, x: product(x, residual, *packed(), "add")


__all__ = ["bare", "logits_of", "packed_linears", "projection", "relu_of", "sum_with"]
