"""Conv2d: the JIT gives the reference's bits for every window, grouping, dtype, scheme, thread count, vector length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.errors import HbmError
from hbc_runtime.isa import Conv2d, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, Job, layout, run_jit, run_together
from tests.exact.heavy import (
    ACTIVATIONS,
    CHANNELS,
    EXACT,
    SCHEMES,
    Array,
    axis_windows,
    biases,
    outputs,
    parameters,
    ranges,
    tensors,
)


def job(x: Array, weight: Array, out: DType, params: list[Array | None], dynamic: set[int], **attributes: Any) -> Job:
    """A Conv2d whose geometry attributes default as the instruction's do. `params`: operands 2 to 8."""
    op = Conv2d(inputs=(), outputs=(), **attributes)

    def size(i: int) -> int:
        reach = op.dilations[i] * (weight.shape[1 + i] - 1) + 1
        return (x.shape[1 + i] + op.pads[i] + op.pads[2 + i] - reach) // op.strides[i] + 1

    operands = [x, weight, *params, *[None] * (7 - len(params))]
    return Job(op, operands, [((x.shape[0], size(0), size(1), weight.shape[0]), out)], frozenset(dynamic))


def conv(*args: Any, threads: tuple[int, ...] = (1,), machine: Host | None = None, **attributes: Any) -> Array:
    """Run one `job` in reference and JIT; operand 0 is dynamic where `dynamic` does not say otherwise."""
    made = job(*args, **{"dynamic": {0}, **attributes})
    return run_together([made], threads=threads, machine=machine)[0][0]


