"""MaxPool and AvgPool: the JIT gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hbc_runtime.isa import AvgPool, MaxPool, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.heavy import ACTIVATIONS, CHANNELS, EXACT, axis_windows, outputs, parameters, ranges, tensors

SOME_SCHEME = st.sampled_from([s for s in Scheme if s is not Scheme.NONE])


@st.composite
def windows(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], tuple[int, int], tuple[int, int]]:
    """(attributes, input size, output size); the output may be sized by floor or by ceiling."""
    axes = [draw(axis_windows()) for _ in range(2)]
    attributes = {
        "kernel": tuple(a[1] for a in axes),
        "strides": tuple(a[2] for a in axes),
        "pads": (axes[0][3], axes[1][3], axes[0][4], axes[1][4]),
        "dilations": tuple(a[5] for a in axes),
    }
    up = draw(st.booleans())
    sizes = []
    for size, kernel, stride, before, after, dilation in axes:
        room = size + before + after - dilation * (kernel - 1) - 1
        sizes.append((-(-room // stride) if up else room // stride) + 1)
        starts = (o * stride - before for o in range(sizes[-1]))
        assume(all(any(0 <= start + tap * dilation < size for tap in range(kernel)) for start in starts))  # `check`
    return attributes, (axes[0][0], axes[1][0]), (sizes[0], sizes[1])


def max_pool(data: st.DataObject, **run: Any) -> None:
    attributes, size, result = data.draw(windows())
    n, c = data.draw(st.integers(1, 2)), data.draw(CHANNELS)
    x = data.draw(tensors((n, *size, c), data.draw(ACTIVATIONS)))
    run_both(MaxPool(inputs=(), outputs=(), **attributes), [x], [((n, *result, c), DType.of(x.dtype))], **run)


def avg_pool(data: st.DataObject, **run: Any) -> None:
    attributes, size, result = data.draw(windows())
    n, c, scheme = data.draw(st.integers(1, 2)), data.draw(CHANNELS), data.draw(SOME_SCHEME)
    x, out = data.draw(tensors((n, *size, c), data.draw(ACTIVATIONS))), data.draw(outputs(scheme))
    info = np.iinfo(x.dtype)
    zero_point = data.draw(st.one_of(st.just(0), st.integers(info.min, info.max)))
    params = data.draw(parameters(scheme, result[0] * result[1]))
    more = data.draw(ranges(scheme, out))
    op = AvgPool(inputs=(), outputs=(), scheme=scheme, x_zero_point=zero_point, **attributes, **more)
    run_both(op, [x, *params], [((n, *result, c), out)], **run)


@given(st.data())
@EXACT
def test_max_pool(data: st.DataObject) -> None:
    max_pool(data, threads=(1, 2))


@given(st.data())
@EXACT
def test_avg_pool(data: st.DataObject) -> None:
    avg_pool(data, threads=(1, 2))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(st.data())
@EXACT
def test_other_vector_lengths(machine: Host, data: st.DataObject) -> None:
    (max_pool if data.draw(st.booleans()) else avg_pool)(data, machine=machine)


@pytest.mark.parametrize("value", [-32768, 32767])
def test_sums_that_leave_i32_saturate(value: int) -> None:
    """A window of 32768 and more i16 positions with the zero point at the other end adds up beyond i32."""
    x = np.full((1, 182, 182, 3), value, np.int16)
    params = [np.array([1 << 30], np.int32), np.zeros(1, np.int8), np.array([30], np.int8)]
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1, "x_zero_point": -value - 1}
    op = AvgPool(inputs=(), outputs=(), scheme=Scheme.WIDE, kernel=(182, 182), **limits)
    y = run_both(op, [x, *params], [((1, 1, 1, 3), DType.I32)])[0]
    assert y.ravel().tolist() == [2**31 - 1 if value > 0 else -(2**31)] * 3


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("channels", [1, 3, 7, 8, 70])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "size"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), (6, 40)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (7, 9)),
        ((3, 3), (2, 2), (0, 0, 1, 1), (8, 8)),  # the last window reaches over the edge
        ((2, 3), (1, 1), (1, 2, 0, 2), (3, 23)),
        ((1, 2), (2, 3), (0, 1, 0, 0), (5, 30)),
        ((6, 5), (1, 4), (3, 2, 3, 2), (5, 12)),
    ],
)
def test_largest_of_windows_at_edges(
    machine: Host, channels: int, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int, int, int],
    size: tuple[int, int],
) -> None:  # fmt: skip
    rng = np.random.default_rng(channels)
    room = [size[i] + pads[i] + pads[2 + i] - kernel[i] for i in range(2)]
    shape = (2, *(r // s + 1 for r, s in zip(room, strides, strict=True)), channels)
    for dtype in (np.int8, np.int16):
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, *size, channels), dtype, endpoint=True)
        op = MaxPool(inputs=(), outputs=(), kernel=kernel, strides=strides, pads=pads)
        run_both(op, [x], [(shape, DType.of(dtype))], threads=(1, 2), machine=machine)
