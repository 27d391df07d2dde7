"""Hypothesis strategies for the runtime's values: small sound programs that hold every kind of instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hbc_runtime import isa
from hbc_runtime.isa import Instruction, Rounding, Scheme
from hbc_runtime.march import ARITHS, BORDER_ROUNDING
from hbc_runtime.program import BpuSegment, BuildInfo, Model, Program
from hbc_runtime.types import DType, Layout, Quant
from tests.sketch import Sketch, program_of

Draw = Callable[[st.SearchStrategy[Any]], Any]
ACT = (DType.I8, DType.I16)
TEXT = st.text(max_size=8)


class Hand:
    """A sketch and the ways to draw for it. Values of constants come from one drawn seed: they need no shrinking."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.m = Sketch()
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def int(self, lo: int, hi: int) -> int:
        return int(self.draw(st.integers(lo, hi)))

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def shape(self, rank: int, hi: int = 4) -> tuple[int, ...]:
        return tuple(self.int(1, hi) for _ in range(rank))

    def quant(self, dtype: DType) -> Quant | None:
        if not dtype.is_integer or self.pick((True, False)):
            return None
        lo, hi = dtype.limits
        zero_point = int(self.rng.integers(max(lo, -128), min(hi, 127) + 1))
        return Quant.per_tensor(float(self.rng.uniform(0.001, 2)), zero_point)

    def value(self, shape: Sequence[int], dtype: DType, *, constant: bool = False) -> int:
        """A tensor to read: one that is there already, a new input, or (where allowed) a constant."""
        there = [i for i, t in enumerate(self.m.tensors) if (t.shape, t.dtype) == (tuple(shape), dtype)]
        there = there if constant else [i for i in there if i in self.m.inputs or self.m.tensors[i].storage == 0]
        if there and self.pick((True, False)):
            return int(self.pick(there))
        if constant and self.pick((True, False)):
            return self.m.constant(self.integers(shape, dtype), dtype)
        return self.m.input(shape, dtype, quant=self.quant(dtype))

    def integers(self, shape: Sequence[int], dtype: DType) -> np.ndarray:
        if not dtype.is_integer:
            return self.rng.normal(0, 10, shape).astype(dtype.numpy)
        lo, hi = dtype.limits
        return self.rng.integers(lo, hi + 1, shape, dtype.numpy)

    def emit(
        self, kind: type[Instruction], inputs: Sequence[int], shape: Sequence[int], dtype: DType, **more: Any
    ) -> int:
        loc = tuple(self.draw(st.lists(TEXT, max_size=2)))
        return self.m.emit(kind, inputs, shape, dtype, quant=self.quant(dtype), loc=loc, **more)

    def clamp(self, dtype: DType) -> dict[str, int]:
        lo, hi = dtype.limits
        a, b = sorted((self.int(lo, hi), self.int(lo, hi)))
        return {"clamp_min": a, "clamp_max": b}

    def scheme(self, options: Sequence[Scheme], channels: int) -> tuple[DType, list[int], dict[str, Any]]:
        """Result dtype, the three parameter operands, and the attributes of a requantising instruction."""
        scheme = self.pick(options)
        narrow = scheme in {Scheme.FORM_A, Scheme.FORM_B}
        dtype = DType.I32 if scheme is Scheme.NONE else self.pick(ACT if narrow else (*ACT, DType.I32))
        zero_point = 0 if scheme is Scheme.NONE else self.int(-128, 127)
        attributes = {"scheme": scheme, "zero_point": zero_point, **self.clamp(dtype)}
        return dtype, self.parameters(scheme, self.pick((1, channels))), attributes

    def parameters(self, scheme: Scheme, n: int) -> list[int]:
        if scheme is Scheme.NONE:
            return [-1, -1, -1]
        if scheme is Scheme.FLOAT:
            return [self.m.constant(self.rng.uniform(1e-4, 0.1, n), DType.F32), -1, -1]
        if scheme is Scheme.WIDE:
            mult = self.m.constant(self.rng.integers(1 << 30, 1 << 31, n), DType.I32)
            pre, post = np.zeros(n), self.rng.integers(30, 63, n)
        else:
            mult = self.m.constant(self.rng.integers(1 << 14, 1 << 15, n), DType.I16)
            pre, post = self.rng.integers(0, 5, n), self.rng.integers(10, 32, n)
        return [mult, self.m.constant(pre, DType.I8), self.m.constant(post, DType.I8)]


