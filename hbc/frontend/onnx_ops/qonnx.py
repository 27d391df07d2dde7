"""QONNX, the dialect of Brevitas and FINN: `Quant` rounds and clamps reals to a grid of any number of bits.

What is a grid of at most 16 bits becomes quantize → clip of integers → dequantize, so the rest of hbc sees an ordinary
QDQ model. Constants are rounded at once, by the very formula below. The formula is that of the QONNX operator
definitions: y = (clip(round(x / scale + zeropt), least, most) − zeropt) · scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import PLAIN_UNARY, Add, Clip, Div, Mul, Sub
from hbc.ir.types import DType, Quant

from ..onnx_node import Node, Results
from ..onnx_quant import dequantized, dequantized_const, quantized
from ..problem import quoted
from .activation import limited
from .registry import onnx_op

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
WIDEST = 32  # bits of the widest grid: a bias in accumulator steps
Rounder = Callable[[np.ndarray], np.ndarray]


def _on_magnitude(f: Rounder) -> Rounder:
    return lambda x: np.asarray(np.sign(x) * f(np.abs(x)))


ROUNDING: dict[str, Rounder] = {
    "ROUND": np.rint, "HALF_EVEN": np.rint, "CEIL": np.ceil, "FLOOR": np.floor,
    "UP": _on_magnitude(np.ceil), "DOWN": _on_magnitude(np.floor), "ROUND_TO_ZERO": _on_magnitude(np.floor),
    "HALF_UP": _on_magnitude(lambda x: np.floor(x + np.float32(0.5))),
    "HALF_DOWN": _on_magnitude(lambda x: np.ceil(x - np.float32(0.5))),
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """The integers of a Quant node: from `low` to `high`, rounded to as `mode` says."""

    low: int
    high: int
    mode: str

    @property
    def dtype(self) -> DType:
        """The narrowest dtype that holds the grid; I32 where none does (32 bits, unsigned)."""
        for dtype in (DType.I8, DType.U8, DType.I16, DType.U16):
            if dtype.limits[0] <= self.low and self.high <= dtype.limits[1]:
                return dtype
        return DType.I32

    def integers(self, array: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The grid's integers nearest to `array`, int64; float32 inside, as frameworks compute it."""
        steps = array.astype(np.float32) / scale + zero
        return np.asarray(np.clip(ROUNDING[self.mode](steps).astype(np.float64), self.low, self.high).astype(np.int64))


@onnx_op("Quant", "IntQuant", domain=DOMAINS[0])
@onnx_op("Quant", "IntQuant", domain=DOMAINS[1])
@onnx_op("Quant", "IntQuant", domain=DOMAINS[2])
def quant(n: Node) -> Results:
    """x, scale, zeropt, bitwidth → x on the grid; attributes `signed`, `narrow`, `rounding_mode`."""
    grid = _grid(n)
    scale, zero, known = n.array(1), n.array(2), n.array(0)
    if scale is None or zero is None:
        return _in_reals(n, n.x(1), n.x(2), grid)  # computed at run time
    _require_usable(n, scale, zero)
    q = _quantisation(n, scale, zero, grid.dtype.limits)
    if known is not None and q is not None and grid.high <= grid.dtype.limits[1]:
        return _constant(n, known, scale, zero, grid, q)
    if q is None or grid.dtype is DType.I32:
        return _in_reals(n, n.const(scale.astype(np.float32)), n.const(zero.astype(np.float32)), grid)
    x = n.x(0)
    if ROUNDING[grid.mode] is not np.rint:  # rounded in reals; to quantise what lies on the grid moves nothing
        x = _in_reals(n, n.const(scale.astype(np.float32)), n.const(zero.astype(np.float32)), grid)
    integers = quantized(n, x, q, grid.dtype)
    if (grid.low, grid.high) != grid.dtype.limits:
        integers = limited(n, integers, grid.low, grid.high)
    return dequantized(n, integers, q)


@onnx_op("BipolarQuant", domain=DOMAINS[0])
@onnx_op("BipolarQuant", domain=DOMAINS[1])
@onnx_op("BipolarQuant", domain=DOMAINS[2])
def bipolar(n: Node) -> Results:
    """x, scale → +scale where x ≥ 0, else −scale."""
    scale, known = n.array(1), n.array(0)
    if scale is None:
        return n.op(Mul, _signs(n), n.x(1))
    _require_usable(n, scale, np.zeros(1, np.float32))
    q = _quantisation(n, scale, np.zeros(1, np.float32), (-1, 1))
    if q is None:
        return n.op(Mul, _signs(n), n.const(scale.astype(np.float32)))
    if known is not None:
        return dequantized_const(n, f"{n.proto.output[0]}.integers", np.where(known >= 0, 1, -1).astype(np.int8), q)
    signs = n.op(Mul, _signs(n), n.const(scale.astype(np.float32)))
    return dequantized(n, quantized(n, signs, q, DType.I8), q)


@onnx_op("Trunc", domain=DOMAINS[0])
@onnx_op("Trunc", domain=DOMAINS[1])
@onnx_op("Trunc", domain=DOMAINS[2])
def trunc(n: Node) -> Results:
    """x, scale, zeropt, in_bitwidth, out_bitwidth → the low bits of x's integers cut off.

    y = (round_mode(round(x / scale + zeropt) / 2^(in − out)) − zeropt) · scale, in reals. The later form with an output
    scale of its own is refused by name: it has been defined in more than one way.
    """
    if len(n.proto.input) != 5:
        why = f"it has {len(n.proto.input)} inputs; the form with 5 (x, scale, zeropt, in_bitwidth, out_bitwidth) is"
        raise n.fail("this form of Trunc isn't taken", why=why, hint="export as QCDQ, or put a Quant in its place")
    scale, zero = n.x(1), n.x(2)
    bits = _bitwidth(n, 3) - _bitwidth(n, 4)
    if bits < 0:
        raise n.fail("out_bitwidth is beyond in_bitwidth", why=f"{-bits} bits more", hint="export the model again")
    steps = n.op(PLAIN_UNARY["round"], n.op(Add, n.op(Div, n.x(0), scale), zero))
    cut = _rounded(n, n.op(Mul, steps, n.const(np.float32(2.0**-bits))), _mode(n, "FLOOR"))
    return n.op(Mul, n.op(Sub, cut, zero), scale)


