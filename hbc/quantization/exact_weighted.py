"""Exact forward of convolutions and linear layers: integers in torch, constants by `hbc.ir.fixed_point`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.ir import fixed_point, ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Op, Value
from hbc.ir.fixed_point import conv as rules
from hbc.ir.location import NodeLoc
from hbc.ir.ops.shapes import NO_CLIP
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme

from .fake_quantize import BITS, FakeQuantize
from .units import QuantizedUnit, QuantizedWeighted

if TYPE_CHECKING:
    from .exact import Program

DTYPES = {"int8": DType.I8, "int16": DType.I16}
CLIPS = {"": NO_CLIP, "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}
EXACT_FLOAT = 1 << 24  # float32 holds every integer up to here
ROOM = 1 << 26  # as hbc.passes.weak_channels: beyond, the compiler changes a channel's scale


@dataclass(frozen=True)
class Constants:
    """What the scales alone determine: acc scales (float64), the scheme and its parameters per channel, the clamp."""

    acc_scale: np.ndarray
    out_scale: Tensor
    scheme: Scheme
    rounding: np.ndarray
    params: tuple[Tensor | None, Tensor | None, Tensor | None]
    low: int
    high: int
    addend: tuple[Tensor, Tensor] | None
    addend_reach: float  # accumulator steps


class Weighted:
    """The strategy of a weighted unit; `program` serves what torch has no exact form for."""

    def __init__(self, unit: QuantizedWeighted, program: Program) -> None:
        self.program = program
        self.key: Any = None
        self.constants: Constants | None = None
        fq = unit.activation_post_process
        spatial = unit.kind in {nn.Conv3d, nn.ConvTranspose3d}
        self.by_program = spatial or (fq is not None and fq.spec.narrow) or unit.weight_fake_quant.spec.dtype != "int8"

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        assert isinstance(unit, QuantizedWeighted)
        weight, bias = unit.folded()
        wfq = unit.weight_fake_quant
        if wfq.observing or not wfq.is_ready():
            wfq.observe(weight)
        if self.by_program:
            return self.program(unit, operands)
        source = unit.sources[0]
        assert source is not None
        c = self._constants(unit, operands[0].device)
        ints = wfq.integers(weight)
        sums = ints.detach().abs().movedim(unit.axis, 0).reshape(ints.shape[unit.axis], -1).sum(1).cpu().numpy()
        sums = np.resize(sums.astype(np.float64), unit.out_channels)
        stored = self._bias(unit, bias, c, sums)
        if stored is None:
            return self.program(unit, operands)
        reach = float(sums.max(initial=0.0)) * (1 << (BITS[source.spec.dtype] - 1))
        kind = torch.float32 if reach < EXACT_FLOAT else torch.float64
        q = _Recover.apply(operands[0], source.scale.detach())  # type: ignore[no-untyped-call]
        acc = unit.product(q.to(kind), ints.to(kind))
        bound = reach + float(np.abs(stored.astype(np.float64)).max(initial=0.0)) + c.addend_reach
        wide = torch.int32 if bound < numerics.I32_MAX else torch.int64
        along = [1] * acc.dim()
        along[-1 if unit.kind is nn.Linear else 1] = -1
        addend = operands[1] if unit.has_addend else None
        finish = _Finish(unit, c, torch.from_numpy(stored).to(acc.device), wide, along)
        return _Epilogue.apply(acc, bias, addend, finish)  # type: ignore[no-untyped-call]

    def _bias(self, unit: QuantizedWeighted, bias: Tensor | None, c: Constants, sums: np.ndarray) -> np.ndarray | None:
        """The accumulator's bias with the rounding term; None where the compiler would change a channel's scale."""
        value = np.zeros(unit.out_channels) if bias is None else bias.detach().cpu().numpy().astype(np.float64)
        steps = np.abs(value) / c.acc_scale + c.addend_reach
        dead = (sums == 0) & (steps > 0)
        if (bias is not None or unit.has_addend) and bool(((steps > numerics.I32_MAX - ROOM) | dead).any()):
            return None
        ints: np.ndarray = np.zeros(unit.out_channels, np.int64)
        if bias is not None:
            ints = numerics.bias_to_accumulator(bias.detach().cpu().numpy(), c.acc_scale)
        return rules.stored_bias(ints + c.rounding, Semantics(unit.march))

    def _constants(self, unit: QuantizedWeighted, device: torch.device) -> Constants:
        fqs = [*unit.sources, unit.weight_fake_quant, unit.activation_post_process]
        key = (tuple(tuple(f.scale.detach().tolist()) for f in fqs if f is not None), device)
        if key != self.key or self.constants is None:
            self.constants, self.key = derived(unit, device), key
        return self.constants


def derived(unit: QuantizedWeighted, device: torch.device) -> Constants:
    """The constants of a unit, from the instruction that hbc derives of an op of one pixel and zero weights."""
    op, arrays = _op(unit)
    sem = Semantics(unit.march)
    fixed = fixed_point.derive(op, sem, arrays)
    zero, mult, pre, post = (None if o is None else np.asarray(o) for o in fixed.operands[2:6])
    scale = rules.accumulator_scale(op.operands[0].type, op.operands[1].type, unit.out_channels)  # type: ignore[union-attr]
    addend, reach = None, 0.0
    if unit.has_addend:
        _, am, ash = fixed.operands[6:9]
        addend = _tensor(am, device), _tensor(ash, device)
        t = op.operands[3].type  # type: ignore[union-attr]
        assert t.quant is not None
        reach = float(t.quant.scale[0] * -t.dtype.limits[0] / scale.min())
    fq = unit.activation_post_process
    scheme: Scheme = fixed.fields["scheme"]
    out = np.float32(scale) if fq is None else fq.scale.detach().cpu().numpy()
    return Constants(
        acc_scale=scale,
        out_scale=torch.from_numpy(np.array(out)).to(device),
        scheme=scheme,
        rounding=np.zeros(unit.out_channels, np.int64) if zero is None else zero.astype(np.int64),
        params=tuple(None if p is None else _tensor(p, device) for p in (mult, pre, post)),  # type: ignore[arg-type]
        low=int(fixed.fields["clamp_min"]),
        high=int(fixed.fields["clamp_max"]),
        addend=addend,
        addend_reach=reach,
    )


def _tensor(x: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.asarray(x).astype(np.int64)).to(device)


def _type(shape: tuple[int, ...], fq: FakeQuantize) -> TensorType:
    return TensorType(shape, DTYPES[fq.spec.dtype], Quant.per_tensor(float(fq.scale.detach()[0])))


def _op(unit: QuantizedWeighted) -> tuple[Op, list[np.ndarray | None]]:
    """An op of one pixel with the unit's scales, zero weights and no bias, and its operands' values."""
    graph = Graph("unit")
    source, wfq, fq = unit.sources[0], unit.weight_fake_quant, unit.activation_post_process
    assert source is not None
    inner = int(unit.weight.shape[0] if unit.transposed else unit.weight.shape[1])
    channels, groups = unit.out_channels, unit.groups
    linear = unit.kind is nn.Linear
    tail: tuple[int, ...] = () if linear else (1, 1)
    in_channels = inner if unit.transposed or linear else inner * groups
    w = np.zeros((*unit.weight.shape[:2], *tail), np.int8)
    scales = tuple(float(s) for s in wfq.scale.detach().tolist())
    wt = TensorType(w.shape, DType.I8, Quant(scales, (0,), unit.axis))
    x = Value(_type((1, in_channels, *tail), source), graph, 0)
    weight = Value(wt, graph, 1)
    shape = (1, channels, *tail)
    if fq is None:
        acc = rules.accumulator_scale(x.type, wt, channels)
        t = TensorType(shape, DType.I32, Quant(tuple(float(s) for s in np.float32(acc)), (0,), 1))
    else:
        t = _type(shape, fq)
    clip = CLIPS[unit.activation]
    loc = NodeLoc(unit.unit_name)
    if unit.transposed:
        fields = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "output_padding": (0, 0)}
        return make_op(ops.ConvTranspose2d, [x, weight, None], {**fields, "group": groups, "clip": clip}, loc, [t]), [
            None,
            w,
            None,
        ]
    operands: list[Value | None] = [x, weight, None]
    if unit.has_addend:
        other = unit.sources[1]
        assert other is not None
        operands.append(Value(_type(shape, other), graph, 2))
    arrays: list[np.ndarray | None] = [None, w, None, None]
    if linear:
        return make_op(ops.Linear, operands, {"clip": clip}, loc, [t]), arrays
    fields = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    return make_op(ops.Conv2d, operands, {**fields, "group": groups, "clip": clip}, loc, [t]), arrays


class _Recover(torch.autograd.Function):
    """The integers that reals on a grid stand for: round(x / scale), exact as |x / scale| is far below 2^23."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return (x / scale).round_()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (scale,) = ctx.saved_tensors
        return grads[0] / scale, None


