"""Arithmetic of two operands and functions of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.differential.quantised import Array, Scaled

from .draw import Build, Draw, Kind, OpCase, Shape

# The largest |q − zero point|, which decides what scale keeps a function inside its domain.
REACH = {Kind.SYMMETRIC: 128, Kind.AFFINE: 255, Kind.WIDE: 32768}


def operand(d: Draw, case: OpCase, shape: Shape, by: Scaled) -> str:
    """An activation, or, one time in three, a constant: one number or an array."""
    if d.int(0, 2):
        return d.activation(case, shape, by)
    return case.const(d.reals(d.of(shape, ()), -3, 3))


def pair(d: Draw, case: OpCase, a_by: Scaled, b_by: Scaled) -> list[str]:
    """An activation and another operand of a shape that broadcasts, in either order."""
    shape = d.shape(0, 5)
    a = d.activation(case, shape, a_by)
    b = operand(d, case, d.broadcast(shape), b_by)
    return [a, b] if d.flag() else [b, a]


def two_operands(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """A result whose steps are not much finer than the operands'."""
        case, a_by = OpCase(), d.far()
        b_by = d.like(a_by, d.of(0.1, 1.0, 3.0))
        y_by = d.like(a_by, d.of(0.5, 1.0, 3.0) * max(1.0, b_by.scale / a_by.scale))
        return case.result(case.op(op, *pair(d, case, a_by, b_by)), y_by)

    return build


def product(d: Draw) -> OpCase:
    """Two tensors, or a tensor and constants of up to 3."""
    case, a_by = OpCase(), d.by()
    b_by = d.like(a_by)
    steps = 60 * (256 if d.kind is Kind.WIDE else 1)
    operands = pair(d, case, a_by, b_by)
    grows = len(case.feeds) == 2 and d.flag()  # a constant's step (1/10923) shows where the result's are far finer
    return case.result(case.op("Mul", *operands), d.like(a_by, b_by.scale * steps if grows else 3.0))


def quotient(d: Draw) -> OpCase:
    """By constants away from 0, by a tensor, which may hold 0, or of a constant, as tables do."""
    case, by = OpCase(), d.by()
    shape = d.shape(0, 4)
    x = d.activation(case, shape, by)
    how = d.of("constant", "constants", "by a tensor", "of a constant")
    if how == "by a tensor":
        case.on_cpu = True
        b_by = d.by()
        divisor = d.data(b_by, d.broadcast(shape))
        divisor[divisor == b_by.zero] ^= 1  # 0/0 is not a number, which no integer is
        return case.result(case.op("Div", x, case.activation(divisor, b_by)), d.like(by))
    if how == "of a constant":  # 1/0 is a pole: ±∞ saturates, but −0 is beyond what integers hold
        one = case.const(d.real(0.1, 3))
        return case.result(case.op("Div", one, x), d.by())
    divisor = d.reals(() if how == "constant" else d.broadcast(shape), 0.3, 3) * d.of(-1, 1)
    return case.result(case.op("Div", x, case.const(np.float32(divisor))), d.like(by))


def power(d: Draw) -> OpCase:
    """Squares, other powers of what isn't negative, a constant's powers, and those of two tensors."""
    case = OpCase()
    how = d.of("square", "exponent", "base", "tensors")
    shape = d.shape(0, 4)
    if how == "square":
        by = d.by()
        y_by = d.like(by, by.scale * 60 * (256 if d.kind is Kind.WIDE else 1))
        x = d.activation(case, shape, by)
        return case.result(case.op("Pow", x, case.const(np.float32(2))), y_by)
    by = d.by(0.002, 0.03)
    x = case.activation(inside(by, d.data(by, shape), lambda x: x >= 0), by)
    if how == "exponent":
        exponent = case.const(np.float32(d.of(0.5, 1.5, 3.0, 0.25)))
        return case.result(case.op("Pow", x, exponent), d.by())
    if how == "base":
        return case.result(case.op("Pow", case.const(d.real(0.1, 2)), x), d.by())
    case.on_cpu = True
    y = d.activation(case, d.broadcast(shape), d.by(0.002, 0.02))
    return case.result(case.op("Pow", case.op("Abs", x), y), d.by())


def extremum(op: str) -> Build:
    def build(d: Draw) -> OpCase:
        """One to four operands, of one scale or of several."""
        case, by = OpCase(), d.far()
        shape = d.shape(0, 4)
        xs = [d.activation(case, shape, by)]
        xs += [operand(d, case, d.broadcast(shape), d.of(by, d.like(by))) for _ in range(d.int(0, 3))]
        return case.result(case.op(op, *xs), d.of(by, d.like(by)))

    return build


# ---- functions of one variable


def inside(by: Scaled, q: Array, holds: Callable[[Array], Array]) -> Array:
    """`q` with every integer whose real lies outside a function's domain replaced by the nearest one inside."""
    info = np.iinfo(by.dtype)
    every = np.arange(info.min, info.max + 1)
    good = every[holds((every - int(by.zero)) * np.float32(by.scale))]
    return np.asarray(good[np.abs(good[None] - q.reshape(-1, 1).astype(np.int64)).argmin(1)].reshape(q.shape), by.dtype)