NO_A = (Scheme.FORM_B, Scheme.WIDE, Scheme.FLOAT)

# ---- one rule per instruction: add it, and what it needs, to the sketch


def _quantize(h: Hand) -> None:
    shape, axis = h.shape(h.int(1, 3)), h.int(-1, 0)
    n = shape[0] if axis == 0 else 1
    dtype = h.pick((DType.I8, DType.U8, DType.I16, DType.U16, DType.I32))
    scale, zp = h.m.constant(h.rng.uniform(0.01, 2, n), DType.F32), h.m.constant(h.rng.integers(-9, 9, n), DType.I32)
    inputs = [h.value(shape, DType.F32), scale, zp]
    h.emit(isa.Quantize, inputs, shape, dtype, axis=axis, rounding=h.pick(list(Rounding)), **h.clamp(dtype))


def _dequantize(h: Hand) -> None:
    shape, axis = h.shape(h.int(1, 3)), h.int(-1, 0)
    n = shape[0] if axis == 0 else 1
    scale, zp = h.m.constant(h.rng.uniform(0.01, 2, n), DType.F32), h.m.constant(h.rng.integers(-9, 9, n), DType.I32)
    x = h.value(shape, h.pick((DType.I8, DType.U8, DType.I16, DType.I32)))
    h.emit(isa.Dequantize, [x, scale, zp], shape, DType.F32, axis=axis)


def _flip_sign(h: Hand) -> None:
    a, b = h.pick(((DType.U8, DType.I8), (DType.I8, DType.U8), (DType.U16, DType.I16), (DType.I16, DType.U16)))
    shape = h.shape(h.int(0, 3))
    h.emit(isa.FlipSign, [h.value(shape, a)], shape, b)


def _requantize(h: Hand) -> None:
    shape = h.shape(h.int(1, 3))
    dtype, params, attributes = h.scheme(NO_A, shape[-1])
    axis = len(shape) - 1 if h.m.tensors[params[0]].shape == (shape[-1],) else -1
    x = h.value(shape, h.pick((*ACT, DType.I32)))
    h.emit(isa.Requantize, [x, *params], shape, dtype, axis=axis, x_zero_point=h.int(-128, 127), **attributes)


def _conv_parts(h: Hand) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int]:
    group, per, out = h.int(1, 2), h.int(1, 2), h.int(1, 2)
    x = h.value((h.int(1, 2), h.int(2, 4), h.int(2, 4), group * per), h.pick(ACT))
    w_shape = (group * out, h.int(1, 2), h.int(1, 2), per)
    w_dtype = h.pick(ACT)
    w = h.m.constant(h.rng.integers(-100, 100, w_shape), w_dtype)
    bias = h.m.constant(h.rng.integers(-1000, 1000, w_shape[0]), DType.I32) if h.pick((True, False)) else -1
    return x, h.m.tensors[x].shape, w_shape, w, bias


