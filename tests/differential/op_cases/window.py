"""Pools, resizing, sampling."""

from __future__ import annotations

import numpy as np

from .draw import Build, Draw, OpCase


def image(d: Draw, low: int = 4, high: int = 8, ranks: tuple[int, ...] = (1, 2, 3)) -> tuple[int, ...]:
    """[N,C,…]."""
    return (d.int(1, 2), d.int(1, 4), *d.ints(d.of(*ranks), low, high))


def max_pool(d: Draw) -> OpCase:
    """Pads below the kernel, as ONNX Runtime asks; one scale, so nothing is rounded."""
    case, by, shape = OpCase(), d.far(), image(d, 5, 9)
    rank = len(shape) - 2
    kernel = d.ints(rank, 1, 3)
    pads = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    attrs = {"strides": d.ints(rank, 1, 3), "dilations": d.ints(rank, 1, 2), "pads": pads, "ceil_mode": d.int(0, 1)}
    return case.result(case.op("MaxPool", d.activation(case, shape, by), kernel_shape=kernel, **attrs), by)


def average_pool(d: Draw) -> OpCase:
    """1-D and 2-D, ceil mode, dilations, pads counted or not; 3-D without pads."""
    case, by, shape = OpCase(), d.far(), image(d, 5, 9)
    rank = len(shape) - 2
    kernel = d.ints(rank, 1, 3)
    pads = [d.int(0, k - 1) if rank < 3 else 0 for k in (*kernel, *kernel)]
    attrs = {
        "strides": d.ints(rank, 1, 3), "dilations": d.ints(rank, 1, 2), "pads": pads,
        "ceil_mode": d.int(0, 1) if rank < 3 else 0, "count_include_pad": d.int(0, 1),
    }  # fmt: skip
    y = case.op("AveragePool", d.activation(case, shape, by), kernel_shape=kernel, **attrs)
    return case.result(y, d.of(by, d.like(by)))


def over_everything(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        case, by = OpCase(), d.far()
        y = case.op(op, d.activation(case, image(d, 1, 7), by))
        return case.result(y, by if op == "GlobalMaxPool" else d.of(by, d.like(by)))

    return build


def resize(d: Draw) -> OpCase:
    """Nearest up and down, linear up; the scales are powers of two, whose positions float32 holds exactly."""
    case, by, shape = OpCase(), d.far(), image(d, 2, 6, (1, 2))
    rank = len(shape) - 2
    nearest = d.flag()
    attrs = {"coordinate_transformation_mode": d.of("half_pixel", "align_corners", "asymmetric")}
    if nearest:
        attrs |= {"mode": "nearest", "nearest_mode": d.of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")}
        scales = [d.of(0.5, 1.0, 2.0, 4.0) for _ in range(rank)]
    else:
        attrs["mode"] = "linear"
        scales = [d.of(2.0, 4.0) for _ in range(rank)]
    x = d.activation(case, shape, by)
    if d.flag() or nearest:
        y = case.op("Resize", x, "", case.const(np.float32([1, 1, *scales])), **attrs)
    else:
        sizes = [int(n * s) for n, s in zip(shape[2:], scales, strict=True)]
        y = case.op("Resize", x, "", "", case.const(np.int64([*shape[:2], *sizes])), **attrs)
    case.on_cpu, case.exact = (False, True) if nearest else (None, False)
    return case.result(y, by)


def upsample(d: Draw) -> OpCase:
    """Opset 9, its last: nearest, or linear as `asymmetric` is; Q/DQ of com.microsoft, for ONNX had none yet."""
    case, by, shape = OpCase(9), d.far(), image(d, 1, 6, (1, 2))
    case.opsets["com.microsoft"] = 1
    x = case.dq(case.feed(d.data(by, shape)), by.scale, by.zero, domain="com.microsoft")
    mode = d.of("nearest", "nearest", "linear")
    scales = case.const(np.float32([1, 1, *[d.of(2.0, 3.0, 4.0) for _ in shape[2:]]]))
    y = case.op("Upsample", x, scales, mode=mode)
    case.q(y, by.scale, by.zero, out="y", domain="com.microsoft")
    case.output("y", dtype=by.dtype)
    case.on_cpu, case.exact = (None, False) if mode == "linear" else (False, True)
    return case


def grid_sample(d: Draw) -> OpCase:
    """Grids that are i16 integers, constants, or reals, a little beyond the image."""
    case, by = OpCase(), d.far()
    n, channels, size, out = d.int(1, 2), d.int(1, 3), d.ints(2, 1, 12), d.ints(2, 1, 5)
    reals = d.reals((n, *out, 2), -1.3, 1.3)
    kind = d.of("i16", "constant", "float")
    x = d.activation(case, (n, channels, *size), by)
    if kind == "i16":
        grid = case.dq(case.feed(np.rint(reals / 0.00005).astype(np.int16)), np.float32(0.00005), np.int16(0))
    else:
        grid = case.const(reals) if kind == "constant" else case.feed(reals)
    attrs = {"padding_mode": d.of("zeros", "border"), "align_corners": d.int(0, 1)}
    return case.result(case.op("GridSample", x, grid, mode="linear", **attrs), by)


WINDOW: dict[str, Build] = {
    "MaxPool": max_pool, "AveragePool": average_pool, "Resize": resize, "Upsample": upsample, "GridSample": grid_sample,
    "GlobalMaxPool": over_everything("GlobalMaxPool"), "GlobalAveragePool": over_everything("GlobalAveragePool"),
}  # fmt: skip
