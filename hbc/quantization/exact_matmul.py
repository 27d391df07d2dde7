"""Exact forward of products of two computed matrices on the CPU: one product for the integers, none in reals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.native.accumulators import Held
from hbc_runtime.numerics import ScaleRangeError

from . import exact_constants as constants
from .exact_integers import FLOAT32, FLOAT64, within
from .exact_native import Accumulators, serves, unpacked
from .exact_operations import Exact, Operation, wants_gradient
from .exact_weighted import CLIPS, clamp_of
from .fake_quantize import BITS, FakeQuantize
from .units import QuantizedOperation, QuantizedUnit


class Matmul(Operation):
    """The strategy of a matrix product; what it doesn't take is a common `Operation`."""

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        assert isinstance(unit, QuantizedOperation)
        fq = unit.activation_post_process
        if not self._takes(unit, operands) or self._tables(unit, operands) is None:
            return super().__call__(unit, operands)
        assert fq is not None
        a, b = operands
        try:
            if not wants_gradient(unit, operands):
                return self._product(unit, operands, fq, keeps=False)[0]
            return _Product.apply(a, b, lambda: self._product(unit, operands, fq, keeps=True))  # type: ignore[no-untyped-call]
        except ScaleRangeError:  # the program's error names tensors and scales
            return super().__call__(unit, operands)

    def _takes(self, unit: QuantizedOperation, operands: Sequence[Tensor]) -> bool:
        fq = unit.activation_post_process
        if not self.fits or fq is None or fq.is_learned or len(operands) != 2 or _bound(unit, operands) >= FLOAT64:
            return False
        if fq.observes() and not (fq.observer is not None and fq.observer.is_cheap):
            return False
        a, b = operands
        alike = a.dim() == b.dim() >= 2 and a.shape[:-2] == b.shape[:-2]
        return alike and serves(operands, [s.scale.item() for s in unit.sources if s is not None])

    def _product(self, unit: QuantizedOperation, operands: Sequence[Tensor], fq: FakeQuantize, *, keeps: bool) -> Exact:
        """NUMERICS 3 and 4."""
        scales = [s.scale.item() for s in unit.sources if s is not None]
        bound = _bound(unit, operands)
        held = Held.F32 if bound < FLOAT32 else Held.F64
        a, b = (unpacked(x.detach(), s, held) for x, s in zip(operands, scales, strict=True))
        none = np.zeros(1, np.int64)
        acc = Accumulators(a @ b, held, None, 1, none, bound)
        clip = self.clip or CLIPS[""]
        if fq.observes():
            ends = np.array([e[0] * scales[0] * scales[1] for e in acc.ends()], np.float32)
            fq.observe(torch.from_numpy(ends).clamp(*clip))
        scale = fq.scale.item()
        r = constants.requantization(scales[0] * scales[1] / scale, wide=fq.spec.dtype == "int16", bias=False)
        limits = clamp_of(fq, clip)
        y, q = acc.finished(r, none, np.array([scale], np.float32), limits, keeps=keeps)
        return y, q, limits


def _bound(unit: QuantizedOperation, operands: Sequence[Tensor]) -> float:
    """Of the magnitude of a sum."""
    bits = sum(BITS[s.spec.dtype] - 1 for s in unit.sources if s is not None)
    return float(operands[0].shape[-1] << bits)


class _Product(torch.autograd.Function):
    """Exact forward; the gradients of the product in reals where the result isn't clamped."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, run: Callable[[], Exact]) -> Tensor:
        y, q, (low, high) = run()
        ctx.save_for_backward(a, b, q)
        ctx.limits = low - 0.5, high + 0.5
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        a, b, q = ctx.saved_tensors
        grad = within(grads[0], q, *ctx.limits)
        needed = ctx.needs_input_grad
        return grad @ b.mT if needed[0] else None, a.mT @ grad if needed[1] else None, None