def everything(d: Draw, by: Scaled) -> Array:
    """All 256 integers in some shape, or 256 of 16 bits with both ends and 0 among them; now and then a scalar."""
    if d.int(0, 4) == 0:
        return d.data(by, ())
    info = np.iinfo(by.dtype)
    if info.bits == 8:
        q = np.arange(info.min, info.max + 1)
    else:
        q = np.concatenate([[info.min, info.max, -1, 0, 1], d.rng().integers(info.min, info.max, 251)])
    return np.asarray(q.astype(by.dtype).reshape(d.of((256,), (2, 128), (1, 4, 64), (1, 256, 1, 1), (2, 4, 4, 1, 8))))


def whole(x: Array) -> Array:
    """Every real."""
    return np.ones(np.shape(x), bool)


def function(
    op: str,
    *,
    domain: Callable[[Array], Array] = whole,
    scales: tuple[float, float] = (0.002, 0.1),
    unit: bool = False,
    steps: bool = False,
    attributes: Callable[[Draw], dict[str, Any]] = lambda d: {},
    result: tuple[float, float] = (0.002, 0.1),
) -> Build:
    """`unit` asks for reals within ±1; `steps` for scales under which reals are whole numbers, or nearly."""

    def build(d: Draw) -> OpCase:
        by = d.by(*scales)
        if unit:
            by = Scaled(float(np.float32(d.real(0.2, 0.999) / REACH[d.kind])), by.zero)
        elif steps and d.flag():
            by = Scaled(float(np.float32(d.of(0.5, 0.25, 0.1, 2 / 127, 1 / 3, 0.3))), by.zero)
        if not domain(np.float32(np.iinfo(by.dtype).max - int(by.zero)) * np.float32(by.scale)).all():
            by = Scaled(by.scale, by.dtype.type(np.iinfo(by.dtype).min))  # else no integer is inside
        case = OpCase()
        x = case.activation(inside(by, everything(d, by), domain), by)
        return case.result(case.op(op, x, **attributes(d)), d.by(*result))

    return build


def alpha(low: float, high: float) -> Callable[[Draw], dict[str, Any]]:
    return lambda d: {"alpha": float(d.real(low, high))} if d.flag() else {}


def alpha_beta(d: Draw) -> dict[str, Any]:
    return {"alpha": float(d.real(0.05, 0.5)), "beta": float(d.real(-0.5, 1))} if d.flag() else {}


def alpha_gamma(d: Draw) -> dict[str, Any]:
    return {"alpha": float(d.real(0.5, 2)), "gamma": float(d.real(0.5, 2))} if d.flag() else {}


def threshold(d: Draw) -> dict[str, Any]:
    return {"alpha": d.of(1.0, 0.5, 0.0, 0.3)}


FUNCTIONS: dict[str, Build] = {
    **{
        op: function(op)
        for op in (
            "Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "HardSwish", "Mish", "Neg", "Reciprocal", "Relu",
            "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh",
        )
    },
    **{op: function(op, unit=True) for op in ("Acos", "Asin", "Atanh")},
    **{op: function(op, steps=True) for op in ("Ceil", "Floor", "Round", "Sign")},
    "Acosh": function("Acosh", domain=lambda x: x >= 1, scales=(0.03, 0.2)),
    "Celu": function("Celu", attributes=alpha(0.3, 3)),
    "Elu": function("Elu", attributes=alpha(0.3, 3)),
    "Gelu": function("Gelu", attributes=lambda d: {"approximate": d.of("none", "tanh")}),
    "HardSigmoid": function("HardSigmoid", attributes=alpha_beta),
    "LeakyRelu": function("LeakyRelu", attributes=alpha(-0.5, 1.5)),
    "Log": function("Log", domain=lambda x: x >= 0),
    "Selu": function("Selu", attributes=alpha_gamma),
    "Sqrt": function("Sqrt", domain=lambda x: x >= 0),
    "ThresholdedRelu": function("ThresholdedRelu", steps=True, attributes=threshold),
}  # fmt: skip


def clip(d: Draw) -> OpCase:
    """Bounds that are constants (also beyond the range), scalars that are computed, or missing."""
    case, by = OpCase(), d.far()
    x = d.activation(case, d.shape(0, 5), by)
    bounds = []
    for low, high in ((-3, 0), (0, 3)):
        given = d.of("constant", "constant", "tensor", "missing")
        bounds.append(
            case.const(d.real(low, high))
            if given == "constant"
            else d.activation(case, (), by)
            if given == "tensor"
            else ""
        )
    return case.result(case.op("Clip", x, *bounds), d.of(by, d.like(by)))


def prelu(d: Draw) -> OpCase:
    """Slopes that broadcast to x, and of any sign."""
    case, by = OpCase(), d.far()
    shape = d.shape(1, 4)
    slope = case.const(d.reals(d.broadcast(shape), -0.5, 1.5))
    return case.result(case.op("PRelu", d.activation(case, shape, by), slope), d.like(by))


SCALAR: dict[str, Build] = {
    "Add": two_operands("Add"), "Sub": two_operands("Sub"), "Mul": product, "Div": quotient, "Pow": power,
    "Max": extremum("Max"), "Min": extremum("Min"), "Clip": clip, "PRelu": prelu, **FUNCTIONS,
}  # fmt: skip