@st.composite
def cases(draw: st.DrawFn, kind: str = "any") -> dict[str, Any]:
    """Everything that `conv` takes. `kind` is any, depthwise or pointwise."""
    if kind == "depthwise":
        group = draw(st.sampled_from([2, 3, 5, 16, 17, 33, 40]))
        channels, filters = group, group * draw(st.integers(1, 3))
    else:
        group = draw(st.sampled_from([1, 1, 1, 2, 3]))
        channels, filters = group * draw(st.integers(1, 20)), group * draw(CHANNELS)
    rows, columns = draw(axis_windows()), draw(axis_windows(20))
    if kind == "pointwise":
        rows, columns = ((a[0], 1, 1, 0, 0, 1) for a in (rows, columns))
    scheme, x_type = draw(SCHEMES), draw(ACTIVATIONS)
    out = draw(outputs(scheme))
    x = draw(tensors((draw(st.integers(1, 2)), rows[0], columns[0], channels), x_type))
    weight = draw(tensors((filters, rows[1], columns[1], channels // group), draw(ACTIVATIONS)))
    case = {
        "x": x, "weight": weight, "out": out, "params": [draw(biases(filters)), *draw(parameters(scheme, filters))],
        "scheme": scheme, "strides": (rows[2], columns[2]), "pads": (rows[3], columns[3], rows[4], columns[4]),
        "dilations": (rows[5], columns[5]), "group": group, **draw(ranges(scheme, out)),
    }  # fmt: skip
    info = np.iinfo(x_type)
    case["pad_value"] = draw(st.sampled_from([0, 0, int(info.min), int(info.max), 7]))
    return case


@given(cases())
@EXACT
def test_any_window(case: dict[str, Any]) -> None:
    conv(**case, threads=(1, 2))


@given(cases("depthwise"))
@EXACT
def test_depthwise(case: dict[str, Any]) -> None:
    conv(**case, threads=(1, 2))


@given(cases("pointwise"))
@EXACT
def test_pointwise(case: dict[str, Any]) -> None:
    conv(**case, threads=(1, 2))


@given(st.sampled_from(["any", "depthwise", "pointwise"]).flatmap(cases))
@EXACT
def test_weights_computed_at_run_time(case: dict[str, Any]) -> None:
    conv(**case, dynamic={0, 1}, threads=(1, 2))


@given(st.lists(st.sampled_from(["any", "depthwise", "pointwise"]).flatmap(cases), min_size=2, max_size=8))
@EXACT
def test_many_kernels_in_one_module(several: list[dict[str, Any]]) -> None:
    run_together([job(**case, dynamic={0}) for case in several])


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(st.data())
@EXACT
def test_other_vector_lengths(machine: Host, data: st.DataObject) -> None:
    case = data.draw(cases(data.draw(st.sampled_from(["any", "depthwise", "pointwise"]))))
    conv(**case, machine=machine)


@given(st.data(), st.sampled_from(["any", "depthwise", "pointwise"]))
@EXACT
def test_fused_addend(data: st.DataObject, kind: str) -> None:
    case = data.draw(cases(kind).filter(lambda c: c["scheme"] is not Scheme.NONE))
    shape = conv(**case).shape
    filters, dtype = shape[3], data.draw(ACTIVATIONS)
    addend = data.draw(tensors(shape, dtype))
    info, count = np.iinfo(dtype), data.draw(st.sampled_from([1, filters]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    if case["scheme"] is Scheme.FLOAT:
        params = [rng.normal(0, 2, count).astype(np.float32), None]
    else:
        least = data.draw(st.sampled_from([-31, 0]))
        shifts = rng.integers(least, data.draw(st.sampled_from([32, 63])), count)
        params = [rng.integers(-(1 << 15), 1 << 15, count).astype(np.int16), shifts.astype(np.int8)]
    zero_point = data.draw(st.sampled_from([0, 0, int(info.min), int(info.max), -3]))
    case["params"] += [addend, *params]
    conv(**case, addend_zero_point=zero_point, dynamic={0, 6}, threads=(1, 2))


def fixed(channels: int, multiplier: int = 1 << 14, pre: int = 0, post: int = 14) -> list[Array | None]:
    """No bias, and parameters of form A or B."""
    return [
        None,
        np.full(channels, multiplier, np.int16),
        np.full(channels, pre, np.int8),
        np.full(channels, post, np.int8),
    ]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("group", [1, 2])
def test_chunks_that_channels_do_not_fill(machine: Host, group: int) -> None:
    rng = np.random.default_rng(0)
    for filters in (14, 28, 30, 44, 62):
        x = rng.integers(-128, 128, (1, 3, 5, 6 * group)).astype(np.int8)
        weight = rng.integers(-128, 128, (filters * group, 1, 3, 6)).astype(np.int8)
        params = fixed(filters * group, 20000, 2, 16)
        limits = {"clamp_min": -128, "clamp_max": 127, "group": group}
        conv(x, weight, DType.I8, params, scheme=Scheme.FORM_A, pads=(0, 1, 0, 1), machine=machine, **limits)


@pytest.mark.parametrize("scheme", [Scheme.FORM_A, Scheme.FORM_B])
@pytest.mark.parametrize("multiplier", [-32768, -1, 1, 32767])
@pytest.mark.parametrize("shifts", [(0, 0), (0, 31), (31, 0), (31, 31), (15, 16)])
def test_ends_of_multiplier_and_shifts(scheme: Scheme, multiplier: int, shifts: tuple[int, int]) -> None:
    x = np.array([-128, -1, 0, 1, 127, 126, -127, 64] * 4, np.int8).reshape(1, 2, 4, 4)
    weight = np.array([-128, 127, 1, -1] * 20, np.int8).reshape(20, 1, 1, 4)
    bias = np.linspace(-(2**31), 2**31 - 1, 20).astype(np.int64).astype(np.int32)
    for b in (None, bias):
        params = [b, *fixed(20, multiplier, *shifts)[1:]]
        conv(x, weight, DType.I16, params, scheme=scheme, clamp_min=-32768, clamp_max=32767)


@pytest.mark.parametrize(("value", "result"), [(32767, -(2**31)), (-32768, 2**31 - 1)])
def test_accumulators_saturate_once_at_the_end(value: int, result: int) -> None:
    """D3: the sum passes i32 long before its end, and only the end counts."""
    x = np.full((1, 3, 3, 16), value, np.int16)
    weight = np.full((5, 3, 3, 16), -32768, np.int16)
    y = conv(x, weight, DType.I32, [], scheme=Scheme.NONE, clamp_min=-(2**31), clamp_max=2**31 - 1)
    assert y.tolist() == [[[[result] * 5]]]
    weight[:, :, :, ::2] = 32767  # now it comes back into range
    y = conv(x, weight, DType.I32, [], scheme=Scheme.NONE, clamp_min=-(2**31), clamp_max=2**31 - 1)
    assert y.tolist() == [[[[-value * 72] * 5]]]


def test_bias_alone_saturates() -> None:
    x, weight = np.full((1, 1, 2, 4), 127, np.int8), np.full((17, 1, 1, 4), 127, np.int8)
    bias = np.full(17, 2**31 - 1, np.int32)
    y = conv(x, weight, DType.I32, [bias], scheme=Scheme.NONE, clamp_min=-(2**31), clamp_max=2**31 - 1)
    assert (y == 2**31 - 1).all()


def test_all_extremes_of_i8_stay_exact() -> None:
    """−128 · −128 everywhere: pairs of products reach 2^15, which 16-bit sums would not hold."""
    x, weight = np.full((1, 5, 5, 33), -128, np.int8), np.full((33, 3, 3, 33), -128, np.int8)
    y = conv(x, weight, DType.I32, [], scheme=Scheme.NONE, pads=(1, 1, 1, 1), clamp_min=-(2**31), clamp_max=2**31 - 1)
    assert y.max() == 9 * 33 * 128 * 128


@pytest.mark.parametrize("shift", [0, 8])
def test_an_addend_alone_takes_the_sum_out_of_i32(shift: int) -> None:
    x, weight = np.zeros((1, 1, 2, 4), np.int8), np.zeros((17, 1, 1, 4), np.int8)
    _, *params = fixed(17, 1, 31, 0)
    addend = np.full((1, 1, 2, 17), 127, np.int8)
    params += [addend, np.full(17, 32767, np.int16), np.full(17, shift, np.int8)]
    bias = np.full(17, 2**31 - 9, np.int32)
    y = conv(x, weight, DType.I8, [bias, *params], scheme=Scheme.FORM_A, clamp_min=-128, clamp_max=127, dynamic={0, 6})
    assert (y == 0).all()  # (2^31 − 1) >> 31; a sum that wraps gives −1


def test_depthwise_rows_beyond_the_input_read_the_pad_value() -> None:
    """No border at the top, left or right: rows could be read in place, if it were not for the one below."""
    x = np.full((1, 2, 5, 16), 1, np.int8)
    weight = np.ones((16, 2, 1, 1), np.int8)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    geometry = {"pads": (0, 0, 1, 0), "group": 16, "pad_value": 50}
    y = conv(x, weight, DType.I32, [], scheme=Scheme.NONE, **geometry, **limits)
    assert y[0, :, 0, 0].tolist() == [2, 51]


def test_float_steps_round_one_by_one() -> None:
    """acc·mult + addend·mult2 in float32 without a fused multiply-add, which would round once and often differ."""
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(-128, 128, s).astype(np.int8) for s in ((1, 16, 16, 32), (32, 1, 1, 32)))
    addend = rng.integers(-128, 128, (1, 16, 16, 32)).astype(np.int8)
    mult, addend_mult = (rng.uniform(100, 200, 32).astype(np.float32) for _ in range(2))
    params = [None, mult, None, None, addend, addend_mult, None]
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    y = conv(x, weight, DType.I32, params, scheme=Scheme.FLOAT, dynamic={0, 6}, **limits)
    acc = x.reshape(-1, 32).astype(np.int64) @ weight.reshape(32, 32).T.astype(np.int64)
    fused = (acc * mult.astype(np.float64) + addend.reshape(-1, 32) * addend_mult.astype(np.float64)).astype(np.float32)
    assert (np.rint(fused).astype(np.int64) != y.reshape(-1, 32)).any()  # the case can tell them apart


def test_a_multiplier_computed_at_run_time_is_refused() -> None:
    x, weight = np.ones((1, 2, 2, 4), np.int8), np.ones((4, 1, 1, 4), np.int8)
    with pytest.raises(HbmError, match=r"conv2d.*its multiplier is computed at run time"):
        conv(x, weight, DType.I8, fixed(4), scheme=Scheme.FORM_A, clamp_min=-128, clamp_max=127, dynamic={0, 3})


def test_a_window_too_wide_to_gather_is_refused() -> None:
    far = 1 << 29
    x, weight = np.ones((1, 1, 1, 4), np.int8), np.ones((4, 1, 2, 4), np.int8)
    op = Conv2d(
        inputs=(),
        outputs=(),
        scheme=Scheme.FORM_A,
        clamp_min=-128,
        clamp_max=127,
        pads=(0, far, 0, 0),
        dilations=(1, far),
    )
    case = layout([Job(op, [x, weight, *fixed(4), None, None, None], [((1, 1, 1, 4), DType.I8)])])
    with pytest.raises(HbmError, match="scratch memory"):  # the reference would take that memory
        run_jit(case, 1)
