"""QuantizeLinear and DequantizeLinear, of ONNX's and of Microsoft's domain."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Cast
from hbc.ir.types import DType, TensorType

from ..onnx_infer import Inferred
from ..onnx_node import Node, Results
from ..onnx_quant import QUANTIZED, dequantized, dequantized_const, quantized, read_quant
from ..onnx_tensors import DTYPES, ELEM_TYPES, dtype_name
from ..problem import quoted
from .registry import onnx_op


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain="com.microsoft")
def quantize(n: Node) -> Results:
    """x → quantize. The result's dtype is the zero point's, else `output_dtype`, else u8."""
    dtype = _result_dtype(n)
    x = n.x(0)
    if n.integer("block_size"):
        return _called(n, dtype)
    if x.type.dtype is DType.I32:  # ONNX lets i32 in: it divides as a float
        x = n.op(Cast, n.plain(0), to=DType.F32)
    quant = read_quant(n, 1, 2, dtype, x.type.shape, n.integer("axis", 1))
    if quant is None or x.type.dtype is not DType.F32:
        return _called(n, dtype)  # the scale is computed at run time
    return quantized(n, x, quant, dtype)


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain="com.microsoft")
def dequantize(n: Node) -> Results:
    """x → dequantize; of a constant: the constant typed by these scales, then dequantize."""
    array = n.scope.array(n.name(0))
    t = n.x(0).type if array is None else TensorType(array.shape, DType.of(array.dtype))
    if t.dtype not in QUANTIZED:
        raise n.fail(
            f"input {quoted(n.name(0))} is {t.dtype.text}", why="only 8, 16 and 32 bit integers are dequantised"
        )
    _mark_wide(n)
    if n.integer("block_size"):
        return _called(n, DType.F32) if array is None else _blocks(n, array)
    quant = read_quant(n, 1, 2, t.dtype, t.shape, n.integer("axis", 1))
    if quant is None:
        return _called(n, DType.F32)  # the scale is computed at run time
    return dequantized(n, n.x(0), quant) if array is None else dequantized_const(n, n.name(0), array, quant)


def _called(n: Node, dtype: DType) -> list[Value]:
    """A call; of Microsoft's operators, which ONNX infers nothing for, the result has the operand's shape."""
    return n.call([Inferred(ELEM_TYPES[dtype], n.x(0).type.shape)] if n.domain else None)


def _result_dtype(n: Node) -> DType:
    if n.has(2):
        zero = n.array(2)
        return n.x(2).type.dtype if zero is None else DType.of(zero.dtype)
    elem_type = n.integer("output_dtype")
    if not elem_type:
        return DType.U8
    if elem_type not in DTYPES or DTYPES[elem_type] not in QUANTIZED:
        why = f"it quantises to {dtype_name(elem_type)}; tensors of the BPU have 8 or 16 bits"
        raise n.fail(
            "the quantised type isn't taken", why=why, hint="quantise activations to int8, uint8, int16 or uint16"
        )
    return DTYPES[elem_type]


def _mark_wide(n: Node) -> None:
    """Since opset 19 the result has the scale's float type (opset 23: or `output_dtype`)."""
    scale = n.scope.known(n.name(1)).elem_type
    dtype = DTYPES.get(n.integer("output_dtype") or scale, DType.F32)
    if dtype in {DType.F16, DType.F64}:
        n.scope.wide[n.proto.output[0]] = dtype


def _blocks(n: Node, array: np.ndarray) -> Value:
    """Blocked scales (opset 21) of a constant: its reals, since no tensor type here has a scale per block."""
    scales, axis, size = n.array(1), n.integer("axis", 1), n.integer("block_size")
    zeros = n.array(2) if n.has(2) else np.zeros((), array.dtype)
    if scales is None or zeros is None:
        return _called(n, DType.F32)[0]
    if not -array.ndim <= axis < array.ndim or scales.ndim != array.ndim or size < 1:
        raise n.fail("blocked scales don't fit the tensor", why=f"shapes {array.shape} and {scales.shape}, axis {axis}")

    def spread(values: np.ndarray) -> np.ndarray:
        if not values.ndim:
            return values
        return values.repeat(size, axis=axis).take(np.arange(array.shape[axis]), axis=axis)

    reals = (array.astype(np.float32) - spread(zeros).astype(np.float32)) * spread(scales).astype(np.float32)
    return n.const(reals.astype(np.float32))
