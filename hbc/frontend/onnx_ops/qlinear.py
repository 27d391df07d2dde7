"""QOperator models: each op becomes dequantize → float op → quantize, which `fold-qdq` folds as it does any other."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hbc.diagnostics import FrontendError, NotTaken
from hbc.ir.core import Value
from hbc.ir.ops import PLAIN_UNARY, Add, Concat, Mul, ReduceMean, Softmax, Transpose, Where
from hbc.ir.ops.unary import LeakyRelu
from hbc.ir.types import DType, Quant

from ..onnx_infer import Inferred
from ..onnx_node import Node, Results
from ..onnx_quant import dequantize_operand, dequantized, dequantized_const, quantized, read_quant
from ..onnx_tensors import ELEM_TYPES
from ..onnx_weights import reshaped
from .conv import RANKS, affine, convolve, multiply
from .pool import average, whole_average
from .quant import STATIC_HINT
from .reduce import normal_axes
from .registry import onnx_op
from .shape import axis_of

MS = "com.microsoft"
NO_SCALES = "its scales or zero points are computed at run time"


@onnx_op("QLinearConv")
@onnx_op("QLinearConv", domain=MS)
def qlinear_conv(n: Node) -> Results:
    """x, x_scale, x_zp, w, w_scale, w_zp, y_scale, y_zp, bias (i32 in steps of x_scale·w_scale).

    Microsoft's has `channels_last` for x and y; its weight is [O,C,H,W] all the same.
    """
    x, weight = dequantize_operand(n, 0, 1, 2, 1), dequantize_operand(n, 3, 4, 5, 0)
    if x is None or weight is None or x.type.rank not in RANKS:
        if n.domain:
            raise _dynamic(n)
        return n.call(reason=NO_SCALES if x is None or weight is None else "", hint=STATIC_HINT)
    bias = _bias(n, 8, n.array(4), 1.0) if n.has(8) else None
    rank, last = x.type.rank, bool(n.integer("channels_last"))
    x = n.op(Transpose, x, perm=(0, rank - 1, *range(1, rank - 1))) if last else x
    y = convolve(n, x, weight, bias)
    return _requantized(n, n.op(Transpose, y, perm=(0, *range(2, rank), 1)) if last else y, 6, 7)


@onnx_op("QLinearMatMul")
def qlinear_matmul(n: Node) -> Results:
    """a, a_scale, a_zp, b, b_scale, b_zp, y_scale, y_zp; per-column scales run along the last axis of b."""
    a, b = dequantize_operand(n, 0, 1, 2, -2), dequantize_operand(n, 3, 4, 5, -1)
    if a is None or b is None:
        return n.call(reason=NO_SCALES, hint=STATIC_HINT)
    return _requantized(n, multiply(n, a, b), 6, 7)


@onnx_op("ConvInteger", "MatMulInteger")
def integer_product(n: Node) -> Results:
    """a, b, a_zp, b_zp → i32 accumulators: reals in steps of 1 (`Quant((1.0,))` marks them)."""
    a = _unit(n, 0, 2, -2 if n.op_type == "MatMulInteger" else 1)
    b = _unit(n, 1, 3, -1 if n.op_type == "MatMulInteger" else 0)
    if a is None or b is None:
        return n.call(reason="its zero points are computed at run time", hint=STATIC_HINT)
    if n.op_type == "ConvInteger" and a.type.rank not in RANKS:
        return n.call()
    y = convolve(n, a, b, None) if n.op_type == "ConvInteger" else multiply(n, a, b)
    return quantized(n, y, Quant((1.0,)), DType.I32)


@onnx_op("QLinearAdd", "QLinearMul", domain=MS)
def qlinear_binary(n: Node) -> Results:
    """a, a_scale, a_zp, b, b_scale, b_zp, y_scale, y_zp."""
    a, b = dequantize_operand(n, 0, 1, 2, 1), dequantize_operand(n, 3, 4, 5, 1)
    if a is None or b is None:
        return _called(n, np.broadcast_shapes(n.x(0).type.shape, n.x(3).type.shape), 7)
    return _requantized(n, n.op(Add if n.op_type == "QLinearAdd" else Mul, a, b), 6, 7)


@onnx_op("QLinearConcat", domain=MS)
def qlinear_concat(n: Node) -> Results:
    """y_scale, y_zp, then (x, x_scale, x_zp) for each operand."""
    values = [dequantize_operand(n, i, i + 1, i + 2, 1) for i in range(2, len(n.proto.input), 3)]
    found = [v for v in values if v is not None]
    if not found or len(found) < len(values):
        raise _dynamic(n)
    joined = n.op(Concat, *found, axis=axis_of(n, found[0].type.rank, 1)) if len(found) > 1 else found[0]
    return _requantized(n, joined, 0, 1)


@onnx_op("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MS)
def qlinear_average(n: Node) -> Results:
    """x, x_scale, x_zp, y_scale, y_zp; with `channels_last` x is [N,H,W,C]."""
    x = _real(n)
    rank, last = x.type.rank, bool(n.integer("channels_last"))
    if rank not in RANKS:
        raise n.fail(f"the input has rank {rank}", why="pools take one to three spatial axes")
    if last:
        x = n.op(Transpose, x, perm=(0, rank - 1, *range(1, rank - 1)))
    y = average(n, x) if n.op_type == "QLinearAveragePool" else whole_average(n, x)
    if last:
        y = n.op(Transpose, y, perm=(0, *range(2, rank), 1))
    return _requantized(n, y, 3, 4)


@onnx_op("QLinearLeakyRelu", domain=MS)
def qlinear_leaky_relu(n: Node) -> Results:
    """x, x_scale, x_zp, y_scale, y_zp."""
    return _unary(n, lambda x: n.op(LeakyRelu, x, alpha=n.number("alpha", 0.01)))


@onnx_op("QLinearSigmoid", domain=MS)
def qlinear_sigmoid(n: Node) -> Results:
    """x, x_scale, x_zp, y_scale, y_zp."""
    return _unary(n, lambda x: n.op(PLAIN_UNARY["sigmoid"], x))


@onnx_op("QLinearSoftmax", domain=MS)
def qlinear_softmax(n: Node) -> Results:
    """x, x_scale, x_zp, y_scale, y_zp; `opset` says which Softmax: before 13 it flattens from `axis` on."""
    return _unary(n, lambda x: _softmax(n, x, flattens=n.integer("opset", 13) < 13))


def _softmax(n: Node, x: Value, *, flattens: bool) -> Value:
    shape, rank = x.type.shape, x.type.rank
    axis = n.integer("axis", 1 if flattens else -1) % max(rank, 1)
    if not flattens or axis == rank - 1:
        return n.op(Softmax, x, axis=axis)
    rows = math.prod(shape[:axis])
    matrix = n.op(Softmax, reshaped(n, x, (rows, math.prod(shape) // max(1, rows))), axis=1)
    return reshaped(n, matrix, shape)


@onnx_op("QLinearReduceMean", domain=MS)
def qlinear_reduce_mean(n: Node) -> Results:
    """x, x_scale, x_zp, y_scale, y_zp."""
    x = _real(n)
    axes = normal_axes(n, n.ints("axes") or tuple(range(x.type.rank)), x.type.rank)
    return _requantized(n, n.op(ReduceMean, x, axes=axes, keepdims=bool(n.integer("keepdims", 1))), 3, 4)


@onnx_op("QLinearWhere", domain=MS)
def qlinear_where(n: Node) -> Results:
    """condition, x, x_scale, x_zp, y, y_scale, y_zp, z_scale, z_zp."""
    x, y = dequantize_operand(n, 1, 2, 3, 1), dequantize_operand(n, 4, 5, 6, 1)
    if x is None or y is None:
        return _called(n, np.broadcast_shapes(*(n.x(i).type.shape for i in (0, 1, 4))), 8)
    return _requantized(n, n.op(Where, n.plain(0), x, y), 7, 8)


@onnx_op("QGemm", domain=MS)
def qgemm(n: Node) -> Results:
    """a, a_scale, a_zp, b, b_scale, b_zp, c (i32, steps of alpha·a_scale·b_scale), y_scale, y_zp; f32 without those."""
    a = dequantize_operand(n, 0, 1, 2, 1)
    b = dequantize_operand(n, 3, 4, 5, 0 if n.integer("transB") else 1)
    if a is None or b is None:
        raise _dynamic(n)
    c = _bias(n, 6, n.array(4), n.number("alpha", 1.0)) if n.has(6) else None
    y = affine(n, a, b, c)
    return _requantized(n, y, 7, 8) if n.has(7) else y


def _real(n: Node) -> Value:
    x = dequantize_operand(n, 0, 1, 2, 1)
    if x is None:
        raise _dynamic(n)
    return x


def _unary(n: Node, f: Callable[[Value], Value]) -> Results:
    x = dequantize_operand(n, 0, 1, 2, 1)
    return _called(n, n.x(0).type.shape, 4) if x is None else _requantized(n, f(x), 3, 4)


def _requantized(n: Node, y: Value, scale: int, zero: int) -> Results:
    """quantize(y) by the scale and zero point in these operands; u8 where there is no zero point."""
    known = n.array(zero) if n.has(zero) else np.zeros((), np.uint8)
    quant = None if known is None else read_quant(n, scale, zero, DType.of(known.dtype), y.type.shape, 1)
    if known is None or quant is None:
        return _called(n, y.type.shape, zero)
    return quantized(n, y, quant, DType.of(known.dtype))


def _bias(n: Node, index: int, weight_scale: np.ndarray | None, factor: float) -> Value:
    """The i32 bias as reals: steps of factor · (scale of operand 0) · (scale of the weight), in float32."""
    array, x_scale = n.array(index), n.array(1)
    if array is None or x_scale is None or weight_scale is None or array.dtype != np.int32:
        raise n.fail(
            f"input {index} (the bias) is computed, or not int32", hint="give the bias as an int32 initializer"
        )
    steps = np.float32(factor) * x_scale.astype(np.float32).reshape(-1)[0] * weight_scale.astype(np.float32).reshape(-1)
    if steps.size not in {1, array.size}:
        raise n.fail(
            f"the bias has {array.size} entries, the weight {steps.size} scales", hint="export the model again"
        )
    axis = array.ndim - 1 if steps.size > 1 else None
    return dequantized_const(n, n.name(index), array, Quant(tuple(float(s) for s in steps), (0,), axis))


def _unit(n: Node, index: int, zero: int, axis: int) -> Value | None:
    """Operand `index` as reals in steps of 1; None where its zero point is computed at run time."""
    array = n.scope.array(n.name(index))
    shape = n.x(index).type.shape if array is None else array.shape
    zeros = n.array(zero) if n.has(zero) else np.zeros(1, np.int64)
    if zeros is None:
        return None
    zeros = zeros.reshape(-1)
    if zeros.size > 1 and (len(shape) < -axis or zeros.size != shape[axis]):
        raise n.fail(f"{zeros.size} zero points for {list(shape)}", hint="export the model again")
    quant = Quant((1.0,) * zeros.size, tuple(int(z) for z in zeros), axis % len(shape) if zeros.size > 1 else None)
    if array is not None:
        return dequantized_const(n, n.name(index), array, quant)
    return dequantized(n, n.x(index), quant)


def _called(n: Node, shape: tuple[int, ...], zero: int) -> list[Value]:
    """The op as ONNX Runtime's, its result typed like its zero point."""
    dtype = n.x(zero).type.dtype if n.has(zero) else DType.U8
    return n.call([Inferred(ELEM_TYPES[dtype], shape)], reason=NO_SCALES, hint=STATIC_HINT)


def _dynamic(n: Node) -> FrontendError:
    return n.fail("the op can't be quantised ahead of time", why=NO_SCALES, hint=STATIC_HINT, kind=NotTaken)
