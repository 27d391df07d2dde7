"""Comparisons, logic, choice, casts, and the border between reals and integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.quantised import Array, Scaled

from .draw import Build, Draw, Kind, OpCase, Shape


def near(d: Draw, by: Scaled, shape: Shape) -> Array:
    """Integers near the zero point, so that equal ones are frequent."""
    info = np.iinfo(by.dtype)
    return np.asarray(np.clip(int(by.zero) + d.rng().integers(-3, 4, shape), info.min, info.max).astype(by.dtype))


def comparison(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """With a tensor of that scale, or with a constant: one of the reals, one beside it, anything."""
        case, by, shape = OpCase(), d.far(), d.shape(0, 5)
        x = near(d, by, shape)
        if d.flag():
            other = case.activation(near(d, by, d.broadcast(shape)), by)
        else:
            real = np.float32(np.float32(d.int(-4, 4)) * np.float32(by.scale))
            value = d.of(real, np.nextafter(real, np.float32(9)), np.float32(1e9), d.real(-1, 1), np.float32(0))
            other = case.const(np.float32(value))
        a = case.activation(x, by)
        case.op(op, *((a, other) if d.flag() else (other, a)), out="y")
        case.output("y", dtype=np.bool_)
        return case

    return build


def logic(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """What a comparison found, and bools that come from outside or are constant."""
        case, by, shape = OpCase(), d.far(), d.shape(0, 5)
        found = case.op("Less", case.activation(near(d, by, shape), by), case.const(np.float32(0)))
        if op == "Not":
            case.op("Not", found, out="y")
        else:
            bools = np.asarray(d.rng().random(d.broadcast(shape)) < 0.5)
            other = case.const(bools) if d.int(0, 2) == 0 else case.feed(bools)
            case.op(op, *((found, other) if d.flag() else (other, found)), out="y")
        case.output("y", dtype=np.bool_)
        return case

    return build


def where(d: Draw) -> OpCase:
    """Sides of the result's scale, or a constant; conditions of any shape that broadcasts."""
    case, by, shape = OpCase(), d.far(), d.shape(0, 5)
    condition = case.feed(np.asarray(d.rng().random(d.broadcast(shape)) < 0.5))
    a = d.activation(case, shape, by)
    if d.int(0, 2):
        b = d.activation(case, d.broadcast(shape), by)
    else:
        b = case.const(np.float32(d.of(0.0, 0.11, -1e9)))
    return case.result(case.op("Where", condition, *((a, b) if d.flag() else (b, a))), by)


PLAIN = (np.int8, np.uint8, np.int16, np.int32, np.int64, np.float32, np.bool_)


def values(d: Draw, dtype: Any, shape: Shape) -> Array:
    """Whole and other numbers that every dtype holds."""
    x = d.rng().integers(0, 100, shape)
    return np.asarray(x / 8 if dtype is np.float32 else x > 50 if dtype is np.bool_ else x).astype(dtype)


def cast(op: str) -> Build:
    def converted(d: Draw, case: OpCase, x: str, dtype: Any) -> str:
        if op == "Cast":
            return case.op("Cast", x, out="y", to=case_type(dtype))
        return case.op("CastLike", x, case.const(np.zeros(1, dtype)), out="y")

    def build(d: Draw) -> OpCase:
        """From dequantized reals to integers and bools; in `PLAIN` between any two dtypes."""
        case, shape = OpCase(), d.shape(0, 5)
        if d.kind is Kind.PLAIN:
            dtype = d.of(*PLAIN)
            x = case.feed(values(d, d.of(*PLAIN), shape))
        else:
            by = d.by()
            dtype = d.of(np.int32, np.int64, np.float32, np.bool_)
            x = d.activation(case, shape, by)
        converted(d, case, x, dtype)
        case.output("y", dtype=dtype)
        return case

    return build


def case_type(dtype: Any) -> int:
    """ONNX's number of the dtype."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


# ---- the border


def quantize(d: Draw) -> OpCase:
    """Reals from outside, ties among them, or dequantized ones of another scale, to one scale or one per entry."""
    case, shape = OpCase(), d.shape(1, 5)
    by = d.far()
    per_axis = d.flag()
    if per_axis:
        axis = d.axis(len(shape))
        scale = d.reals((shape[axis],), 0.01, 0.1)
        zero = np.full(shape[axis], by.zero)
        ratio = scale.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))])
        x = case.feed((ratio * (d.rng().integers(-300, 300, shape) / 2)).astype(np.float32))
        case.q(x, scale, zero, out="y", axis=axis)
    else:
        halves = d.rng().integers(-300, 300, shape) / 2 * by.scale
        x = case.feed(halves.astype(np.float32)) if d.flag() else d.activation(case, shape, d.like(by))
        case.q(x, by.scale, by.zero, out="y")
    case.output("y", dtype=by.dtype)
    return case


def dequantize(d: Draw) -> OpCase:
    """To reals: of one scale or one per entry of an axis; i32 without a zero point, too."""
    case, shape = OpCase(), d.shape(1, 5)
    by = d.far()
    if d.flag():
        axis = d.axis(len(shape))
        scale = d.reals((shape[axis],), 0.01, 0.1)
        case.dq(case.feed(d.data(by, shape)), scale, np.full(shape[axis], by.zero), out="y", axis=axis)
    elif d.int(0, 2) == 0:
        case.dq(case.feed(d.rng().integers(-(1 << 31), 1 << 31, shape).astype(np.int32)), by.scale, out="y")
    else:
        case.dq(case.feed(d.data(by, shape)), by.scale, by.zero, out="y")
    case.output("y")
    return case


def dynamic(d: Draw) -> OpCase:
    """Of dequantized reals, or of reals in `PLAIN`: integers, their scale and their zero point."""
    case, shape = OpCase(), d.shape(0 if d.kind is Kind.PLAIN else 1, 4)
    x = case.feed(d.reals(shape, *d.of((-2, 2), (0, 5), (-3, -1)))) if d.kind is Kind.PLAIN else None
    x = x or d.activation(case, shape, d.by())
    case.op("DynamicQuantizeLinear", x, out=["y", "scale", "zero"])
    case.output("y", "zero", dtype=np.uint8)
    case.output("scale")
    return case


CHOICE: dict[str, Build] = {
    **{op: comparison(op) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    **{op: logic(op) for op in ("And", "Or", "Not")},
    "Where": where, "Cast": cast("Cast"), "CastLike": cast("CastLike"), "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize, "DynamicQuantizeLinear": dynamic,
}  # fmt: skip
