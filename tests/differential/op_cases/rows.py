"""Reductions, positions, softmax and norms, sums along an axis, recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.quantised import Scaled

from .draw import Build, Draw, Kind, OpCase, longs


def reduction(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """Any axes, counted from either end; none is all; or none and `noop_with_empty_axes`."""
        case, by, shape = OpCase(), d.by(), d.shape(1, 5)
        picks = op in {"ReduceMax", "ReduceMin"}
        axes = [a - len(shape) * d.int(0, 1) for a in range(len(shape)) if d.flag()]
        operands = [d.activation(case, shape, by), *([longs(case, axes)] if axes or d.flag() else [])]
        attrs = {"keepdims": d.int(0, 1), "noop_with_empty_axes": d.int(0, 1)}
        y_by = by if picks else d.like(by, 6 if op == "ReduceSum" else 1)
        return case.result(case.op(op, *operands, **attrs), y_by)

    return build


def product(d: Draw) -> OpCase:
    """Reals near 1, whose product is neither nothing nor too large; of plain floats or i32 in `PLAIN`."""
    case, shape = OpCase(), d.shape(0 if d.kind is Kind.PLAIN else 1, 3, 3)
    axes = [a for a in range(len(shape)) if d.flag()]
    rest = [longs(case, axes)] if axes else []
    if d.kind is not Kind.PLAIN:
        by = d.by(0.005, 0.02)
        return case.result(case.op("ReduceProd", d.activation(case, shape, by), *rest, keepdims=d.int(0, 1)), d.by())
    x = d.of(d.reals(shape), d.rng().integers(-5, 6, shape).astype(np.int32))
    case.op("ReduceProd", case.feed(x), *rest, out="y", keepdims=d.int(0, 1))
    case.output("y", dtype=x.dtype)
    return case


def position(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """Few values, so that the largest is there often."""
        case, by, shape = OpCase(), d.by(), d.shape(1, 5)
        info = np.iinfo(by.dtype)
        x = np.clip(int(by.zero) + d.rng().integers(-3, 4, shape), info.min, info.max).astype(by.dtype)
        attrs = {"axis": d.axis(len(shape)), "keepdims": d.int(0, 1), "select_last_index": d.int(0, 1)}
        case.op(op, case.activation(x, by), out="y", **attrs)
        case.output("y", dtype=np.int64)
        return case

    return build


# ---- composites: rows as networks have them, results whose scale covers their range


def rows(d: Draw, case: OpCase, shape: tuple[int, ...], by: Scaled) -> str:
    """Normal rows of 5 to 60 steps of 8 bits about a mean."""
    info = np.iinfo(by.dtype)
    unit = (info.max - info.min) / 255
    middle = (info.max + info.min + 1) / 2
    rng = d.rng()
    q = rng.normal(rng.normal(0, 20), rng.choice([5, 20, 60]), shape) * unit + middle
    return case.activation(np.clip(np.rint(q), info.min, info.max).astype(by.dtype), by)


def softmax(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        case, by, shape = OpCase(), d.by(0.02, 0.3), d.shape(1, 4, 20)
        info = np.iinfo(by.dtype)
        y = case.op(op, rows(d, case, shape, by), axis=d.axis(len(shape)))
        if op == "LogSoftmax":
            return case.result(y, Scaled(float(d.real(10, 25) / (info.max - info.min)), info.dtype.type(info.max)))
        zero = 0 if d.kind is not Kind.AFFINE else info.min
        return case.result(y, Scaled(float(np.float32(1 / (info.max - zero))), info.dtype.type(zero)))

    return build


def normalised(d: Draw, by: Scaled) -> Scaled:
    """±5, whichever the zero point."""
    info = np.iinfo(by.dtype)
    return Scaled(float(np.float32(10 / (info.max - info.min))), info.dtype.type((info.max + info.min + 1) // 2))


def layer_norm(d: Draw) -> OpCase:
    case, by, shape = OpCase(), d.by(0.005, 0.2), (d.int(1, 3), d.int(1, 4), d.int(2, 40))
    axis = d.int(1, 2)
    affine = [case.const(d.reals(shape[axis:])) for _ in range(d.int(1, 2))]
    y = case.op("LayerNormalization", rows(d, case, shape, by), *affine, axis=axis - 3 * d.int(0, 1), epsilon=1e-5)
    return case.result(y, normalised(d, by))


def rms_norm(d: Draw) -> OpCase:
    case, by, shape = OpCase(23), d.by(0.005, 0.2), (d.int(1, 3), d.int(1, 4), d.int(2, 40))
    y = case.op("RMSNormalization", rows(d, case, shape, by), case.const(d.reals(shape[-1:])), axis=-1)
    return case.result(y, normalised(d, by))


def channel_norm(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        groups = d.int(1, 3)
        case, by = OpCase(), d.by(0.005, 0.2)
        shape = (d.int(1, 2), groups * d.int(1, 2), *d.of((d.int(4, 30),), (d.int(2, 6), d.int(2, 6))))
        affine = [case.const(d.reals(shape[1:2])) for _ in range(2)]
        attrs = {"num_groups": groups} if op == "GroupNormalization" else {}
        return case.result(case.op(op, rows(d, case, shape, by), *affine, **attrs), normalised(d, by))

    return build


def batch_norm(d: Draw) -> OpCase:
    case, by, shape = OpCase(), d.by(), d.shape(2, 5)
    c = shape[1:2]
    parameters = [d.reals(c), d.reals(c), d.reals(c), d.reals(c, 0.3, 2)]
    y = case.op("BatchNormalization", d.activation(case, shape, by), *map(case.const, parameters))
    return case.result(y, d.like(by, 2))


# ---- ONNX Runtime's


def cumulative_sum(d: Draw) -> OpCase:
    """From either end, with the element itself or without it; of plain numbers in `PLAIN`."""
    case, shape = OpCase(), d.shape(1, 4)
    axis = case.const(np.asarray(d.axis(len(shape)), d.of(np.int32, np.int64)))
    attrs = {"exclusive": d.int(0, 1), "reverse": d.int(0, 1)}
    if d.kind is not Kind.PLAIN:
        by = d.by()
        return case.result(case.op("CumSum", d.activation(case, shape, by), axis, **attrs), d.like(by, 3))
    x = d.of(d.reals(shape), d.rng().integers(-99, 99, shape), d.rng().integers(-99, 99, shape).astype(np.int32))
    case.op("CumSum", case.feed(x), axis, out="y", **attrs)
    case.output("y", dtype=x.dtype)
    return case


def top_k(d: Draw) -> OpCase:
    """Values and positions, largest or smallest; equal ones come in order."""
    case, shape = OpCase(), d.shape(1, 4)
    axis = d.axis(len(shape))
    k = longs(case, d.int(1, shape[axis]))
    attrs = {"axis": axis, "largest": d.int(0, 1), "sorted": 1}
    case.output("i", dtype=np.int64)
    if d.kind is not Kind.PLAIN:
        by = d.by()
        return case.result(case.op("TopK", d.activation(case, shape, by), k, out=["v", "i"], **attrs), by)
    x = d.of(d.reals(shape), d.rng().integers(-9, 9, shape), d.rng().integers(-9, 9, shape).astype(np.int32))
    case.op("TopK", case.feed(x), k, out=["y", "i"], **attrs)
    case.output("y", dtype=x.dtype)
    return case


def suppression(d: Draw) -> OpCase:
    """Boxes and scores behind DequantizeLinear, or plain; the number of results depends on them."""
    case, batch, classes, boxes = OpCase(), d.int(1, 2), d.int(1, 3), d.int(1, 6)
    corners = np.sort(d.reals((batch, boxes, 2, 2), 0, 1), axis=2).reshape(batch, boxes, 4)
    if d.kind is Kind.PLAIN:
        names = [case.feed(corners), case.feed(d.reals((batch, classes, boxes), 0, 1))]
    else:
        by, score_by = d.by(), d.by(0.002, 0.005)
        q = int(by.zero) + np.rint(corners * 100)
        info = np.iinfo(by.dtype)
        names = [case.activation(np.clip(q, info.min, info.max).astype(by.dtype), by)]
        names += [d.activation(case, (batch, classes, boxes), score_by)]
    limits = [longs(case, d.int(0, 4)), case.const(np.float32(d.of(0.0, 0.3, 0.7))), case.const(np.float32(0.05))]
    case.op("NonMaxSuppression", *names, *limits[: d.int(1, 3)], out="y", center_point_box=d.int(0, 1))
    case.output("y", dtype=np.int64)
    return case


def recurrent(op: str) -> Build:
    gates = {"LSTM": 4, "GRU": 3}[op]

    def build(d: Draw) -> OpCase:
        """Either way or both; with biases; all results of a sequence, and the last one."""
        case, by = OpCase(), d.by(0.005, 0.02, dtype=np.int8 if d.kind is Kind.PLAIN else None)
        length, batch, width, hidden = d.ints(4, 1, 4)
        direction = d.of("forward", "reverse", "bidirectional")
        ways = 2 if direction == "bidirectional" else 1
        shapes: list[tuple[int, ...]] = [(ways, gates * hidden, width), (ways, gates * hidden, hidden)]
        shapes += [(ways, 2 * gates * hidden)] if d.flag() else []
        weights = [case.const(d.reals(s, -0.7, 0.7)) for s in shapes]
        attrs: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
        if op == "GRU":
            attrs["linear_before_reset"] = d.int(0, 1)
        shape = (length, batch, width)
        x = case.feed(d.reals(shape)) if d.kind is Kind.PLAIN else d.activation(case, shape, by)
        case.op(op, x, *weights, out=["all", "last"], **attrs)
        case.output("last")
        return case.result("all", Scaled(float(np.float32(1 / 128)), by.dtype.type(0)))

    return build


ROWS: dict[str, Build] = {
    **{op: reduction(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")},
    "ReduceProd": product, "ArgMax": position("ArgMax"), "ArgMin": position("ArgMin"), "Softmax": softmax("Softmax"),
    "LogSoftmax": softmax("LogSoftmax"), "LayerNormalization": layer_norm, "RMSNormalization": rms_norm,
    "InstanceNormalization": channel_norm("InstanceNormalization"),
    "GroupNormalization": channel_norm("GroupNormalization"), "BatchNormalization": batch_norm,
    "CumSum": cumulative_sum, "TopK": top_k, "NonMaxSuppression": suppression, "LSTM": recurrent("LSTM"),
    "GRU": recurrent("GRU"),
}  # fmt: skip
