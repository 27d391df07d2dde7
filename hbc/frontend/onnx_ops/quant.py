"""QuantizeLinear and DequantizeLinear: ONNX's own, Microsoft's, and Quark's of the same meaning."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from hbc.diagnostics import BadQuantization, FrontendError, NotTaken
from hbc.ir.core import Value
from hbc.ir.ops import PLAIN_UNARY, Cast
from hbc.ir.types import DType, Quant, TensorType

from ..onnx_blocks import blocked_weight, spread
from ..onnx_dialects import QUARK_DOMAINS
from ..onnx_infer import Inferred
from ..onnx_node import Node, Results
from ..onnx_quant import QUANTIZED, dequantized, dequantized_const, quantized, read_quant
from ..onnx_tensors import DTYPES, ELEM_TYPES, carrier, dtype_name, packed_limits
from ..problem import quoted
from .activation import limited
from .registry import onnx_op

AT_RUN_TIME = "its scale or zero point is computed at run time"
STATIC_HINT = "quantise statically (onnxruntime.quantization.quantize_static): constant scales go to the BPU"
_QUANTIZE = ("ExtendedQuantizeLinear", "VitisQuantizeLinear")
_DEQUANTIZE = ("ExtendedDequantizeLinear", "VitisDequantizeLinear")


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain="com.microsoft")
@onnx_op(*_QUANTIZE, domain=QUARK_DOMAINS[0])
@onnx_op(*_QUANTIZE, domain=QUARK_DOMAINS[1])
def quantize(n: Node) -> Results:
    """x → quantize. The result's dtype is the zero point's, else `output_dtype`, else u8.

    Types below 8 bits are 8 bit integers behind a clip: their own limits hold exactly.
    """
    dtype, limits = _result_dtype(n)
    x = n.x(0)
    if n.integer("block_size"):
        return _called(n, dtype, limits, "blocked scales of a computed tensor", "quantise activations per tensor")
    precision = n.integer("precision")
    if precision not in {0, TensorProto.FLOAT}:
        return _called(n, dtype, limits, f"it divides in {dtype_name(precision)}", "leave out the attribute precision")
    if x.type.dtype is DType.I32:  # ONNX lets i32 in: it divides as a float
        x = n.op(Cast, n.plain(0), to=DType.F32)
    negative = _is_negative(n)
    quant = read_quant(n, 1, 2, dtype, x.type.shape, n.integer("axis", 1), magnitude=negative)
    if quant is None or x.type.dtype is not DType.F32:
        return _called(n, dtype, limits, AT_RUN_TIME, STATIC_HINT)
    if negative:
        x = n.op(PLAIN_UNARY["neg"], x)  # x / −s is −x / s, exactly
    return _within(n, quantized(n, x, quant, dtype), limits)


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain="com.microsoft")
@onnx_op(*_DEQUANTIZE, domain=QUARK_DOMAINS[0])
@onnx_op(*_DEQUANTIZE, domain=QUARK_DOMAINS[1])
def dequantize(n: Node) -> Results:
    """x → dequantize; of a constant: the constant typed by these scales, then dequantize."""
    array = n.scope.array(n.name(0))
    t = n.x(0).type if array is None else TensorType(array.shape, DType.of(array.dtype))
    if t.dtype not in QUANTIZED:
        raise n.fail(
            f"input {quoted(n.name(0))} is {t.dtype.text}",
            why="only integers of 2 to 16 bits, and of 32, are dequantised",
            kind=BadQuantization,
        )
    _mark_wide(n)
    if n.integer("block_size"):
        if array is None:
            hint = "quantise activations per tensor"
            return _called(n, DType.F32, None, "blocked scales of a computed tensor", hint)
        return _blocks(n, array)
    negative = _is_negative(n)
    quant = read_quant(n, 1, 2, t.dtype, t.shape, n.integer("axis", 1), magnitude=negative)
    if quant is None:
        return _called(n, DType.F32, None, AT_RUN_TIME, STATIC_HINT)
    if negative:
        return _mirrored(n, array, quant)
    return dequantized(n, n.x(0), quant) if array is None else dequantized_const(n, n.name(0), array, quant)


def _is_negative(n: Node) -> bool:
    """True where every scale is below 0: the integers count downwards."""
    scales = n.array(1)
    return scales is not None and scales.size > 0 and scales.dtype.kind == "f" and bool((scales < 0).all())


def _mirrored(n: Node, array: np.ndarray | None, quant: Quant) -> Value:
    """−s·(q − z) is s·(~q − ~z) with ~q = −1 − q, which stays in the dtype: positive scales, other integers."""
    mirrored = Quant(quant.scale, tuple(-1 - z for z in quant.zero_point), quant.axis)
    if array is not None and array.dtype.kind == "i":
        return dequantized_const(n, n.proto.output[0], ~array, mirrored)
    below = n.op(PLAIN_UNARY["neg"], dequantized(n, n.x(0), quant))
    dtype = n.x(0).type.dtype
    if array is not None or not dtype.is_signed or dtype is DType.I32:
        return below
    return dequantized(n, quantized(n, below, mirrored, dtype), mirrored)


def _within(n: Node, x: Value, limits: tuple[int, int] | None) -> Value:
    """Integers limited to a type below 8 bits."""
    return x if limits is None else limited(n, x, *limits)


def _called(n: Node, dtype: DType, limits: tuple[int, int] | None, reason: str, hint: str) -> Results:
    """A call; of Microsoft's operators, which ONNX infers nothing for, the result has the operand's shape."""
    dtype = n.scope.wide.get(n.proto.output[0], dtype)
    if n.domain in QUARK_DOMAINS:
        raise n.fail(f"{reason}: ONNX Runtime has no {n.op_type} that could run it", hint=hint, kind=NotTaken)
    types: list[Inferred | None] | None = [Inferred(ELEM_TYPES[dtype], n.x(0).type.shape)] if n.domain else None
    results = n.call(types, reason=reason, hint=hint)
    return results if limits is None else _within(n, results[0], limits)


def _result_dtype(n: Node) -> tuple[DType, tuple[int, int] | None]:
    """The dtype that holds the result, and its limits where the type is narrower."""
    if n.has(2):
        zero = n.array(2)
        dtype = n.x(2).type.dtype if zero is None else DType.of(zero.dtype)
        if dtype not in QUANTIZED:
            raise _no_integers(n, f"its zero point is {dtype.text}")
        return dtype, n.scope.limits.get(n.name(2))
    elem_type = n.integer("output_dtype")
    if not elem_type:
        return DType.U8, None
    held = carrier(elem_type)
    if held not in QUANTIZED:
        raise _no_integers(n, f"it quantises to {dtype_name(elem_type)}")
    return held, packed_limits(elem_type)


def _no_integers(n: Node, why: str) -> FrontendError:
    return n.fail(
        "the quantised type isn't taken",
        why=f"{why}; tensors of the BPU have 8 or 16 bit integers",
        hint="quantise activations to int8, uint8, int16 or uint16",
        kind=BadQuantization,
    )


def _mark_wide(n: Node) -> None:
    """Since opset 19 the result has the scale's float type (opset 23: or `output_dtype`)."""
    scale = n.scope.known(n.name(1)).elem_type
    dtype = DTYPES.get(n.integer("output_dtype") or scale, DType.F32)
    if dtype in {DType.F16, DType.F64}:
        n.scope.wide[n.proto.output[0]] = dtype


def _blocks(n: Node, array: np.ndarray) -> Results:
    """Blocked scales (opset 21) of a constant."""
    scales, axis, size = n.array(1), n.integer("axis", 1), n.integer("block_size")
    zeros = n.array(2) if n.has(2) else np.zeros(1, array.dtype)
    if scales is None or zeros is None:
        return _called(n, DType.F32, None, AT_RUN_TIME, STATIC_HINT)
    fits = -array.ndim <= axis < array.ndim and scales.ndim == array.ndim and size >= 1
    if not fits or (zeros.size > 1 and zeros.shape != scales.shape):
        raise n.fail(
            "blocked scales don't fit the tensor",
            why=f"shapes {array.shape}, {scales.shape} and {zeros.shape}, axis {axis}, blocks of {size}",
            kind=BadQuantization,
        )
    scales, zeros = (spread(values, array.shape, axis, size) for values in (scales, zeros))
    return blocked_weight(n, n.proto.output[0], array, scales, zeros)
