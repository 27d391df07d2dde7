"""Exact forward of the parts of a composite in torch, for devices and shapes that `exact_rows` doesn't take.

Integers are int32 tensors, which hold products of two of 16 bits; what a 31-bit multiplier makes of them is int64
meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.semantics import Semantics
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme

from .lean_parts import Arithmetic, LeanParts, Part, Results, arithmetic

_LARGEST = 1 << 15  # magnitude of an i16
_PIECE = 1 << 16  # elements: a quarter of a megabyte each time

Step = tuple[Value, Sequence[Value], Callable[..., Tensor]]  # result, operands, function of their integers


@dataclass(frozen=True)
class Plan:
    """What computes the parts' result: constants and tables on the device, and a function for each part, in order."""

    source: Value
    constants: Mapping[Value, Tensor]
    steps: Sequence[Step]
    splits: bool  # the first axis is one of rows that have nothing to do with each other

    @staticmethod
    def of(source: Value, parts: LeanParts, sem: Semantics, device: torch.device) -> Plan:
        """Raises ScaleRangeError where a scale has no multiplier."""
        constants, steps, splits = {}, [], True
        rank = len(parts.parts[-1].out.type.shape)
        for part in parts.parts:
            if part.cls is ops.Const:
                value = part.attrs["value"]
                constants[part.out] = torch.from_numpy(np.array(value, np.int32)).to(device)
                splits = splits and (value.ndim < rank or value.shape[0] == 1)
                continue
            steps.append((part.out, part.operands, _function(part, arithmetic(part, sem), device)))
            splits = splits and part.cls is not ops.Reshape and 0 not in part.attrs.get("axes", ())
        return Plan(source, constants, steps, splits)

    def run(self, x: Tensor) -> Tensor:
        """The integers of the result, int32, for those (int32) of the source.

        Of a large tensor one piece at a time, which the processor's cache holds through all steps.
        """
        count = min(x.shape[0], x.numel() // _PIECE) if self.splits and x.device.type == "cpu" else 1
        if count < 2:
            return self._run(x)
        return torch.cat([self._run(piece) for piece in x.tensor_split(count)])

    def _run(self, x: Tensor) -> Tensor:
        env = {**self.constants, self.source: x}
        y = x
        for out, operands, function in self.steps:
            y = env[out] = function(*[env[v] for v in operands])
        return y


def _function(part: Part, a: Arithmetic, device: torch.device) -> Callable[..., Tensor]:
    if a.what == "look":
        assert part.table is not None
        return partial(_looked_up, torch.from_numpy(part.table.values).to(device), part.table)
    if a.what == "same":
        return partial(torch.reshape, shape=part.out.type.shape)
    if a.what in _OVER_AXES:
        return partial(_OVER_AXES[a.what], dim=list(part.attrs["axes"]), keepdim=True)
    if a.what == "total":
        return partial(_total, a, list(part.attrs["axes"]))
    return _PLAIN[a.what] if a.what in _PLAIN else partial(_RULES[a.what], a)


def _looked_up(values: Tensor, table: Results, x: Tensor) -> Tensor:
    return values.index_select(0, x.sub(table.first).reshape(-1)).view(x.shape)


def _sum(a: Arithmetic, *xs: Tensor) -> Tensor:
    """NUMERICS D6."""
    ma, mb, shift = a.numbers
    half = (1 << shift) >> 1
    x, y = xs
    if (abs(ma) + abs(mb)) * _LARGEST + half > numerics.I32_MAX:
        x, y = x.long(), y.long()
    total = torch.add(x if ma == 1 else x * ma, y, alpha=mb)
    if shift > 0:
        total = total.add_(half).bitwise_right_shift_(shift)
    return total.clamp_(a.low, a.high).int()


def _product(a: Arithmetic, *xs: Tensor) -> Tensor:
    """NUMERICS 5: 30 bits."""
    return _requantized(xs[0] * xs[1], a)


def _total(a: Arithmetic, axes: list[int], x: Tensor) -> Tensor:
    """NUMERICS 3, 4 and D13: a sum or mean over axes that stay, one multiplier for all."""
    count = math.prod(x.shape[d] for d in axes)
    kind = torch.int32 if count * _LARGEST <= numerics.I32_MAX else torch.int64
    return _requantized(x.sum(axes, keepdim=True, dtype=kind).clamp_(numerics.I32_MIN, numerics.I32_MAX), a)


def _requantized(acc: Tensor, a: Arithmetic) -> Tensor:
    """`numerics.requantize` by form B or the wide form, of integers of 32 bits; they are used up."""
    mult, pre, post = a.numbers
    half = (1 << post) >> 1
    if a.scheme is Scheme.WIDE:
        acc = acc.long().mul_(mult).add_(half).bitwise_right_shift_(post)
    else:
        narrow = acc.bitwise_right_shift_(pre).clamp_(-_LARGEST, _LARGEST - 1).int()
        acc = narrow.mul_(mult).add_(half).bitwise_right_shift_(post)
    return acc.clamp_(a.low, a.high).int()


def _limited(a: Arithmetic, x: Tensor) -> Tensor:
    return x.clamp(a.low, a.high)


_OVER_AXES: dict[str, Callable[..., Tensor]] = {"largest": torch.amax, "smallest": torch.amin}
_PLAIN: dict[str, Any] = {"larger": torch.maximum, "smaller": torch.minimum}
_RULES: dict[str, Callable[..., Tensor]] = {"sum": _sum, "product": _product, "clip": _limited}