def _conv2d(h: Hand) -> None:
    x, shape, w_shape, w, bias = _conv_parts(h)
    strides, pads = (h.int(1, 2), h.int(1, 2)), tuple(h.int(0, 1) for _ in range(4))
    hw = [(shape[1 + i] + pads[i] + pads[2 + i] - w_shape[1 + i]) // strides[i] + 1 for i in (0, 1)]
    out = (shape[0], *hw, w_shape[0])
    dtype, params, attributes = h.scheme(list(Scheme), w_shape[0])
    addend = [-1, -1, -1]
    if attributes["scheme"] is not Scheme.NONE and h.pick((True, False)):
        addend = [h.value(out, h.pick(ACT), constant=True), *_addend(h, attributes["scheme"], h.pick((1, w_shape[0])))]
        attributes["addend_zero_point"] = h.int(-128, 127)
    h.emit(
        isa.Conv2d, [x, w, bias, *params, *addend], out, dtype, strides=strides, pads=pads,
        group=shape[3] // w_shape[3], pad_value=h.int(-128, 127), **attributes,
    )  # fmt: skip


def _addend(h: Hand, scheme: Scheme, n: int) -> list[int]:
    if scheme is Scheme.FLOAT:
        return [h.m.constant(h.rng.uniform(0.01, 2, n), DType.F32), -1]
    multiplier = h.m.constant(h.rng.integers(1 << 14, 1 << 15, n), DType.I16)
    return [multiplier, h.m.constant(h.rng.integers(-3, 20, n), DType.I8)]


def _conv_transpose2d(h: Hand) -> None:
    x, shape, w_shape, w, bias = _conv_parts(h)
    strides, extra = (h.int(1, 2), h.int(1, 2)), (h.int(0, 1), h.int(0, 1))
    hw = [(shape[1 + i] - 1) * strides[i] + w_shape[1 + i] + extra[i] for i in (0, 1)]
    dtype, params, attributes = h.scheme(list(Scheme), w_shape[0])
    h.emit(
        isa.ConvTranspose2d, [x, w, bias, *params], (shape[0], *hw, w_shape[0]), dtype, strides=strides,
        output_padding=extra, group=shape[3] // w_shape[3], x_zero_point=h.int(-128, 127), **attributes,
    )  # fmt: skip


def _matmul(h: Hand) -> None:
    m, k, n, batch = h.int(1, 3), h.int(1, 4), h.int(1, 3), h.shape(h.int(0, 2), 2)
    lhs = h.value((*batch, m, k), h.pick(ACT))
    rhs = h.value((*(h.pick((1, b)) for b in batch), k, n), h.pick(ACT), constant=True)
    bias = h.m.constant(h.rng.integers(-1000, 1000, n), DType.I32) if h.pick((True, False)) else -1
    dtype, params, attributes = h.scheme(list(Scheme), n)
    zero_points = {"lhs_zero_point": h.int(-128, 127), "rhs_zero_point": h.int(-128, 127)}
    h.emit(isa.Matmul, [lhs, rhs, bias, *params], (*batch, m, n), dtype, **zero_points, **attributes)


def _two(h: Hand, dtypes: Sequence[DType] = ACT) -> tuple[tuple[int, ...], int, int]:
    shape = h.shape(h.int(1, 4))
    lhs = h.value(shape, dtypes[0] if len(dtypes) == 1 else h.pick(dtypes))
    rhs_shape = tuple(h.pick((1, d)) for d in shape)
    return shape, lhs, h.value(rhs_shape, dtypes[0] if len(dtypes) == 1 else h.pick(dtypes), constant=True)


def _scales(h: Hand) -> dict[str, float]:
    return {f"{n}_scale": float(np.float32(h.rng.uniform(0.01, 2))) for n in ("lhs", "rhs", "out")}


def _add(h: Hand) -> None:
    shape, lhs, rhs = _two(h)
    dtype, scheme = h.pick(ACT), h.pick((Scheme.FORM_B, Scheme.FLOAT))
    zero_points = {n: h.int(-128, 127) for n in ("lhs_zero_point", "rhs_zero_point", "zero_point")}
    fixed = {"lhs_multiplier": h.int(-32767, 32767), "rhs_multiplier": h.int(-32767, 32767), "shift": h.int(0, 30)}
    more = fixed if scheme is Scheme.FORM_B else _scales(h)
    h.emit(isa.Add, [lhs, rhs], shape, dtype, scheme=scheme, **more, **zero_points, **h.clamp(dtype))


def _mul(h: Hand) -> None:
    shape, lhs, rhs = _two(h)
    dtype, params, attributes = h.scheme(NO_A, 1)
    if attributes["scheme"] is Scheme.FLOAT:
        params, attributes = [-1, -1, -1], {**attributes, **_scales(h)}
    zero_points = {"lhs_zero_point": h.int(-128, 127), "rhs_zero_point": h.int(-128, 127)}
    h.emit(isa.Mul, [lhs, rhs, *params], shape, dtype, **zero_points, **attributes)


def _extreme(kind: type[Instruction]) -> Callable[[Hand], None]:
    def rule(h: Hand) -> None:
        dtype = h.pick((*ACT, DType.I32))
        shape, lhs, rhs = _two(h, (dtype,))
        h.emit(kind, [lhs, rhs], shape, dtype)

    return rule


def _clamp(h: Hand) -> None:
    shape, dtype = h.shape(h.int(0, 3)), h.pick((*ACT, DType.I32))
    h.emit(isa.Clamp, [h.value(shape, dtype)], shape, dtype, **h.clamp(dtype))


def _lut(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 3)), h.pick(ACT)
    table = h.m.constant(h.integers((256,), dtype), dtype)
    h.emit(isa.Lut, [h.value(shape, DType.I8), table], shape, dtype)


