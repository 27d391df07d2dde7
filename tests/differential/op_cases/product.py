"""Convolutions and matrix products, with weights and of two tensors, and those that ONNX has on integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.differential.quantised import Array, Scaled

from .draw import Build, Draw, Kind, OpCase, Shape


def result_by(d: Draw, x: Scaled, terms: int, factor: float = 0.005 * 73) -> Scaled:
    """A scale under which sums of `terms` products of `x` and numbers of size `factor` use the range, and leave it."""
    spread = x.scale * (74 if x.dtype.itemsize == 1 else 74 * 256) * factor * math.sqrt(terms)
    by = d.by(dtype=x.dtype)
    return Scaled(float(np.float32(spread / (64 if by.dtype.itemsize == 1 else 64 * 256))), by.zero)


def biases(d: Draw, case: OpCase, shape: Shape) -> list[str]:
    return [case.const(d.reals(shape))] if d.flag() else []


def convolution(d: Draw) -> OpCase:
    """1-D to 3-D; groups, depthwise; any strides or dilations, and pads; batches; per-channel weights."""
    rank, group = d.int(1, 3), d.of(1, 1, 2, 3)
    per_group = d.of(1, 2, 5)
    cin, out = group * per_group, group * d.int(1, 3)
    kernel = tuple(d.ints(rank, 1, 3))
    attrs = {"strides": d.ints(rank, 1, 3), "dilations": d.ints(rank, 1, 2), "pads": d.ints(2 * rank, 0, 2)}
    attrs["strides"] = [s if k == 1 else 1 for s, k in zip(attrs["strides"], attrs["dilations"], strict=True)]
    size = [(k - 1) * 2 + 1 + d.int(0, 3) for k in kernel]
    case, by = OpCase(), d.far()
    x, w = d.activation(case, (d.int(1, 2), cin, *size), by), d.weight(case, (out, per_group, *kernel))
    y = case.op("Conv", x, w, *biases(d, case, (out,)), group=group, **attrs)
    return case.result(y, result_by(d, by, per_group * math.prod(kernel)))


def transposed(d: Draw) -> OpCase:
    rank, group = d.int(1, 3), d.of(1, 1, 2)
    cin, per_group = group * d.int(1, 3), d.int(1, 3)
    kernel, strides = tuple(d.ints(rank, 2, 3)), d.ints(rank, 1, 3)
    attrs = {"strides": strides, "output_padding": [d.int(0, s - 1) for s in strides], "pads": d.ints(2 * rank, 0, 1)}
    case, by = OpCase(), d.far()
    x = d.activation(case, (d.int(1, 2), cin, *d.ints(rank, 2, 4)), by)
    w = case.weight(d.rng().integers(-127, 128, (cin, per_group, *kernel)).astype(np.int8), np.float32(0.004))
    y = case.op("ConvTranspose", x, w, *biases(d, case, (group * per_group,)), group=group, **attrs)
    return case.result(y, result_by(d, by, cin * math.prod(kernel) // group))


def gemm(d: Draw) -> OpCase:
    """Either operand turned; alpha and beta; a third operand of any shape that broadcasts and of the result's size."""
    m, k, n = d.int(1, 4), d.int(1, 9), d.int(1, 5)
    attrs: dict[str, Any] = {"transA": d.int(0, 1), "transB": d.int(0, 1)}
    if d.flag():
        attrs |= {"alpha": float(d.real(0.5, 2)), "beta": float(d.real(0.5, 2))}
    case, by = OpCase(), d.far()
    a = d.activation(case, (k, m) if attrs["transA"] else (m, k), by)
    b = d.weight(case, (n, k) if attrs["transB"] else (k, n), 1 - attrs["transB"])
    y_by = result_by(d, by, k)
    largest = y_by.scale * (100 if d.kind is not Kind.WIDE else 25600)
    shape = d.of((n,), (1, n), (1,), (m, 1), (m, n), ())
    c = [case.const(d.reals(shape, -largest, largest))] if d.flag() else []
    return case.result(case.op("Gemm", a, b, *c, **attrs), y_by)


def matmul(d: Draw) -> OpCase:
    """By weights or by a tensor; batches that broadcast; operands of one axis."""
    batch, m, k, n = d.shape(0, 2, 3), d.int(1, 4), d.int(1, 9), d.int(1, 5)
    case, by = OpCase(), d.far()
    left: Shape = d.of((*batch, m, k), (*batch, m, k), (k,))
    if d.flag():
        b = d.weight(case, (k, n), 1)
        factor = 0.005 * 73
    else:
        b_by = d.like(by)
        right: Shape = d.of((k, n), (k,), (*d.broadcast(batch), k, n))
        b = d.activation(case, right, b_by)
        factor = b_by.scale * 74 * (256 if d.kind is Kind.WIDE else 1)
        case.on_cpu = True if d.kind is Kind.WIDE else None  # a product takes one i16 operand
    return case.result(case.op("MatMul", d.activation(case, left, by), b), result_by(d, by, k, factor))


