"""Pooling over windows and over whole planes."""

from __future__ import annotations

from hbc.ir.core import Value
from hbc.ir.ops import AvgPool, MaxPool, Pool, ReduceMax, ReduceMean, Reshape
from hbc.ir.types import DType, TensorType

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_weights import reshaped
from .registry import onnx_op
from .volume import average_volume, is_integral, max_volume
from .window import Window, read_window

RANKS = {3, 4, 5}  # [N,C] and one to three spatial axes
UNEVEN = "its boxes hold different numbers of positions along more than one axis, as pads that don't count make it"
UNEVEN_HINT = "pad in an op of its own, or count the pads (count_include_pad)"


@onnx_op("MaxPool")
def max_pool(n: Node) -> Results:
    """MaxPool of 1 to 3 spatial axes, on reals or integers; with indices, or of more axes, on the CPU."""
    x = per_tensor(n, n.x(0))
    if n.wants(1):
        return n.call(reason="its indices are read", hint="unpool by a Resize or a ConvTranspose")
    if x.type.rank not in RANKS or x.type.dtype in {DType.BOOL, DType.U64}:
        return n.call()
    if x.type.rank == 5:
        w = read_window(n, x.type.shape[2:], None)
        return max_volume(n, x, w, _counts(n, x.type.shape[2:], w))
    return pooled(n, MaxPool, x)


@onnx_op("AveragePool")
def average_pool(n: Node) -> Results:
    """AveragePool of 1 to 3 spatial axes."""
    operands = n.reals()
    if operands is None or operands[0].type.rank not in RANKS:
        return n.call()
    if operands[0].type.rank == 5:
        return _average_volume(n, operands[0])
    return average(n, operands[0])


def _average_volume(n: Node, x: Value) -> Results:
    if not is_integral(x):
        return n.call(reason="a 3-D average of reals", hint="quantise its operand and its result")
    y = _boxes(n, x)
    return n.call(reason=UNEVEN, hint=UNEVEN_HINT) if y is None else y


def _boxes(n: Node, x: Value) -> Value | None:
    w = read_window(n, x.type.shape[2:], None)
    counts = _counts(n, x.type.shape[2:], w)
    return average_volume(n, x, w, counts, include_pad=bool(n.integer("count_include_pad")))


def average(n: Node, x: Value) -> Value:
    """avg_pool of a real operand by the attributes of an AveragePool node."""
    if x.type.rank < 5:
        return pooled(n, AvgPool, x, count_include_pad=bool(n.integer("count_include_pad")))
    y = _boxes(n, x)
    if y is None:
        raise n.fail("this 3-D average isn't taken", why=UNEVEN, hint=UNEVEN_HINT)
    return y


def pooled(n: Node, cls: type[Pool], x: Value, **attrs: object) -> Value:
    """A pool by the node's window, with ONNX's own count of windows."""
    w = read_window(n, x.type.shape[2:], None)
    counts = _counts(n, x.type.shape[2:], w)
    flat = x.type.rank == 3
    if flat:
        a, b, size = x.type.shape
        x, w, counts = reshaped(n, x, (a, b, 1, size)), w.lifted(), (1, *counts)
    t = TensorType((*x.type.shape[:2], *counts), x.type.dtype, x.type.quant)
    y = n.op(cls, x, type=t, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, **attrs)
    if not flat:
        return y
    return n.op(Reshape, y, shape=(y.type.shape[0], y.type.shape[1], y.type.shape[3]))


def _counts(n: Node, size: tuple[int, ...], w: Window) -> tuple[int, ...]:
    """Windows along each axis; in ceil mode one that would start in the end pad doesn't count (ONNX's text)."""
    ceil = n.integer("ceil_mode")
    counts = []
    for i, d in enumerate(size):
        span = d + w.pads[i] + w.pads[len(size) + i] - w.dilations[i] * (w.kernel[i] - 1) - 1
        if span < 0:
            raise n.fail("the kernel doesn't fit the padded input", why=f"kernel {list(w.kernel)} on {list(size)}")
        count = (-(-span // w.strides[i]) if ceil else span // w.strides[i]) + 1
        if ceil and (count - 1) * w.strides[i] >= d + w.pads[i]:
            count -= 1
        counts.append(count)
    return tuple(counts)


@onnx_op("GlobalAveragePool")
def global_average_pool(n: Node) -> Results:
    """The mean of each plane: one window over all of it."""
    operands = n.reals()
    return n.call() if operands is None else whole_average(n, operands[0])


def whole_average(n: Building, x: Value) -> Value:
    """The mean over all spatial axes of [N,C,…], kept as 1."""
    return _whole(n, x, AvgPool, ReduceMean)


@onnx_op("GlobalMaxPool")
def global_max_pool(n: Node) -> Results:
    """The largest value of each plane."""
    operands = n.reals()
    return n.call() if operands is None else _whole(n, operands[0], MaxPool, ReduceMax)


def _whole(n: Building, x: Value, pool: type[Pool], reduce: type[ReduceMean | ReduceMax]) -> Value:
    if x.type.rank < 3:
        raise n.fail(f"the input has rank {x.type.rank}", why="a global pool takes [N,C,…]")
    if x.type.rank == 4:
        return n.op(pool, x, kernel=x.type.shape[2:])
    return n.op(reduce, x, axes=tuple(range(2, x.type.rank)), keepdims=True)


def per_tensor(n: Building, x: Value) -> Value:
    """`x`, as plain integers where each channel has its own scale: those integers can't be compared as reals."""
    return n.stripped(x) if x.type.quant is not None and not x.type.quant.is_per_tensor else x