# ---- what the operands say


def _grid(n: Node) -> Grid:
    bits, signed, narrow = _bitwidth(n, 3), bool(n.integer("signed", 1)), bool(n.integer("narrow"))
    mode = _mode(n, "ROUND")
    if signed:
        half = 1 << (bits - 1)
        return Grid(-half + int(narrow), half - 1, mode)
    return Grid(0, (1 << bits) - 1 - int(narrow), mode)


def _bitwidth(n: Node, index: int) -> int:
    array = n.array(index)
    if array is None or array.size != 1:
        raise n.fail(f"the number of bits, {quoted(n.name(index))}, is no single constant", hint="export it as one")
    bits = float(array.reshape(-1)[0])
    if bits != int(bits) or not 1 <= bits <= WIDEST:
        raise n.fail(f"{quoted(n.name(index))} is {bits:g} bits", why=f"hbc takes whole numbers from 1 to {WIDEST}")
    return int(bits)


def _mode(n: Node, default: str) -> str:
    mode = n.text("rounding_mode", default).upper()
    if mode not in ROUNDING:
        raise n.fail(f"the rounding mode {mode!r} isn't known", hint=f"one of {', '.join(ROUNDING)}")
    return mode


def _require_usable(n: Node, scale: np.ndarray, zero: np.ndarray) -> None:
    flat = scale.astype(np.float32).reshape(-1)
    usable = flat[np.isfinite(flat) & (flat > 0)]
    if not flat.size or usable.size < flat.size or not np.isfinite(zero).all():
        why = "a scale is a positive, finite number, and so is a zero point finite"
        raise n.fail("scale or zero point can't be used", why=why, hint="calibrate the model again")


def _quantisation(n: Node, scale: np.ndarray, zero: np.ndarray, limits: tuple[int, int]) -> Quant | None:
    """The scale and zero point as a tensor type has them.

    None where they differ along two axes, or zero points are no integers in `limits`.
    """
    known = n.array(0)
    shape = n.x(0).type.shape if known is None else known.shape
    zeros = zero.astype(np.float64)
    low, high = limits
    if (zeros != np.rint(zeros)).any() or zeros.min() < low or zeros.max() > high:
        return None
    if scale.size == 1 and zero.size == 1:
        return Quant((float(np.float32(scale.reshape(-1)[0])),), (int(zeros.reshape(-1)[0]),))
    both = np.broadcast_shapes(scale.shape, zero.shape)
    if len(both) > len(shape):
        return None
    aligned = (1,) * (len(shape) - len(both)) + both
    axes = [i for i, size in enumerate(aligned) if size > 1]
    if len(axes) != 1 or aligned[axes[0]] != shape[axes[0]]:
        return None
    scales = np.broadcast_to(scale.astype(np.float32), both).reshape(-1)
    return Quant(
        tuple(float(s) for s in scales), tuple(int(z) for z in np.broadcast_to(zeros, both).reshape(-1)), axes[0]
    )


# ---- what becomes of it


def _constant(n: Node, array: np.ndarray, scale: np.ndarray, zero: np.ndarray, grid: Grid, q: Quant) -> Value:
    if not np.isfinite(array).all():
        raise n.fail(f"the constant {quoted(n.name(0))} is not finite", hint="check the training or the export")
    integers = grid.integers(array, scale.astype(np.float32), zero.astype(np.float32))
    return dequantized_const(n, f"{n.proto.output[0]}.integers", integers.astype(grid.dtype.numpy), q)


def _in_reals(n: Node, scale: Value, zero: Value, grid: Grid) -> Value:
    """The formula as float ops: where no tensor type says it, and for roundings that no quantize does."""
    steps = n.op(Add, n.op(Div, n.x(0), scale), zero)
    steps = _rounded(n, n.op(Clip, steps, low=float(grid.low), high=float(grid.high)), grid.mode)
    return n.op(Mul, n.op(Sub, steps, zero), scale)


def _rounded(n: Node, x: Value, mode: str) -> Value:
    """`x` rounded by `mode`, in float ops."""
    plain = {"ROUND": "round", "HALF_EVEN": "round", "CEIL": "ceil", "FLOOR": "floor"}
    if mode in plain:
        return n.op(PLAIN_UNARY[plain[mode]], x)
    magnitude = n.op(PLAIN_UNARY["abs"], x)
    if mode in {"HALF_UP", "HALF_DOWN"}:
        magnitude = n.op(Add, magnitude, n.const(np.float32(0.5 if mode == "HALF_UP" else -0.5)))
    up = mode in {"UP", "HALF_DOWN"}
    return n.op(Mul, n.op(PLAIN_UNARY["sign"], x), n.op(PLAIN_UNARY["ceil" if up else "floor"], magnitude))


def _signs(n: Node) -> Value:
    """+1 where x ≥ 0, else −1: sign(sign(x) + 1/2)."""
    half = n.const(np.float32(0.5))
    return n.op(PLAIN_UNARY["sign"], n.op(Add, n.op(PLAIN_UNARY["sign"], n.x(0)), half))