# ---- of integers


def eight_bits(d: Draw) -> Scaled:
    return d.far(dtype=d.of(np.int8, np.uint8))


def parameters(case: OpCase, by: Scaled) -> list[str]:
    return [case.const(np.float32(by.scale)), case.const(by.zero)]


def qlinear_conv(d: Draw) -> OpCase:
    group = d.of(1, 1, 2)
    cin, out, kernel = group * d.int(1, 3), group * d.int(1, 3), tuple(d.ints(2, 1, 3))
    case, by = OpCase(), eight_bits(d)
    w = d.rng().integers(-127, 128, (out, cin // group, *kernel)).astype(np.int8)
    per_channel = d.flag()
    scale = d.reals((out,), 0.001, 0.01) if per_channel else d.real(0.001, 0.01)
    weights = [case.const(w), case.const(scale), case.const(np.zeros(np.shape(scale), np.int8))]
    y_by = result_by(d, by, cin // group * math.prod(kernel))
    bias = [case.const(d.rng().integers(-3000, 3000, out).astype(np.int32))] if d.flag() else []
    x = case.feed(d.data(by, (d.int(1, 2), cin, *d.ints(2, 3, 6))))
    attrs = {"strides": d.ints(2, 1, 2), "pads": d.ints(4, 0, 2), "group": group}
    case.op("QLinearConv", x, *parameters(case, by), *weights, *parameters(case, y_by), *bias, out="y", **attrs)
    case.output("y", dtype=by.dtype)
    return case


def qlinear_matmul(d: Draw) -> OpCase:
    batch, m, k, n = d.shape(0, 2, 3), d.int(1, 4), d.int(1, 9), d.int(1, 5)
    case, by = OpCase(), eight_bits(d)
    b_by = d.like(by)
    if d.flag():
        b, b_by = case.const(d.rng().integers(-127, 128, (k, n)).astype(np.int8)), Scaled(b_by.scale, np.int8(0))
    else:
        b = case.feed(d.data(b_by, (*batch, k, n)))
    y_by = result_by(d, by, k, b_by.scale * 74)
    a = case.feed(d.data(by, (*batch, m, k)))
    case.op("QLinearMatMul", a, *parameters(case, by), b, *parameters(case, b_by), *parameters(case, y_by), out="y")
    case.output("y", dtype=by.dtype)
    return case


def zero_points(d: Draw, case: OpCase, x: np.generic, w: Array) -> list[str]:
    """Both, that of x, or none (which is 0)."""
    given = [case.const(x), case.const(w)][: d.int(0, 2)]
    return given if d.kind is not Kind.SYMMETRIC else []


def conv_integer(d: Draw) -> OpCase:
    case, by = OpCase(), d.by(dtype=np.uint8)
    cin, out, kernel = d.int(1, 3), d.int(1, 4), tuple(d.ints(2, 1, 3))
    w = d.rng().integers(0, 256, (out, cin, *kernel)).astype(np.uint8)
    x = case.feed(d.data(by, (1, cin, *d.ints(2, 3, 6))))
    zeros = zero_points(d, case, by.zero, np.asarray(d.data(by, ())))
    case.op("ConvInteger", x, case.const(w), *zeros, out="y", pads=d.ints(4, 0, 1), strides=d.ints(2, 1, 2))
    case.output("y", dtype=np.int32)
    return case


def matmul_integer(d: Draw) -> OpCase:
    case, by = OpCase(), d.by(dtype=np.uint8)
    m, k, n = d.int(1, 4), d.int(1, 9), d.int(1, 5)
    dtype = d.of(np.int8, np.uint8)
    w = Scaled(1.0, dtype(0)).ints(d.rng(), k, n)
    x = case.feed(d.data(by, (*d.shape(0, 2, 3), m, k)))
    zeros = zero_points(d, case, by.zero, np.asarray(dtype(d.int(0, 9))))
    case.op("MatMulInteger", x, case.const(w), *zeros, out="y")
    case.output("y", dtype=np.int32)
    return case


PRODUCT: dict[str, Build] = {
    "Conv": convolution, "ConvTranspose": transposed, "Gemm": gemm, "MatMul": matmul, "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul, "ConvInteger": conv_integer, "MatMulInteger": matmul_integer,
}  # fmt: skip
