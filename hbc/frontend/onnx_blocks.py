"""Weights whose scales differ inside a channel (blocks of 32, say): no accumulator has one scale for those.

Where all blocks of a channel agree, or are multiples of its smallest scale, nothing is lost. Else, where a product of
quantised activations reads the weight, its reals are rounded once more: to 16 bits, one scale per output channel. That
moves a weight by 1/65534 of the channel's largest one at most, far below a step of the 4 or 8 bits that it had.
Anything else gets the reals themselves, on the CPU.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from hbc.ir.core import Value
from hbc.ir.types import Quant

from .onnx_model import domain_of
from .onnx_node import Node
from .onnx_quant import dequantized_const, list_quant
from .onnx_scope import Scope

LARGEST = 32767  # of the requantised weights: symmetric, as every weight is
PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_FOLLOW = {"Identity", "Transpose"}  # what stands between a weight and its reader
_PASS = {"Relu", "Clip", "MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice"}
_QUANTISED = {"DequantizeLinear", "ExtendedDequantizeLinear", "VitisDequantizeLinear", "Quant", "IntQuant"}


def spread(values: np.ndarray, shape: tuple[int, ...], axis: int, size: int) -> np.ndarray:
    """One value per block of `size` along `axis` → one per element; the last block may be cut short."""
    if values.size == 1:
        return values.reshape(())
    return values.repeat(size, axis=axis).take(np.arange(shape[axis]), axis=axis)


def blocked_weight(
    n: Node, name: str, array: np.ndarray, scales: np.ndarray, zeros: np.ndarray, channels: int | None = None
) -> Value:
    """dequantize(const) of integers with a scale for every element, or their reals.

    `scales` and `zeros` broadcast to `array`; `name` is the tensor that its readers read. `channels` is the axis of the
    output channels; where it isn't given, the readers tell.
    """
    full = np.broadcast_to(scales.astype(np.float32), array.shape)
    zero = np.broadcast_to(zeros.astype(np.int64), array.shape)
    axis = one_axis(full, zero)
    if axis is not None:
        return _by_channel(n, name, array, full, zero, axis)
    reals = np.asarray((array.astype(np.int64) - zero).astype(np.float32) * full, np.float32)
    if channels is None:
        channels = output_axis(n.scope, name, reals.ndim)
    if channels is None or not np.isfinite(reals).all():
        return n.const(reals)
    exact = in_smallest_steps(array.astype(np.int64) - zero, full, channels)
    if exact is not None:
        return dequantized_const(n, name, *exact)
    n.scope.notes.append(
        f"{n.loc.node}: its scales differ inside an output channel; its weights are rounded to 16 bits, one scale per "
        "channel (1/65534 of the channel's largest weight at most)"
    )
    return requantized(n, name, reals, channels)


def one_axis(scales: np.ndarray, zeros: np.ndarray) -> int | None:
    """The only axis along which scale or zero point change (−1 where none does); None where there are more."""

    def changes(values: np.ndarray, axis: int) -> bool:
        return bool((values != values.take([0], axis=axis)).any())

    axes = [i for i in range(scales.ndim) if changes(scales, i) or changes(zeros, i)]
    return None if len(axes) > 1 else axes[0] if axes else -1


def _by_channel(n: Node, name: str, array: np.ndarray, scales: np.ndarray, zeros: np.ndarray, axis: int) -> Value:
    first = tuple(slice(None) if i == axis else 0 for i in range(array.ndim))
    quant = list_quant(n, scales[first].reshape(-1), zeros[first].reshape(-1), None if axis < 0 else axis)
    return dequantized_const(n, name, array, quant)


def in_smallest_steps(integers: np.ndarray, scales: np.ndarray, axis: int) -> tuple[np.ndarray, Quant] | None:
    """The same reals as integers of each channel's smallest scale, where the others are its multiples; else None.

    So it is with scales that are powers of two, within 16 bits.
    """
    others = tuple(i for i in range(scales.ndim) if i != axis)
    least = np.where(scales > 0, scales, np.float32(np.inf)).min(axis=others)
    least = np.where(np.isfinite(least), least, np.float32(1))
    ratio = scales.astype(np.float64) / np.expand_dims(least, others).astype(np.float64)
    if ratio.max(initial=0) > LARGEST or (ratio != np.rint(ratio)).any():
        return None
    steps = integers * ratio.astype(np.int64)
    largest = np.abs(steps).max(initial=0)
    if largest > LARGEST:
        return None
    return steps.astype(np.int8 if largest <= 127 else np.int16), Quant(tuple(float(s) for s in least), (0,), axis)


def requantized(n: Node, name: str, reals: np.ndarray, axis: int) -> Value:
    """dequantize(const i16) nearest to `reals`, one scale for each index of `axis`."""
    others = tuple(i for i in range(reals.ndim) if i != axis)
    largest = np.abs(reals).max(axis=others, initial=0.0)
    scale = np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1)).astype(np.float32)
    steps = np.rint(reals.astype(np.float64) / np.expand_dims(scale, others).astype(np.float64))
    integers = np.clip(steps, -LARGEST, LARGEST).astype(np.int16)
    return dequantized_const(n, name, integers, Quant(tuple(float(s) for s in scale), (0,), axis))


# ---- who reads it


def output_axis(scope: Scope, name: str, rank: int) -> int | None:
    """The axis of weight `name` that runs along the output channels of every reader.

    None where a reader is no product of quantised activations, or readers disagree.
    """
    found = {_axis_at(scope, reader, name, rank) for reader in scope.readers(name)}
    if len(found) != 1 or name in {o.name for o in scope.source.graph.output}:
        return None
    return found.pop()


def _axis_at(scope: Scope, reader: NodeProto, name: str, rank: int) -> int | None:
    n = Node(scope, reader)
    if n.domain or (reader.op_type not in PRODUCTS and reader.op_type not in _FOLLOW):
        return None
    if reader.op_type in _FOLLOW:
        axis = output_axis(scope, reader.output[0], rank)
        perm = n.ints("perm") or tuple(reversed(range(rank)))
        return axis if axis is None or reader.op_type == "Identity" or len(perm) != rank else perm[axis]
    if list(reader.input).index(name) != 1 or not is_quantised(scope, reader.input[0]):
        return None
    if reader.op_type == "Gemm":
        return 0 if n.integer("transB") else 1
    if reader.op_type == "MatMul":
        return 1 if rank == 2 else None
    if reader.op_type == "ConvTranspose":
        return 1 if n.integer("group", 1) == 1 else None
    return 0


def is_quantised(scope: Scope, name: str) -> bool:
    """True for a tensor that a DequantizeLinear (or a Quant) makes, up to ops that keep its integers."""
    while (maker := scope.makers.get(name)) is not None:
        if maker.op_type in _QUANTISED:
            return True
        if domain_of(maker) or maker.op_type not in _PASS:
            return False
        name = maker.input[0]
    return False
