"""Whatever is a function of one quantised tensor becomes one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import fuse
from hbc.ir.ops.misc import Lut, SegmentLut
from hbc.ir.ops.unary import ThresholdedRelu
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, TensorType
from hbc_runtime import numerics

from .base import Pass, Target
from .matching import activation_behind, real_constant
from .quanta import LIMITS, is_activation
from .segments import INPUTS, divide

LONGEST = 64  # ops of an expression
JUMPS = (*(ops.PLAIN_UNARY[name] for name in ("floor", "ceil", "round", "sign")), ThresholdedRelu, ops.Comparison)


@dataclass(frozen=True)
class LowerToLut(Pass):
    """Elementwise ops over one dequantized tensor and scalars, quantised again → one table.

        %a = dequantize %x
        %b = hard_sigmoid %a                      %t = const dense<…> : tensor<256xi8>
        %c = mul %a, %b                       →   %y = lut %x, %t
        %y = quantize %c

    They may be a chain or any expression. i8 takes 256 entries (D7); i16 takes 64 segments of 64 entries with
    interpolation (D8), divided where the function bends, unless that would miss the function, as at many steps: then it
    stays in reals. A clip that keeps the scale stays a clip of integers. An expression that jumps (floor, sign, a
    comparison) is computed in float32, op by op, so that it jumps at the integer at which the ONNX operators do. For
    `--arith onnx` every expression is, and nothing is interpolated.
    """

    name: ClassVar[str] = "lower-to-lut"
    changes_numerics: ClassVar[bool] = True  # one rounding instead of one per op

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Quantize):
            if not is_activation(op.out.type) or not op.out.uses:
                continue
            rw = Rewriter(module.graph, op)
            expression = Expression.over_one_tensor(op.x, target.semantics)
            if expression is None:
                continue
            table = _lowered(rw, op, expression, target.semantics)
            if table is not None and target.legal(table) is None:  # else it stays in reals
                rw.replace(op, table, *expression.ops)
                changes += rw.changes
        return changes


@dataclass(frozen=True)
class Expression:
    """The elementwise ops between one integer tensor and `root`, and the scalar constants among their operands."""

    source: Value
    root: Value
    ops: tuple[Op, ...]
    scalars: dict[Value, np.ndarray]

    @staticmethod
    def over_one_tensor(root: Value, sem: Semantics) -> Expression | None:
        """The expression behind `root`.

        None where it reads more than one tensor or anything that is not elementwise.
        """
        found: dict[Op, None] = {}  # operands first
        entered: set[Op] = set()
        scalars: dict[Value, np.ndarray] = {}
        sources: dict[Value, None] = {}

        def visit(value: Value) -> bool:
            constant = _scalar(value, sem)
            if constant is not None:
                scalars[value] = constant
                return True
            source = activation_behind(value)
            if source is not None:
                sources[source] = None
                return len(sources) == 1
            op = value.op
            if op in entered:
                return True
            if op is None or not _is_elementwise(op) or len(entered) == LONGEST:
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
        return Expression(source, root, tuple(found), scalars)

    def table_like(self, t: TensorType) -> Op:
        """An op with the operand and the result of the table that this would be, for questions of legality alone."""
        none = self.source  # stands for entries that nobody reads
        cls, more = (Lut, 1) if self.source.type.dtype is DType.I8 else (SegmentLut, 2)
        return make_op(cls, [self.source, *[none] * more], {}, self.ops[-1].loc, [t])

    @property
    def jumps(self) -> bool:
        """True where some op's result jumps, so that an operand a rounding off may be on the wrong side."""
        return any(isinstance(o, JUMPS) or o.out.type.dtype is DType.BOOL for o in self.ops)

    def function(self, sem: Semantics) -> Callable[[np.ndarray], np.ndarray]:
        """f in float64, or op by op in float32: for onnx, and where it jumps."""
        step = np.float32 if sem.is_onnx or self.jumps else np.float64

        def f(x: np.ndarray) -> np.ndarray:
            def rounded(a: np.ndarray) -> np.ndarray:
                return a.astype(step).astype(np.float64)

            known = {v: rounded(a) for v, a in self.scalars.items()}
            for op in self.ops:
                operands = [known[v] if v in known else rounded(x) for v in op.operands if v is not None]
                known[op.out] = rounded(_apply(op, operands))
            return np.broadcast_to(known[self.root], x.shape)

        return f