def _segment_lut(h: Hand) -> None:
    shape, dtype, n = h.shape(h.int(1, 3)), h.pick(ACT), h.int(1, 4)
    first = np.linspace(-32768, 32767, n, endpoint=False).astype(np.int32)
    rows = np.stack([first, h.rng.integers(4, 11, n), h.rng.integers(0, n, n)], axis=1)
    segments, table = h.m.constant(rows, DType.I32), h.m.constant(h.integers((n, 65), DType.I16), DType.I16)
    h.emit(isa.SegmentLut, [h.value(shape, DType.I16), segments, table], shape, dtype, **h.clamp(dtype))


def _window(h: Hand) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Input and output shape and the attributes of a pooling whose windows all touch the input."""
    shape, kernel, strides = (h.int(1, 2), h.int(2, 5), h.int(2, 5), h.int(1, 3)), h.shape(2, 2), h.shape(2, 2)
    pads = tuple(h.int(0, k - 1) for k in kernel) * 2
    hw = [(shape[1 + i] + 2 * pads[i] - kernel[i]) // strides[i] + 1 for i in (0, 1)]
    return shape, (shape[0], *hw, shape[3]), {"kernel": kernel, "strides": strides, "pads": pads}


def _max_pool(h: Hand) -> None:
    (shape, out, attributes), dtype = _window(h), h.pick(ACT)
    h.emit(isa.MaxPool, [h.value(shape, dtype)], out, dtype, **attributes)


def _avg_pool(h: Hand) -> None:
    shape, out, window = _window(h)
    dtype, params, attributes = h.scheme(NO_A, out[1] * out[2])
    x = h.value(shape, h.pick(ACT))
    h.emit(isa.AvgPool, [x, *params], out, dtype, x_zero_point=h.int(-128, 127), **window, **attributes)


def _axes(h: Hand, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes = tuple(h.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True)))
    return axes, tuple(1 if i in axes else d for i, d in enumerate(shape))


def _reduce_sum(h: Hand) -> None:
    shape = h.shape(h.int(1, 4))
    axes, out = _axes(h, shape)
    dtype, params, attributes = h.scheme((*NO_A, Scheme.NONE), 1)
    x = h.value(shape, h.pick(ACT))
    h.emit(isa.ReduceSum, [x, *params], out, dtype, axes=axes, x_zero_point=h.int(-128, 127), **attributes)


def _reduce(kind: type[Instruction]) -> Callable[[Hand], None]:
    def rule(h: Hand) -> None:
        shape, dtype = h.shape(h.int(1, 4)), h.pick(ACT)
        axes, out = _axes(h, shape)
        h.emit(kind, [h.value(shape, dtype)], out, dtype, axes=axes)

    return rule


ANY = (DType.I8, DType.U8, DType.I16, DType.I32, DType.F32)


def _concat(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 4)), h.pick(ANY)
    axis = h.int(0, len(shape) - 1)
    sizes = [h.int(1, 3) for _ in range(h.int(1, 3))]
    xs = [h.value((*shape[:axis], n, *shape[axis + 1 :]), dtype, constant=True) for n in sizes]
    h.emit(isa.Concat, xs, (*shape[:axis], sum(sizes), *shape[axis + 1 :]), dtype, axis=axis)


def _slice(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 4)), h.pick(ANY)
    steps = tuple(h.pick((1, 2, -1, -2)) for _ in shape)
    starts = tuple(h.int(0, d - 1) for d in shape)
    room = [(d - 1 - a if s > 0 else a) // abs(s) + 1 for d, a, s in zip(shape, starts, steps, strict=True)]
    out = tuple(h.int(0 if len(shape) == 1 else 1, r) for r in room)
    h.emit(isa.Slice, [h.value(shape, dtype)], out, dtype, starts=starts, steps=steps)


def _pad(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 4)), h.pick((DType.I8, DType.U8, DType.I16, DType.I32))
    pads = tuple(h.int(0, 2) for _ in range(2 * len(shape)))
    out = tuple(d + pads[i] + pads[len(shape) + i] for i, d in enumerate(shape))
    h.emit(isa.Pad, [h.value(shape, dtype)], out, dtype, pads=pads, value=h.int(*dtype.limits))


def _transpose(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 4)), h.pick(ANY)
    perm = tuple(h.draw(st.permutations(range(len(shape)))))
    h.emit(isa.Transpose, [h.value(shape, dtype)], tuple(shape[p] for p in perm), dtype, perm=perm)


def _reshape(h: Hand) -> None:
    shape, dtype = h.shape(h.int(1, 3)), h.pick(ANY)
    x = h.value(shape, dtype, constant=True)
    h.emit(isa.Reshape, [x], (int(np.prod(shape)),), dtype, alias=h.pick((True, False)))


def _resize_nearest(h: Hand) -> None:
    shape, dtype, oh, ow = h.shape(4), h.pick(ANY), h.int(1, 4), h.int(1, 4)
    rows, cols = (h.m.constant(h.rng.integers(0, d, o), DType.I32) for d, o in ((shape[1], oh), (shape[2], ow)))
    h.emit(isa.ResizeNearest, [h.value(shape, dtype), rows, cols], (shape[0], oh, ow, shape[3]), dtype)


def _resize_bilinear(h: Hand) -> None:
    shape, dtype, oh, ow = h.shape(4), h.pick(ACT), h.int(1, 4), h.int(1, 4)
    tables = []
    for d, o in ((shape[1], oh), (shape[2], ow)):
        low = h.rng.integers(0, d, o)
        table = np.stack([low, np.minimum(low + 1, d - 1), h.rng.integers(0, 257, o)], axis=1)
        tables.append(h.m.constant(table, DType.I32))
    h.emit(isa.ResizeBilinear, [h.value(shape, dtype), *tables], (shape[0], oh, ow, shape[3]), dtype)


def _grid_sample(h: Hand) -> None:
    shape, dtype, grid, oh, ow = h.shape(4), h.pick(ACT), h.pick(ACT), h.int(1, 4), h.int(1, 4)
    bits = h.int(0, 8)
    attributes = {
        "fraction_bits": bits,
        "multipliers": (h.int(0, 1 << 10), h.int(0, 1 << 10)),
        "shifts": (h.int(0, 12), h.int(0, 12)),
        "origin": (h.int(-8, 8 << bits), h.int(-8, 8 << bits)),
        "grid_zero_point": h.int(*grid.limits),
        "pad_value": h.int(*dtype.limits),
    }
    operands = [h.value(shape, dtype), h.value((shape[0], oh, ow, 2), grid)]
    modes = {"nearest": h.pick((True, False)), "border": h.pick((True, False))}
    h.emit(isa.GridSample, operands, (shape[0], oh, ow, shape[3]), dtype, **attributes, **modes)


def _position(kind: type[Instruction]) -> Callable[[Hand], None]:
    def rule(h: Hand) -> None:
        shape, dtype = h.shape(h.int(1, 4)), h.pick((DType.I32, DType.I64))
        axis = h.int(0, len(shape) - 1)
        out = tuple(1 if i == axis else d for i, d in enumerate(shape))
        x = h.value(shape, h.pick((*ACT, DType.I32)))
        h.emit(kind, [x], out, dtype, axis=axis, select_last=h.pick((True, False)))

    return rule


def _compare(h: Hand) -> None:
    dtype = h.pick((*ACT, DType.I32, DType.I64, DType.BOOL))
    shape, lhs, rhs = _two(h, (dtype,))
    relations = (isa.Comparison.EQUAL,) if dtype is DType.BOOL else tuple(isa.Comparison)
    h.emit(isa.Compare, [lhs, rhs], shape, DType.BOOL, relation=h.pick(relations))


def _select(h: Hand) -> None:
    dtype = h.pick((*ANY, DType.BOOL))
    shape, lhs, rhs = _two(h, (dtype,))
    condition = tuple(h.pick((1, d)) for d in shape)
    h.emit(isa.Select, [h.value(condition, DType.BOOL), lhs, rhs], shape, dtype)


def _logical(h: Hand) -> None:
    shape, lhs, rhs = _two(h, (DType.BOOL,))
    junction = h.pick(tuple(isa.Junction))
    alone = junction is isa.Junction.NOT
    h.emit(isa.Logical, [h.value(shape, DType.BOOL), -1] if alone else [lhs, rhs], shape, DType.BOOL, junction=junction)


def _gather(h: Hand) -> None:
    shape, dtype, n = h.shape(h.int(1, 3)), h.pick(ANY), h.int(1, 4)
    axis = h.int(0, len(shape) - 1)
    indices = h.m.constant(h.rng.integers(0, shape[axis], n), DType.I32)
    out = (*shape[:axis], n, *shape[axis + 1 :])
    h.emit(isa.Gather, [h.value(shape, dtype), indices], out, dtype, axis=axis)


def _expand(h: Hand) -> None:
    out, dtype = h.shape(h.int(1, 4)), h.pick(ANY)
    shape = tuple(h.pick((1, d)) for d in out)
    h.emit(isa.Expand, [h.value(shape, dtype)], out, dtype)


RULES: dict[type[Instruction], Callable[[Hand], None]] = {
    isa.Quantize: _quantize,
    isa.Dequantize: _dequantize,
    isa.FlipSign: _flip_sign,
    isa.Requantize: _requantize,
    isa.Conv2d: _conv2d,
    isa.ConvTranspose2d: _conv_transpose2d,
    isa.Matmul: _matmul,
    isa.Add: _add,
    isa.Mul: _mul,
    isa.Maximum: _extreme(isa.Maximum),
    isa.Minimum: _extreme(isa.Minimum),
    isa.Clamp: _clamp,
    isa.Lut: _lut,
    isa.SegmentLut: _segment_lut,
    isa.MaxPool: _max_pool,
    isa.AvgPool: _avg_pool,
    isa.ReduceSum: _reduce_sum,
    isa.ReduceMax: _reduce(isa.ReduceMax),
    isa.ReduceMin: _reduce(isa.ReduceMin),
    isa.Concat: _concat,
    isa.Slice: _slice,
    isa.Pad: _pad,
    isa.Transpose: _transpose,
    isa.Reshape: _reshape,
    isa.ResizeNearest: _resize_nearest,
    isa.ResizeBilinear: _resize_bilinear,
    isa.GridSample: _grid_sample,
    isa.ArgMax: _position(isa.ArgMax),
    isa.ArgMin: _position(isa.ArgMin),
    isa.Compare: _compare,
    isa.Select: _select,
    isa.Logical: _logical,
    isa.Gather: _gather,
    isa.Expand: _expand,
}


@st.composite
def models(
    draw: Draw,
    kinds: Sequence[type[Instruction]] = tuple(RULES),
    *,
    max_size: int = 4,
    cpu: bool = False,
    name: str = "main",
) -> Model:
    """A sound model of a few instructions of `kinds`, one reading another's result where shapes happen to agree.

    With `cpu`, some also hold a CPU segment; its bytes are no ONNX model, so such a model is stored but not run.
    """
    h = Hand(draw)
    h.m.name = name
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=max_size)):
        RULES[kind](h)
        if cpu and draw(st.integers(0, 3)) == 0:
            onnx = draw(st.binary(min_size=1, max_size=9))
            h.m.cpu([h.value(h.shape(2), DType.F32)], [(h.shape(2), DType.F32)], onnx)
    model = h.m.finish()
    layouts = [draw(st.sampled_from(Layout)) if len(i.shape) == 4 else Layout.ANY for i in model.inputs]
    infos = tuple(replace(i, layout=x) for i, x in zip(model.inputs, layouts, strict=True))
    segments = tuple(replace(s, name=draw(TEXT)) if isinstance(s, BpuSegment) else s for s in model.segments)
    return replace(model, inputs=infos, segments=segments)


@st.composite
def programs(draw: Draw, *, cpu: bool = True, max_models: int = 2) -> Program:
    """A sound program: march, arithmetic, build information and one or more models."""
    names = draw(st.lists(TEXT, min_size=1, max_size=max_models, unique=True))
    options = draw(st.lists(st.tuples(TEXT, TEXT), max_size=2))
    build = BuildInfo(draw(TEXT), draw(TEXT), draw(TEXT), tuple(options))
    march, arith = draw(st.sampled_from(list(BORDER_ROUNDING))), draw(st.sampled_from(ARITHS))
    return program_of(*(draw(models(cpu=cpu, name=n)) for n in names), march=march, arith=arith, build=build)


def arrays_for(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays for the inputs of `model`, over the whole range of their dtypes."""
    rng = np.random.default_rng(seed)
    out = {}
    for info in model.inputs:
        if info.dtype.is_integer:
            lo, hi = info.dtype.limits
            out[info.name] = rng.integers(lo, hi, info.shape, info.dtype.numpy, endpoint=True)
        else:
            out[info.name] = rng.normal(0, 10, info.shape).astype(info.dtype.numpy)
    return out
