"""Scales and zero points of ONNX nodes → `Quant`, checked against the tensor they describe."""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import BadQuantization
from hbc.ir.core import Value
from hbc.ir.ops import Dequantize, Quantize, Reinterpret
from hbc.ir.types import DType, Quant, TensorType

from .building import Building
from .onnx_node import Node
from .problem import quoted

VANISHING = 2.0**-100  # scales of dead channels: 0, or what calibration left of it; no output step is that fine
QUANTIZED = {DType.I8, DType.U8, DType.I16, DType.U16, DType.I32}


def read_quant(
    n: Node, scale: int, zero: int, dtype: DType, shape: tuple[int, ...], axis: int, *, magnitude: bool = False
) -> Quant | None:
    """The quantisation that operands `scale` and `zero` give a tensor of `dtype` and `shape`; None where not constant.

    `axis` counts where the scales are a list; with `magnitude` their signs are left out. FrontendError names the node
    and tensor where the values contradict the tensor.
    """
    scales = n.array(scale)
    zeros = n.array(zero) if n.has(zero) else np.zeros(1, dtype.numpy)
    if scales is None or zeros is None:
        return None
    who = f"scale {quoted(n.name(scale))}"
    if scales.dtype.kind != "f":
        raise n.fail(f"{who} is {scales.dtype}, not a float", hint="export the model again", kind=BadQuantization)
    if n.has(zero) and DType.of(zeros.dtype) is not dtype:
        why = f"zero point {quoted(n.name(zero))} is {zeros.dtype}, the tensor is {dtype.text}"
        raise n.fail(
            "zero point and tensor differ in type", why=why, hint="export the model again", kind=BadQuantization
        )
    flat = scales.astype(np.float32).reshape(-1)
    flat = np.abs(flat) if magnitude else flat
    if not np.isfinite(flat).all() or (flat < 0).any():
        bad = flat[~(np.isfinite(flat) & (flat >= 0))][0]
        raise n.fail(
            f"{who} holds {bad}",
            why="a scale is a positive, finite number",
            hint="calibrate the model again",
            kind=BadQuantization,
        )
    return _shaped(n, flat, zeros.reshape(-1), shape, axis, who)


def _shaped(n: Node, scales: np.ndarray, zeros: np.ndarray, shape: tuple[int, ...], axis: int, who: str) -> Quant:
    if zeros.size not in {1, scales.size}:
        raise n.fail(
            f"{who} has {scales.size} entries, its zero point {zeros.size}",
            hint="export the model again",
            kind=BadQuantization,
        )
    zero = tuple(int(z) for z in zeros)
    if scales.size == 1:
        return Quant((float(scales[0]),), zero)
    if not -len(shape) <= axis < len(shape):
        raise n.fail(
            f"axis {axis} is none of a tensor of rank {len(shape)}",
            why=f"{who} has one entry per channel",
            kind=BadQuantization,
        )
    axis %= len(shape)
    if shape[axis] != scales.size:
        why = f"axis {axis} of the tensor has {shape[axis]}, shape {list(shape)}"
        raise n.fail(f"{who} has {scales.size} entries", why=why, hint="export the model again", kind=BadQuantization)
    return Quant(tuple(float(s) for s in scales), zero, axis)


def list_quant(n: Building, scales: np.ndarray, zeros: np.ndarray, axis: int | None) -> Quant:
    """A Quant of these scales and zero points along `axis`; FrontendError for scales that are no positive numbers."""
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise n.fail("a scale is negative or not finite", hint="calibrate the model again", kind=BadQuantization)
    return Quant(tuple(float(s) for s in np.float32(scales)), tuple(int(z) for z in zeros), axis)


def require_positive(n: Building, quant: Quant) -> None:
    """FrontendError where a scale that computed tensors are divided by is zero."""
    if min(quant.scale) <= 0:
        raise n.fail(
            "a scale is 0",
            why="a computed tensor can't be divided by it",
            hint="calibrate the model again",
            kind=BadQuantization,
        )


def quantized(n: Building, x: Value, quant: Quant, dtype: DType) -> Value:
    """quantize(x) to `dtype` by `quant`."""
    require_positive(n, quant)
    return n.op(Quantize, x, type=TensorType(x.type.shape, dtype, quant))


def dequantized(n: Building, x: Value, quant: Quant) -> Value:
    """dequantize(x) by `quant`; where `x` is read otherwise by what made it, a reinterpret comes between."""
    require_positive(n, quant)
    if x.type.quant != quant:
        x = n.op(Reinterpret, x, type=TensorType(x.type.shape, x.type.dtype, quant))
    return n.op(Dequantize, x)


def dequantized_const(n: Building, name: str, array: np.ndarray, quant: Quant) -> Value:
    """dequantize(const) of the known integers `array`, exact in reals.

    A channel with scale 0 (or one that vanishes beside any other number) is all zeros: it becomes integers equal to its
    zero point under a scale that can be divided by.
    i32 constants (biases) lose their zero point, which no accumulator has.
    """
    values, quant = _without_zero_scales(array, quant)
    if values.dtype == np.int32 and any(quant.zero_point):
        shift = _along(np.asarray(quant.zero_point, np.int64), quant.axis, values.ndim)
        centred = values.astype(np.int64) - shift
        if np.abs(centred).max(initial=0) < 1 << 31:
            values, quant = centred.astype(np.int32), Quant(quant.scale, (0,), quant.axis)
    shared = None if values is array else values
    x = n.scope.typed_const(name, quant, array) if shared is None else n.scope.const(shared, n.loc, name, quant)
    return n.op(Dequantize, x)


def dequantize_operand(n: Node, index: int, scale: int, zero: int, axis: int) -> Value | None:
    """Operand `index` as reals by the scale and zero point in other operands; None where those aren't constant."""
    array = n.scope.array(n.name(index))
    t = n.x(index).type if array is None else TensorType(array.shape, DType.of(array.dtype))
    if t.dtype not in QUANTIZED:
        raise n.fail(
            f"input {quoted(n.name(index))} is {t.dtype.text}, which stands for no reals",
            hint="export the model again",
            kind=BadQuantization,
        )
    quant = read_quant(n, scale, zero, t.dtype, t.shape, axis)
    if quant is None:
        return None
    return dequantized(n, n.x(index), quant) if array is None else dequantized_const(n, n.name(index), array, quant)


def _without_zero_scales(array: np.ndarray, quant: Quant) -> tuple[np.ndarray, Quant]:
    scales = np.asarray(quant.scale, np.float32)
    dead = scales < VANISHING
    if not dead.any():
        return array, quant
    alive = np.sort(scales[~dead])
    spare = (
        alive[(alive.size - 1) // 2] if alive.size else np.float32(1)
    )  # a usual one: a bias is counted in steps of it
    zeros = np.asarray(quant.zero_point, np.int64)
    values = np.where(_along(dead, quant.axis, array.ndim), _along(zeros, quant.axis, array.ndim), array).astype(
        array.dtype
    )
    usable = np.where(dead, spare, scales)
    return values, Quant(tuple(float(s) for s in usable), quant.zero_point, quant.axis)


def _along(values: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    return values.reshape(()) if axis is None else values.reshape([-1 if i == axis else 1 for i in range(rank)])
