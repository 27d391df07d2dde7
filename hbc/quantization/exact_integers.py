"""Integer arithmetic on float tensors: exact where every number stays below the mantissa, and far faster than int64.

An accumulator is a float tensor that holds integers: float32 below 2^24, float64 below 2^53. Products with powers of
two and floors of them are exact there; the one product that isn't (by a 15-bit multiplier) is taken in int32.
Functions that end in `_` change their argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import I32_MAX, I32_MIN

from .exact_constants import Ints, Requantization

FLOAT32, FLOAT64 = float(1 << 24), float(1 << 53)  # every integer up to here is a number of the type
_MODERATE = (1e-30, 1e30)  # scales whose reciprocal is a normal float32


def holder(bound: float) -> torch.dtype | None:
    """The float type that holds integers up to `bound`, None beyond 2^53."""
    return torch.float32 if bound < FLOAT32 else torch.float64 if bound < FLOAT64 else None


def recovered(x: Tensor, scale: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
    """The integers that reals on a grid stand for, a new tensor.

    x is fl(q · scale): x · (1/scale) is off by three roundings, at most 2^15 · 3 · 2^-24 of a step for int16.
    """
    s = scale.item()
    q = x * (1 / s) if _MODERATE[0] < s < _MODERATE[1] else x / s
    return q.round_().to(kind)


@dataclass(frozen=True)
class Tensors:
    """A Requantization on a device, shaped to broadcast, with what is added before its first shift."""

    scheme: Scheme
    scale: Tensor  # 2^-pre_shift, of the accumulator's type
    offset: Tensor  # in steps of 2^pre_shift
    multiplier: Tensor
    half: Tensor
    shift: Tensor | None  # None: multiplier and half are scaled by it, and the product is taken in floats
    shifts: bool  # some pre-shift or offset isn't 0


def on_device(
    r: Requantization, offset: Ints, along: list[int], device: torch.device, kind: torch.dtype, bound: float
) -> Tensors:
    """`offset`: integers that join the accumulator before the shift; `bound`: the accumulator's, offset included."""
    whole = np.int64 if r.scheme is Scheme.WIDE else np.int32
    scale, post = np.ldexp(1.0, -r.pre_shift), r.post_shift
    half = np.where(post > 0, 1 << np.maximum(post - 1, 0), 0) if r.scheme is not Scheme.FORM_A else np.zeros_like(post)
    shifts = bool(r.pre_shift.any() or offset.any())
    first, joined = put([scale, offset * scale], along, device, kind)
    largest = bound * float(r.multiplier.max()) + float(half.max())
    if r.scheme is Scheme.FORM_B and not shifts and largest < (FLOAT32 if kind is torch.float32 else FLOAT64):
        exponent = np.ldexp(1.0, -post)  # the product itself is exact in floats
        mult, joined = put([r.multiplier * exponent, half * exponent], along, device, kind)
        return Tensors(r.scheme, first, joined, mult, joined, None, shifts)
    mult, added, shift = put([p.astype(whole) for p in (r.multiplier, half, post)], along, device)
    return Tensors(r.scheme, first, joined, mult, added, shift, shifts)


def put(
    rows: list[np.ndarray], along: list[int], device: torch.device, kind: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Arrays of one length on a device, shaped to broadcast, by one transfer; of type `kind` where it is given."""
    array = np.stack(rows)
    found = torch.from_numpy(array).to(device=device, dtype=kind)
    return found.view(len(rows), *(along if array.shape[1] > 1 else [1])).unbind(0)


def requantized_(acc: Tensor, r: Tensors, bound: float) -> Tensor:
    """The result's integers before they are clamped, as float32; `bound` is the accumulator's, which is used up."""
    if r.shift is None:
        return torch.addcmul(r.half, acc, r.multiplier, out=acc).floor_().to(torch.float32)
    if r.shifts:
        acc = torch.addcmul(r.offset, acc, r.scale, out=acc)
    if r.scheme is Scheme.NONE or r.scheme is Scheme.WIDE:
        if bound > I32_MAX:
            acc = acc.clamp_(I32_MIN, I32_MAX)
        if r.scheme is Scheme.NONE:
            return acc.to(torch.float32)
        return (acc.to(torch.int64).mul_(r.multiplier).add_(r.half).bitwise_right_shift_(r.shift)).to(torch.float32)
    narrow = (acc.floor_() if r.shifts else acc).clamp_(-32768, 32767).to(torch.int32).mul_(r.multiplier)
    if r.scheme is Scheme.FORM_B:
        narrow.add_(r.half)
    return narrow.bitwise_right_shift_(r.shift).to(torch.float32)


class Through(torch.autograd.Function):
    """The exact values with the plain ones' gradient: all of it, or where the integers `q` are in [low, high]."""

    @staticmethod
    def forward(ctx: Any, plain: Tensor, exact: Tensor, q: Tensor | None, low: int, high: int) -> Tensor:
        ctx.save_for_backward(*([] if q is None else [q]))
        ctx.limits = low - 0.5, high + 0.5
        return exact.view_as(exact)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = within(grads[0], *ctx.saved_tensors, *ctx.limits) if ctx.saved_tensors else grads[0]
        return grad, None, None, None, None


def within(grad: Tensor, q: Tensor, low: float, high: float) -> Tensor:
    """`grad` where low < q < high, else 0, in one pass: a mask of bools would take several."""
    return torch.ops.aten.hardtanh_backward(grad, q, low, high)
