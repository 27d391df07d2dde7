"""Convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from hbc.ir.core import Value
from hbc.ir.ops import Add, Conv2d, ConvTranspose2d, Dequantize, Linear, Matmul, Reshape, Slice

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_weights import is_weight, require_finite, reshaped, scaled, transposed
from .registry import onnx_op
from .volume import convolve_transposed_volume, convolve_volume, is_integral
from .window import LARGEST, Window, positive, read_window, split_padding

RANKS = {3, 4, 5}  # [N,C] and one to three spatial axes
REAL_VOLUME = "a 3-D convolution of reals; in integers it becomes a 2-D one"


@onnx_op("Conv")
def conv(n: Node) -> Results:
    """Conv of 1 to 3 spatial axes → conv2d (1-D as height 1, 3-D by depths); others, and 3-D ones of reals: a call."""
    operands = n.reals()
    if operands is None or n.x(0).type.rank not in RANKS:
        return n.call()
    if n.x(0).type.rank == 5 and not is_integral(n.x(1)):
        return n.call(reason=REAL_VOLUME, hint="quantise its operands and its result")
    return convolve(n, n.x(0), n.x(1), n.x(2) if n.has(2) else None)


def convolve(n: Node, x: Value, weight: Value, bias: Value | None) -> Value:
    """conv2d of real operands by the attributes of a Conv node; rank 3, 4 or 5."""
    if weight.type.rank != x.type.rank:
        raise n.fail("input and weight differ in rank", why=f"{list(x.type.shape)} and {list(weight.type.shape)}")
    require_finite(n, weight, bias)
    flat = x.type.rank == 3
    w = read_window(n, x.type.shape[2:], weight.type.shape[2:])
    x, w = _without_negative_pads(n, x, w)
    group = n.integer("group", 1)
    positive(n, "group", (group,))
    if x.type.rank == 5:
        return convolve_volume(n, x, weight, bias, w, group)
    if flat:
        x, weight, w = _lifted(n, x), _lifted(n, weight), w.lifted()
    y = n.op(Conv2d, x, weight, bias, strides=w.strides, pads=w.pads, dilations=w.dilations, group=group)
    return _lowered(n, y) if flat else y


@onnx_op("ConvTranspose")
def conv_transpose(n: Node) -> Results:
    """ConvTranspose of 1 to 3 spatial axes → conv_transpose2d."""
    operands = n.reals()
    if operands is None or n.x(0).type.rank not in RANKS:
        return n.call()
    if n.x(0).type.rank == 5 and not is_integral(n.x(1)):
        return n.call(reason=REAL_VOLUME, hint="quantise its operands and its result")
    x, weight, bias = n.x(0), n.x(1), n.x(2) if n.has(2) else None
    if weight.type.rank != x.type.rank:
        raise n.fail("input and weight differ in rank", why=f"{list(x.type.shape)} and {list(weight.type.shape)}")
    require_finite(n, weight, bias)
    w, extra = _transposed_window(n, x.type.shape[2:], weight.type.shape[2:])
    if min(w.pads, default=0) < 0:
        return n.call(reason=f"pads {list(w.pads)} widen the result of a transposed convolution", hint="pad in a Pad")
    group = n.integer("group", 1)
    positive(n, "group", (group,))
    if x.type.rank == 5:
        return convolve_transposed_volume(n, x, weight, bias, w, extra, group)
    flat = x.type.rank == 3
    if flat:
        x, weight, w, extra = _lifted(n, x), _lifted(n, weight), w.lifted(), (0, *extra)
    y = n.op(
        ConvTranspose2d, x, weight, bias,
        strides=w.strides, pads=w.pads, dilations=w.dilations, output_padding=extra, group=group,
    )  # fmt: skip
    return _lowered(n, y) if flat else y


def _transposed_window(n: Node, size: Sequence[int], kernel: Sequence[int]) -> tuple[Window, tuple[int, ...]]:
    """Window and output padding of a ConvTranspose, by ONNX's formulas for `auto_pad` and `output_shape`."""
    w = read_window(n, size, kernel, resolve=False)
    extra = list(n.ints("output_padding") or [0] * len(size))
    if len(extra) != len(size) or not 0 <= min(extra) <= max(extra) <= LARGEST:
        raise n.fail(f"attribute 'output_padding' is {extra}", why=f"it takes {len(size)} entries from 0 to {LARGEST}")
    auto, target = n.text("auto_pad", "NOTSET"), n.ints("output_shape")
    grows = target is not None  # SAME alone never does: ONNX's inference and ONNX Runtime stop at the last window
    if target is not None:
        target = target[-len(size) :]  # some exporters list batch and channels too
    elif auto in {"SAME_UPPER", "SAME_LOWER"}:
        target = tuple(d * s for d, s in zip(size, w.strides, strict=True))
    if target is None:
        return w, tuple(extra)
    pads = [0] * (2 * len(size))
    for i, (d, want) in enumerate(zip(size, target, strict=True)):
        full = w.strides[i] * (d - 1) + extra[i] + (kernel[i] - 1) * w.dilations[i] + 1
        extra[i] += max(0, want - full) if grows else 0  # rows beyond the last window hold the bias alone
        pads[i], pads[len(size) + i] = split_padding(max(0, full - want), upper=auto == "SAME_UPPER")
    return Window(w.kernel, w.strides, tuple(pads), w.dilations), tuple(extra)


