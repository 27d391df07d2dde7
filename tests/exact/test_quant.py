"""Quantize, Dequantize, FlipSign, Requantize: the JIT gives the reference's bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import Dequantize, FlipSign, Quantize, Requantize, Rounding, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.light import EXACT, INTEGERS, Array, arrays, clamps, floats, scheme_operands, shapes, zero_points

NARROW = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)


@st.composite
def axes(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, int]:
    """(axis, number of parameters): −1 and 1 for per tensor."""
    axis = draw(st.integers(-1, len(shape) - 1))
    return axis, 1 if axis < 0 else shape[axis]


@given(st.data(), shapes(), st.sampled_from(NARROW), st.sampled_from(list(Rounding)))
@EXACT
def test_quantize(data: st.DataObject, shape: tuple[int, ...], dtype: type[np.generic], rounding: Rounding) -> None:
    axis, count = data.draw(axes(shape))
    base = data.draw(st.floats(2.0**-12, 2.0**8))
    scale = (base * np.linspace(1, 3, count)).astype(np.float32)
    zero_point = np.array([data.draw(zero_points(dtype)) for _ in range(count)], np.int64).astype(np.int32)
    lo, hi = data.draw(clamps(dtype))
    op = Quantize(inputs=(), outputs=(), axis=axis, rounding=rounding, clamp_min=lo, clamp_max=hi)
    x = data.draw(floats(shape, base))
    (y,) = run_both(op, [x, scale, zero_point], [(shape, DType.of(dtype))], threads=(1, 2))
    assert y.min() >= lo
    assert y.max() <= hi


@given(st.data(), shapes(), st.sampled_from(NARROW))
@EXACT
def test_dequantize(data: st.DataObject, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    axis, count = data.draw(axes(shape))
    scale = np.array([data.draw(st.floats(1e-6, 1e3)) for _ in range(count)], np.float32)
    zero_point = np.array([data.draw(zero_points(np.int32)) for _ in range(count)], np.int32)
    op = Dequantize(inputs=(), outputs=(), axis=axis)
    (y,) = run_both(op, [data.draw(arrays(shape, dtype)), scale, zero_point], [(shape, DType.F32)], threads=(1, 2))
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("source", "target"), [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint16, np.int16), (np.int16, np.uint16)]
)
def test_flip_sign_over_the_whole_range(source: type[np.generic], target: type[np.generic]) -> None:
    info = np.iinfo(source)
    x = np.arange(info.min, int(info.max) + 1).astype(source)
    (y,) = run_both(FlipSign(inputs=(), outputs=()), [x], [(x.shape, DType.of(target))], threads=(1, 2))
    assert np.array_equal(y.astype(np.int64), np.arange(np.iinfo(target).min, int(np.iinfo(target).max) + 1))


@dataclass(frozen=True)
class Rescale:
    """What a scheme of Requantize may give."""

    scheme: Scheme
    outs: tuple[type[np.generic], ...]


RESCALES = [
    Rescale(Scheme.FORM_A, (np.int8, np.int16)),
    Rescale(Scheme.FORM_B, (np.int8, np.int16)),
    Rescale(Scheme.WIDE, (np.int8, np.int16, np.int32)),
    Rescale(Scheme.FLOAT, (np.int8, np.int16, np.int32)),
]


@pytest.mark.parametrize("rescale", RESCALES, ids=lambda r: r.scheme.name)
@given(data=st.data(), shape=shapes(), source=st.sampled_from(INTEGERS))
@EXACT
def test_requantize(data: st.DataObject, rescale: Rescale, shape: tuple[int, ...], source: type[np.generic]) -> None:
    out = data.draw(st.sampled_from(rescale.outs))
    axis, count = data.draw(axes(shape))
    count = data.draw(st.sampled_from([1, count]))
    lo, hi = data.draw(clamps(out))
    op = Requantize(
        inputs=(), outputs=(), scheme=rescale.scheme, clamp_min=lo, clamp_max=hi, axis=axis,
        zero_point=data.draw(zero_points(out)), x_zero_point=data.draw(zero_points(source)),
    )  # fmt: skip
    x: Array = data.draw(arrays(shape, source))
    run_both(op, [x, *data.draw(scheme_operands(rescale.scheme, count))], [(shape, DType.of(out))], threads=(1, 2))


def test_requantize_at_ratio_1_gives_back_every_i8() -> None:
    x = np.arange(-128, 128, dtype=np.int8)
    op = Requantize(inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=-128, clamp_max=127)
    mult, pre, post = np.array([16384], np.int16), np.array([0], np.int8), np.array([14], np.int8)
    (y,) = run_both(op, [x, mult, pre, post], [(x.shape, DType.I8)])
    assert np.array_equal(y, x)


@pytest.mark.parametrize("scheme", [Scheme.WIDE, Scheme.FLOAT])
def test_extreme_accumulators_and_zero_points_saturate(scheme: Scheme) -> None:
    info = np.iinfo(np.int32)
    x = np.array([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max] * 5, np.int32)
    mult = np.array([2**30 if scheme is Scheme.WIDE else 1.0], np.int32 if scheme is Scheme.WIDE else np.float32)
    shifts = [np.array([s], np.int8) if scheme is Scheme.WIDE else None for s in (0, 30)]
    for zero_point in (info.min, -1, 0, 1, info.max):
        for x_zero_point in (info.min, 0, info.max):
            op = Requantize(
                inputs=(), outputs=(), scheme=scheme, zero_point=int(zero_point), clamp_min=int(info.min),
                clamp_max=int(info.max), x_zero_point=int(x_zero_point),
            )  # fmt: skip
            run_both(op, [x, mult, *shifts], [(x.shape, DType.I32)])


def shifted(zero_point: int) -> Requantize:
    """x − zero_point at ratio 1, to i8."""
    return Requantize(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=-128, clamp_max=127, x_zero_point=zero_point
    )


RATIO_1 = np.array([16384], np.int16), np.array([0], np.int8), np.array([14], np.int8)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("end", ["min", "max"])
def test_zero_points_at_the_ends_of_the_operand_saturate(dtype: type[np.generic], end: str) -> None:
    info = np.iinfo(dtype)
    zero_point = int(getattr(info, end))
    x = np.arange(info.min, int(info.max) + 1).astype(dtype)
    (y,) = run_both(shifted(zero_point), [x, *RATIO_1], [(x.shape, DType.I8)])
    assert np.array_equal(y, np.clip(x.astype(np.int64) - zero_point, -128, 127))


@pytest.mark.parametrize("zero_point", [-(1 << 31), -129, 128, (1 << 32) - 1])
def test_zero_points_outside_the_operand_are_refused(zero_point: int) -> None:
    """No compiler writes them, but a container may hold them: they must not reach the kernels."""
    with pytest.raises(ValueError, match=f"operand zero point {zero_point} is outside i8"):
        run_both(shifted(zero_point), [np.array([-128, 0, 127], np.int8), *RATIO_1], [((3,), DType.I8)])


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(
    ("mult", "pre", "post"), [(16384, 0, 14), (32767, 0, 15), (20000, 0, 16), (29000, 2, 17), (17000, 0, 21), (5, 0, 0)]
)
@pytest.mark.parametrize("count", [63, 64, 300])
def test_every_byte_by_form_b_on_every_machine(machine: Host, mult: int, pre: int, post: int, count: int) -> None:
    x = np.resize(np.arange(-128, 128), count).astype(np.int8)
    parameters = [np.array([mult], np.int16), np.array([pre], np.int8), np.array([post], np.int8)]
    for x_zero_point, zero_point in ((0, 0), (-128, 127), (127, -5)):
        op = Requantize(
            inputs=(), outputs=(), scheme=Scheme.FORM_B, x_zero_point=x_zero_point, zero_point=zero_point,
            clamp_min=-128, clamp_max=127 if pre else 90,
        )  # fmt: skip
        run_both(op, [x, *parameters], [(x.shape, DType.I8)], machine=machine)