def _scalar(value: Value, sem: Semantics) -> np.ndarray | None:
    """The one number that a constant holds, however often; None for anything else."""
    constant = real_constant(value, sem)
    if constant is None or constant.size == 0:
        return None
    first = constant.reshape(-1)[0]
    return np.asarray(first) if constant.size == 1 or bool(np.all(constant == first)) else None


def _is_elementwise(op: Op) -> bool:
    """True for what an expression may consist of; a cast between truth values and reals is a comparison with 0."""
    if isinstance(op, ops.Cast):
        return {op.x.type.dtype, op.out.type.dtype} == {DType.BOOL, DType.F32}
    return isinstance(op, (ops.Unary, ops.Binary, ops.Comparison, ops.Logical, ops.LogicalNot, ops.Where))


def _apply(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    """The op on reals, of which truth values are 0 and 1. Reals are compared as the float32 numbers that they are."""
    with np.errstate(all="ignore"):
        if isinstance(op, ops.Unary):
            return np.asarray(op.function(operands[0]))
        if isinstance(op, ops.Binary):
            return np.asarray(np.clip(op.apply(*operands), *op.clip))
        if isinstance(op, ops.Comparison):
            operands = [x.astype(np.float32) for x in operands]
        elif isinstance(op, ops.Where):
            operands = [operands[0] != 0, *operands[1:]]
        elif isinstance(op, ops.Cast):
            return np.asarray(operands[0] != 0)
        else:
            operands = [x != 0 for x in operands]
        return np.asarray(op.reference(Semantics(), *operands)[0])


def _lowered(rw: Rewriter, op: ops.Quantize, expression: Expression, sem: Semantics) -> Op | None:
    """The expression on integers; None where it is left to `fold-qdq` or, for `--arith onnx`, to the CPU."""
    source, out = expression.source, op.out.type
    only = expression.ops[0] if len(expression.ops) == 1 else None
    clip = only if isinstance(only, ops.Clip) and not op.narrow else None
    if clip is not None and (source.type.dtype, source.type.quant) == (out.dtype, out.quant):
        return rw.op(ops.Clip, source, type=out, **clip.attrs)
    if source.type.dtype is DType.I8:
        values = _table(expression, np.arange(-128, 128), op, sem)
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


def _segmented(rw: Rewriter, op: ops.Quantize, expression: Expression, sem: Semantics) -> Op | None:
    """Segments by curvature; None where interpolation would miss the function, as at too many steps."""
    source, out = expression.source, op.out.type
    division = divide(_table(expression, INPUTS, op, sem))
    if division.worst > LIMITS[out.dtype]:
        return None
    segments, table = (rw.op(ops.Const, value=a).out for a in (division.segments, division.table))
    rw.remark("table", str(division.worst), *expression.ops)
    return rw.op(SegmentLut, source, segments, table, type=out)


def _table(expression: Expression, index: np.ndarray, op: ops.Quantize, sem: Semantics) -> np.ndarray:
    """The result's integers for the source's integers `index`."""
    source, out = expression.source.type.quant, op.out.type.quant
    assert source is not None
    assert out is not None
    scale, zero = source.scale[0], source.zero_point[0]
    s_out, zp = out.scale[0], out.zero_point[0]
    if sem.is_onnx:
        reals = numerics.dequantize(index, scale, zero).astype(np.float64)  # in float32, as ONNX's operators see them
        q = numerics.quantize(expression.function(sem)(reals).astype(np.float32), s_out, zp, sem.rounding, *op.limits)
    else:
        q = table_values(expression, index - zero, scale, s_out, zp, op.limits)
    return q.astype(op.out.type.dtype.numpy)


def table_values(
    expression: Expression, index: np.ndarray, scale: float, out_scale: float, zero_point: int, limits: tuple[int, int]
) -> np.ndarray:
    """int64: the table of an expression for integers (zero point 0) of `scale`, in the BPU's arithmetic (D7)."""
    reals = numerics.dequantize(index, scale, 0).astype(np.float64) if expression.jumps else index * scale
    return numerics.lut_table(expression.function(Semantics()), reals, out_scale, zero_point, *limits)