def _without_negative_pads(n: Node, x: Value, w: Window) -> tuple[Value, Window]:
    """A negative pad crops the input: a slice, and no pad there."""
    if min(w.pads, default=0) >= 0:
        return x, w
    shape, k = x.type.shape, len(w.kernel)
    starts = [0, 0] + [max(0, -p) for p in w.pads[:k]]
    ends = [0, 0] + [max(0, -p) for p in w.pads[k:]]
    sizes = [d - a - b for d, a, b in zip(shape, starts, ends, strict=True)]
    if min(sizes) < 1:
        raise n.fail("negative pads leave nothing of the input", why=f"pads {list(w.pads)} on {list(shape)}")
    y = n.op(Slice, x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(shape))
    return y, Window(w.kernel, w.strides, tuple(max(0, p) for p in w.pads), w.dilations)


def _lifted(n: Node, value: Value) -> Value:
    """[A,B,L] → [A,B,1,L]."""
    a, b, size = value.type.shape
    return reshaped(n, value, (a, b, 1, size))


def _lowered(n: Node, value: Value) -> Value:
    """[A,B,1,L] → [A,B,L]."""
    a, b, _, size = value.type.shape
    return n.op(Reshape, value, shape=(a, b, size))


@onnx_op("MatMul")
def matmul(n: Node) -> Results:
    """A product with a weight → linear; of two computed operands → matmul."""
    operands = n.reals()
    if operands is None or min(v.type.rank for v in operands) < 1:
        return n.call()
    return multiply(n, *operands)


def multiply(n: Building, lhs: Value, rhs: Value) -> Value:
    """lhs · rhs by NumPy's rules, ranks of 1 and more."""
    require_finite(n, lhs, rhs)
    a, b = lhs.type.shape, rhs.type.shape
    if len(a) == 1 or len(b) == 1:
        left = reshaped(n, lhs, (1, a[0])) if len(a) == 1 else lhs
        right = reshaped(n, rhs, (b[0], 1)) if len(b) == 1 else rhs
        y = multiply(n, left, right)
        shape = y.type.shape
        shape = shape[:-1] if len(b) == 1 else shape
        shape = (*shape[:-2], shape[-1]) if len(a) == 1 and len(b) > 1 else shape[:-1] if len(a) == 1 else shape
        return n.op(Reshape, y, shape=shape)
    if is_weight(rhs) and len(b) == 2:
        return n.op(Linear, lhs, transposed(n, rhs, (1, 0)))
    if _has_rows(lhs) and not is_weight(rhs):
        swap = (*range(len(b) - 2), len(b) - 1, len(b) - 2)
        return transposed(n, n.op(Linear, transposed(n, rhs, swap), lhs), swap)
    return n.op(Matmul, lhs, rhs)


def _has_rows(lhs: Value) -> bool:
    """True for a weight on the left with a scale per row: W·x is (xᵀ·Wᵀ)ᵀ, whose columns have those scales."""
    quant = lhs.op.x.type.quant if is_weight(lhs) and isinstance(lhs.op, Dequantize) else None
    return quant is not None and quant.axis == 0 and lhs.type.rank == 2


@onnx_op("Gemm")
def gemm(n: Node) -> Results:
    """alpha·A′·B′ + beta·C → linear where B is a weight, else matmul and add."""
    operands = n.reals()
    if operands is None:
        return n.call()
    bias = n.x(2) if n.has(2) else None
    return affine(n, n.x(0), n.x(1), bias)


def affine(n: Node, a: Value, b: Value, c: Value | None) -> Value:
    """Gemm of real operands by the node's attributes."""
    if a.type.rank != 2 or b.type.rank != 2:
        raise n.fail("Gemm takes matrices", why=f"shapes {list(a.type.shape)} and {list(b.type.shape)}")
    require_finite(n, b, c)
    alpha, beta = n.number("alpha", 1.0), n.number("beta", 1.0)
    a = transposed(n, a, (1, 0)) if n.integer("transA") else a
    if c is not None and beta == 0:
        c = None
    if not is_weight(b):
        product = n.op(Matmul, a, transposed(n, b, (1, 0)) if n.integer("transB") else b)
        product = scaled(n, product, alpha)
        return product if c is None else n.op(Add, product, scaled(n, c, beta))
    weight = scaled(n, b if n.integer("transB") else transposed(n, b, (1, 0)), alpha)
    columns = weight.type.shape[0]
    if c is not None and is_weight(c) and c.type.elements == columns and c.type.shape[-1:] == (columns,):
        return n.op(Linear, a, weight, scaled(n, reshaped(n, c, (columns,)), beta))
    y = n.op(Linear, a, weight)
    return y if c is None else n.op(Add, y, scaled(n, c, beta))