@dataclass(frozen=True)
class _Finish:
    """From the accumulator to the result."""

    unit: QuantizedWeighted
    constants: Constants
    bias: Tensor
    wide: torch.dtype
    along: list[int]

    def __call__(self, acc: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """(integers of the result, which of them are not clamped)."""
        c = self.constants
        total = acc.to(self.wide) + self.bias.to(self.wide).view(self.along)
        if addend is not None and c.addend is not None:
            total = total + self._addend(addend).to(self.wide)
        if self.wide is torch.int64:
            total = total.clamp_(numerics.I32_MIN, numerics.I32_MAX)
        q = self._requantized(total)
        inside = (q >= c.low) & (q <= c.high)
        return q.clamp_(c.low, c.high), inside

    def _addend(self, addend: Tensor) -> Tensor:
        source = self.unit.sources[1]
        assert source is not None
        assert self.constants.addend is not None
        mult, shift = (self._view(p) for p in self.constants.addend)
        product = torch.round(addend / source.scale.detach()).to(torch.int64) * mult
        right = torch.bitwise_right_shift(product, shift.clamp_min(0))
        return torch.where(shift >= 0, right, torch.bitwise_left_shift(product, (-shift).clamp_min(0)))

    def _view(self, p: Tensor | None) -> Tensor:
        assert p is not None
        return p.view(self.along) if p.numel() > 1 else p

    def _requantized(self, total: Tensor) -> Tensor:
        c = self.constants
        if c.scheme is Scheme.NONE:
            return total
        mult, pre, post = c.params
        if c.scheme is Scheme.WIDE:
            shift = self._view(post)
            half = torch.where(shift > 0, torch.bitwise_left_shift(torch.ones_like(shift), (shift - 1).clamp_min(0)), 0)
            return torch.bitwise_right_shift(total.to(torch.int64) * self._view(mult) + half, shift)
        kind = total.dtype
        narrow = torch.bitwise_right_shift(total, self._view(pre).to(kind)).clamp_(-32768, 32767)
        return torch.bitwise_right_shift(narrow.mul_(self._view(mult).to(kind)), self._view(post).to(kind))


class _Epilogue(torch.autograd.Function):
    """Requantisation, straight through: dy/dacc is the accumulator's scale where the result isn't clamped, else 0."""

    @staticmethod
    def forward(ctx: Any, acc: Tensor, bias: Tensor | None, addend: Tensor | None, finish: _Finish) -> Tensor:
        c = finish.constants
        q, inside = finish(acc, addend)
        if any(ctx.needs_input_grad[:3]):
            scale = torch.from_numpy(c.acc_scale).to(acc.device, torch.float32).view(finish.along)
            ctx.save_for_backward(inside, scale)
            ctx.channel = finish.along.index(-1) % len(finish.along)
            ctx.kind = acc.dtype
        out = c.out_scale.view(finish.along) if c.out_scale.numel() > 1 else c.out_scale
        return q.to(torch.float32) * out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inside, scale = ctx.saved_tensors
        grad = grads[0] * inside
        of_acc = (grad * scale).to(ctx.kind) if ctx.needs_input_grad[0] else None
        others = [d for d in range(grad.dim()) if d != ctx.channel]
        of_bias = grad.sum(others) if ctx.needs_input_grad[1] else None
        return of_acc, of_bias, grad if ctx.needs_input_grad[2] else None, None
