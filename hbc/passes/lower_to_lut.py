"""Whatever is a function of one quantised tensor becomes one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import fuse
from hbc.ir.ops.misc import Lut, SegmentLut
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, TensorType
from hbc_runtime import numerics

from .base import Pass, Target
from .matching import activation_behind, real_constant

SEGMENTS, ENTRIES = 64, 64  # NUMERICS 7 [F]: the largest table of the segmented form
LONGEST = 64  # ops of an expression
TOLERATED = {DType.I8: 2, DType.I16: 256}  # quanta that interpolation may be off: about a step of 8 bits


@dataclass(frozen=True)
class LowerToLut(Pass):
    """Elementwise ops over one dequantized tensor and scalars, quantised again → one table.

        %a = dequantize %x
        %b = hard_sigmoid %a                      %t = const dense<…> : tensor<256xi8>
        %c = mul %a, %b                       →   %y = lut %x, %t
        %y = quantize %c

    They may be a chain or any expression. i8 takes 256 entries (D7); i16 takes 64 segments of 64 entries with
    interpolation (D8), unless that would miss the function, as at a step or a pole: then it stays in reals. A clip that
    keeps the scale stays a clip of integers. For `--arith onnx` every step is rounded to float32, as the ONNX operators
    are, and nothing is interpolated.
    """

    name: ClassVar[str] = "lower-to-lut"
    changes_numerics: ClassVar[bool] = True  # one rounding instead of one per op

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Quantize):
            q = op.out.type.quant
            if op.out.type.dtype not in {DType.I8, DType.I16} or q is None or not q.is_per_tensor:
                continue
            rw = Rewriter(module.graph, op)
            expression = _Expression.over_one_tensor(op.x, target.semantics)
            if expression is None:
                continue
            table = _lowered(rw, op, expression, target.semantics)
            if table is not None and target.legal(table) is None:  # else it stays in reals
                rw.replace(op, table, *expression.ops)
                changes += rw.changes
        return changes


@dataclass(frozen=True)
class _Expression:
    """The elementwise ops between one integer tensor and `root`, and the scalar constants among their operands."""

    source: Value
    root: Value
    ops: tuple[Op, ...]
    scalars: dict[Value, np.ndarray]

    @staticmethod
    def over_one_tensor(root: Value, sem: Semantics) -> _Expression | None:
        """The expression behind `root`.

        None where it reads more than one tensor or anything that is not elementwise.
        """
        found: dict[Op, None] = {}  # operands first
        entered: set[Op] = set()
        scalars: dict[Value, np.ndarray] = {}
        sources: dict[Value, None] = {}

        def visit(value: Value) -> bool:
            constant = real_constant(value, sem) if value.type.elements == 1 else None
            if constant is not None:
                scalars[value] = constant.reshape(())
                return True
            source = activation_behind(value)
            if source is not None:
                sources[source] = None
                return len(sources) == 1
            op = value.op
            if op in entered:
                return True
            if not isinstance(op, (ops.Unary, ops.Binary)) or len(entered) == LONGEST:
                return False
            entered.add(op)
            ok = all(visit(v) for v in op.operands if v is not None)
            found[op] = None
            return ok

        if not visit(root) or len(sources) != 1 or not found:
            return None
        source = next(iter(sources))
        if source.defined_by(ops.Const):  # a quantised weight (an activation by its type) is no tensor to look up
            return None
        shape = source.type.shape
        if any(o.out.type.shape != shape for o in found if o.out not in scalars):  # a table can't stand in
            return None
        return _Expression(source, root, tuple(found), scalars)

    def function(self, sem: Semantics) -> Callable[[np.ndarray], np.ndarray]:
        """f in float64, or step by step in float32 for onnx."""
        step = np.float32 if sem.is_onnx else np.float64

        def f(x: np.ndarray) -> np.ndarray:
            def rounded(a: np.ndarray) -> np.ndarray:
                return a.astype(step).astype(np.float64)

            known = {v: rounded(a) for v, a in self.scalars.items()}
            for op in self.ops:
                operands = [known[v] if v in known else rounded(x) for v in op.operands if v is not None]
                known[op.out] = rounded(_apply(op, operands))
            return np.broadcast_to(known[self.root], x.shape)

        return f


def _apply(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        if isinstance(op, ops.Unary):
            return np.asarray(op.function(operands[0]))
        assert isinstance(op, ops.Binary)
        return np.asarray(np.clip(op.apply(*operands), *op.clip))


def _lowered(rw: Rewriter, op: ops.Quantize, expression: _Expression, sem: Semantics) -> Op | None:
    """The expression on integers; None where it is left to `fold-qdq` or, for `--arith onnx`, to the CPU."""
    source, out = expression.source, op.out.type
    only = expression.ops[0] if len(expression.ops) == 1 else None
    clip = only if isinstance(only, ops.Clip) and not op.narrow else None
    if clip is not None and (source.type.dtype, source.type.quant) == (out.dtype, out.quant):
        return rw.op(ops.Clip, source, type=out, **clip.attrs)
    if source.type.dtype is DType.I8:
        values = _table(expression.function(sem), np.arange(-128, 128), source.type, op, sem)
        return rw.op(Lut, source, rw.op(ops.Const, value=values).out, type=out)
    if sem.is_onnx:
        return None  # interpolation is not what ONNX's operators do
    if clip is not None:  # exact at the corner, where interpolation is not
        scaled = rw.op(ops.Requantize, source, type=out, loc=fuse([clip.loc, op.loc])).out
        return rw.op(ops.Clip, scaled, type=out, **clip.attrs)
    if isinstance(only, ops.Div) and only.rhs in expression.scalars:
        _multiply_instead(rw, only, expression.scalars[only.rhs])
        return None
    if isinstance(only, (ops.Add, ops.Sub, ops.Mul)):
        return None  # exact to a quantum as an op of two operands, whatever saturates
    return _segmented(rw, op, expression, sem)


def _multiply_instead(rw: Rewriter, op: ops.Div, divisor: np.ndarray) -> None:
    """x / c → x · (1/c): the BPU multiplies."""
    if divisor != 0 and np.isfinite(1 / divisor):
        inverse = rw.op(ops.Const, value=np.asarray(1 / divisor, np.float32)).out
        rw.replace(op, rw.op(ops.Mul, op.lhs, inverse, type=op.out.type, loc=op.loc, clip=op.clip))


def _segmented(rw: Rewriter, op: ops.Quantize, expression: _Expression, sem: Semantics) -> Op | None:
    """Segments of equal length; None where interpolation would miss the function, as at a step or a pole."""
    source, out = expression.source, op.out.type
    f = expression.function(sem)
    first = -32768 + (65536 // SEGMENTS) * np.arange(SEGMENTS)
    shift = (65536 // SEGMENTS // ENTRIES).bit_length() - 1
    index = first[:, None] + (np.arange(ENTRIES + 1) << shift)
    values = _table(f, index, source.type, op, sem).astype(np.int16)
    exact = _table(f, np.arange(-32768, 32768), source.type, op, sem)
    if np.abs(_interpolated(values, shift) - exact).max() > TOLERATED[out.dtype]:
        return None
    segments = np.stack([first, np.full(SEGMENTS, shift), np.arange(SEGMENTS)], axis=1).astype(np.int32)
    return rw.op(SegmentLut, source, rw.op(ops.Const, value=segments).out, rw.op(ops.Const, value=values).out, type=out)


def _interpolated(values: np.ndarray, shift: int) -> np.ndarray:
    """D8 for every i16 in order, int64, from rows of entries that lie 2^shift apart."""
    low, high = values[:, :-1, None].astype(np.int64), values[:, 1:, None].astype(np.int64)
    return (low + numerics.round_shift_half_up((high - low) * np.arange(1 << shift), shift)).reshape(-1)


def _table(
    f: Callable[[np.ndarray], np.ndarray], index: np.ndarray, source: TensorType, op: ops.Quantize, sem: Semantics
) -> np.ndarray:
    """The result's integers for the source's integers `index`."""
    assert source.quant is not None
    assert op.out.type.quant is not None
    scale, zero = source.quant.scale[0], source.quant.zero_point[0]
    s_out, zp = op.out.type.quant.scale[0], op.out.type.quant.zero_point[0]
    if sem.is_onnx:
        y = f(numerics.dequantize(index, scale, zero).astype(np.float64)).astype(np.float32)
        q = numerics.quantize(y, s_out, zp, sem.rounding, *op.limits)
    else:
        q = numerics.lut_table(f, (index - zero) * scale, s_out, zp, *op.limits)
    return q.astype(op.out.type.dtype.numpy)
