"""Instructions that stand for two: what `fusion.py` makes of pairs. Programs don't hold them."""

from __future__ import annotations

from dataclasses import dataclass

from ..isa import Add, Conv2d, Quantize


@dataclass(frozen=True, kw_only=True)
class QuantizeImage(Quantize):
    """Quantize of [N,C,H,W], C ≤ 4, by one scale, stored as [N,H,W,C]: an image on its way in."""


@dataclass(frozen=True, kw_only=True)
class AddedConv2d(Conv2d):
    """Conv2d of bytes by form A, and an integer Add (`add`) of its result to another tensor of its shape.

    That tensor is operand 6 (there are no operands 7 and 8); `left` says that the convolution's result is `add`'s first
    operand.
    """

    add: Add
    left: bool
