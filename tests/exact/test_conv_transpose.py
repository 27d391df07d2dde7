"""ConvTranspose2d: the JIT gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hbc_runtime.isa import ConvTranspose2d, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.heavy import (
    ACTIVATIONS,
    CHANNELS,
    EXACT,
    SCHEMES,
    Array,
    biases,
    outputs,
    parameters,
    ranges,
    tensors,
)


def conv_transpose(
    x: Array, weight: Array, out: DType, params: list[Array | None], threads: tuple[int, ...] = (1,), **attributes: Any
) -> Array:
    """Run a ConvTranspose2d in reference and JIT. `params`: operands 2…5."""
    run = {name: attributes.pop(name) for name in ("dynamic", "machine") if name in attributes}
    op = ConvTranspose2d(inputs=(), outputs=(), **attributes)
    shape = (x.shape[0], *(extent(vars(op), x.shape[1 + i], weight.shape[1 + i], i) for i in range(2)), weight.shape[0])
    operands = [x, weight, *params, *[None] * (4 - len(params))]
    return run_both(op, operands, [(shape, out)], threads=threads, **run)[0]


def extent(op: dict[str, Any], size: int, kernel: int, i: int) -> int:
    """Size of the result along spatial axis `i`."""
    spread = (size - 1) * op["strides"][i] + op["dilations"][i] * (kernel - 1) + 1
    return spread + op["output_padding"][i] - op["pads"][i] - op["pads"][2 + i]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that `conv_transpose` takes; one in three is depthwise."""
    per_group = draw(st.sampled_from([1, 4, 7]))
    group = draw(st.sampled_from([1, 1, 2, 3])) if per_group > 1 else draw(st.sampled_from([1, 4, 17, 33]))
    filters = group * (draw(CHANNELS) if per_group > 1 else draw(st.integers(1, 2)))
    scheme, dtype = draw(SCHEMES), draw(ACTIVATIONS)
    out, info = draw(outputs(scheme)), np.iinfo(dtype)
    sides, kernel = ([draw(st.integers(1, n)) for _ in range(2)] for n in (6, 4))
    weight = draw(tensors((filters, *kernel, per_group), draw(ACTIVATIONS)))
    case = {
        "x": draw(tensors((draw(st.integers(1, 2)), *sides, group * per_group), dtype)),
        "weight": weight,
        "out": out,
        "params": [draw(biases(filters)), *draw(parameters(scheme, filters))],
        "scheme": scheme,
        "group": group,
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(2)),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in range(2)),
        "pads": tuple(draw(st.integers(0, 4)) for _ in range(4)),
        "output_padding": tuple(draw(st.integers(0, 2)) for _ in range(2)),
        "x_zero_point": draw(st.sampled_from([0, 0, int(info.min), int(info.max), -3])),
        **draw(ranges(scheme, out)),
    }
    assume(all(extent(case, sides[i], kernel[i], i) >= 1 for i in range(2)))
    return case


@given(cases())
@EXACT
def test_any_window(case: dict[str, Any]) -> None:
    conv_transpose(**case, threads=(1, 2))


@given(cases())
@EXACT
def test_weights_computed_at_run_time(case: dict[str, Any]) -> None:
    conv_transpose(**case, dynamic={0, 1})


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(case=cases())
@EXACT
def test_other_vector_lengths(machine: Host, case: dict[str, Any]) -> None:
    conv_transpose(**case, machine=machine)


def test_upsampling_by_two_places_each_pixel_in_its_own_corner() -> None:
    x = np.arange(1, 5, dtype=np.int8).reshape(1, 2, 2, 1)
    weight = np.array([[1, 10], [20, 30]], np.int8).reshape(1, 2, 2, 1)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    y = conv_transpose(x, weight, DType.I32, [], scheme=Scheme.NONE, strides=(2, 2), **limits)
    assert y[0, :, :, 0].tolist() == [[1, 10, 2, 20], [20, 30, 40, 60], [3, 30, 4, 40], [60, 90, 80, 120]]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "pads", "channels"),
    [
        ((1, 5, 7), (2, 2), (2, 2), (0, 0, 0, 0), (24, 24)),  # as wide as the stride: pixels are joined
        ((2, 4, 5), (2, 2), (2, 2), (0, 0, 0, 0), (8, 1)),
        ((1, 6, 9), (3, 3), (2, 2), (1, 1, 1, 1), (64, 32)),
        ((2, 5, 6), (4, 4), (2, 2), (1, 1, 1, 1), (12, 70)),
        ((1, 3, 40), (3, 5), (1, 3), (2, 1, 0, 4), (7, 17)),
        ((2, 3, 3), (3, 3), (3, 2), (0, 0, 0, 1), (4, 3)),
        ((1, 4, 4), (1, 3), (2, 2), (0, 0, 0, 0), (4, 5)),  # a phase without taps: not by phases
    ],
)
@pytest.mark.parametrize(("dtype", "x_zero_point"), [(np.int8, 0), (np.int8, -128), (np.int16, 0), (np.int16, -3)])
def test_phases_of_a_stride(
    machine: Host, size: tuple[int, int, int], kernel: tuple[int, int], strides: tuple[int, int],
    pads: tuple[int, int, int, int], channels: tuple[int, int], dtype: type[np.generic], x_zero_point: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(sum(size))
    taken, made = channels
    params = [
        rng.integers(-5000, 5000, made).astype(np.int32), rng.integers(16384, 32768, made).astype(np.int16),
        np.zeros(made, np.int8), rng.integers(18, 24, made).astype(np.int8),
    ]  # fmt: skip
    conv_transpose(
        (rng.integers(-128, 128, (*size, taken)) * (1 if dtype is np.int8 else 33)).astype(dtype),
        rng.integers(-128, 128, (made, *kernel, taken)).astype(np.int8),
        DType.I8, params, threads=(1, 2), machine=machine, scheme=Scheme.FORM_A, strides=strides, pads=pads,
        dilations=(1, 1), group=1, output_padding=(0, 0), x_zero_point=x_zero_point, zero_point=3, clamp_min=-128,
        clamp_max=120,
    )  # fmt: skip
