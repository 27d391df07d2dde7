"""Byte convolutions as networks have them: channels that fill vectors, form A, clamps of relus, fused additions.

`test_conv.py` asks for every window; here are the sizes at which the fast finish, its overlapping blocks and the
depthwise kernel are in use. Every case also runs among others, so that tensors are stored as q + 128.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Conv2d, ConvTranspose2d, Scheme
from hbc_runtime.jit import assembly, pair_plan, quad_plan
from hbc_runtime.jit.flat_depthwise import flat_plan, takes_flat
from hbc_runtime.jit.host import Dot, Host
from hbc_runtime.jit.quad_depthwise import takes_depthwise
from hbc_runtime.jit.quad_plan import make_quad_plan
from hbc_runtime.jit.window import Axis, Window
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both

SETTINGS = settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CLAMPS = st.sampled_from([(-128, 127), (0, 127), (-128, 77), (-5, 100)])
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def _ends(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Weights whose sums are as large as can be: of one sign, at the ends of i8."""
    return np.where(rng.random(shape[0]) < 0.5, -128, 127).reshape(-1, 1, 1, 1) + np.zeros(shape, np.int64)


WEIGHTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "any": lambda rng, shape: rng.integers(-128, 128, shape),
    "bell": lambda rng, shape: np.clip(np.round(rng.normal(0, 25, shape)), -128, 127),
    "ends": _ends,
}


def form_a(
    rng: np.random.Generator, channels: int, zero_point: int, dead: float
) -> tuple[list[np.ndarray], np.ndarray]:
    """(multiplier, pre_shift, post_shift) of random ratios per channel, some of them 0, and the rounding terms."""
    rows = [
        numerics.requantize_params(m, zero_point, rounding_in_bias=True) if alive else numerics.Multiplier(0, 0, 0)
        for m, alive in zip(np.exp(rng.uniform(-9, -2.5, channels)), rng.random(channels) >= dead, strict=True)
    ]
    fields = (("multiplier", np.int16), ("pre_shift", np.int8), ("post_shift", np.int8))
    parameters = [np.array([getattr(r, name) for r in rows], dtype) for name, dtype in fields]
    return parameters, np.array([r.rounding for r in rows])


def addition(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
    """A fused addend with its multipliers and shifts."""
    addend = rng.integers(-128, 128, shape).astype(np.int8)
    multiplier = rng.integers(1 << 14, 1 << 15, shape[3]).astype(np.int16)
    return [addend, multiplier, rng.integers(4, 20, shape[3]).astype(np.int8)]


def convolve(
    rng: np.random.Generator, x: tuple[int, ...], outputs: int, machine: Host, *, group: int = 1, added: bool = False,
    threads: int = 1, clamp: tuple[int, int] = (-128, 127), zero_point: int = 0, dead: float = 0.0, low: int = -128,
    weights: str = "any", **window: Any,
) -> None:  # fmt: skip
    """One convolution of random bytes, in the reference and the JIT; the image holds none below `low`."""
    kh, kw = window.pop("kernel")
    n, h, w, c = x
    strides, pads, dilations = window["strides"], window["pads"], window["dilations"]
    reach = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
    size = [(s + pads[i] + pads[i + 2] - reach[i]) // strides[i] + 1 for i, s in enumerate((h, w))]
    if min(size) < 1:
        return
    out = (n, *size, outputs)
    weight = WEIGHTS[weights](rng, (outputs, kh, kw, c // group)).astype(np.int8)
    parameters, rounding = form_a(rng, outputs, zero_point, dead)
    bias = (rng.integers(-20000, 20000, outputs) + rounding).astype(np.int32)
    extra = addition(rng, out) if added else [None, None, None]
    op = Conv2d(
        inputs=(), outputs=(), scheme=Scheme.FORM_A, zero_point=zero_point, clamp_min=clamp[0], clamp_max=clamp[1],
        group=group, pad_value=int(rng.integers(-128, 128)), addend_zero_point=int(rng.integers(-9, 9)) if added else 0,
        **window,
    )  # fmt: skip
    image = rng.choice([low, 127], x) if weights == "ends" else rng.integers(low, 128, x)
    operands = [image.astype(np.int8), weight, bias, *parameters, *extra]
    run_both(op, operands, [(out, DType.I8)], dynamic={0, 6} if added else {0}, threads=(threads,), machine=machine)


windows = {
    "kernel": st.sampled_from([(1, 1), (3, 3), (1, 5), (5, 1), (7, 7), (2, 3)]),
    "strides": st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    "dilations": st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
    "pads": st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (3, 3, 3, 3), (2, 0, 1, 3)]),
}
finishes = {
    "clamp": CLAMPS, "zero_point": st.sampled_from([0, 0, -128, 5]), "added": st.booleans(),
    "dead": st.sampled_from([0.0, 0.2]), "threads": st.sampled_from([1, 2]), "low": st.sampled_from([-128, 0]),
    "weights": st.sampled_from(["any", "bell", "ends"]),
}  # fmt: skip


@machines
@given(
    case=st.fixed_dictionaries({**windows, **finishes}),
    channels=st.sampled_from([3, 4, 7, 16, 32, 33]),
    outputs=st.sampled_from([16, 24, 32, 48, 64, 80, 96, 130]),
    size=st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 7, 9]), st.sampled_from([1, 7, 8, 15, 29])),
    seed=st.integers(0, 2**31),
)
@SETTINGS
def test_channels_that_fill_vectors(
    machine: Host, case: dict[str, Any], channels: int, outputs: int, size: tuple[int, int, int], seed: int
) -> None:
    convolve(np.random.default_rng(seed), (*size, channels), outputs, machine, **case)


@machines
@pytest.mark.parametrize("width", [2, 7, 13, 15, 29, 30, 31])
@pytest.mark.parametrize("kernel", [1, 3])
def test_tails_of_rows(machine: Host, width: int, kernel: int) -> None:
    pads = (kernel // 2,) * 4
    window = {"kernel": (kernel, kernel), "strides": (1, 1), "dilations": (1, 1), "pads": pads}
    for channels in (16, 17):
        convolve(np.random.default_rng(width), (1, 2, width, channels), 72, machine, **window)


IMAGES = [((2, 9, 7, 16), (1, 1, 1, 1)), ((1, 14, 14, 20), (1, 0, 2, 1)), ((3, 5, 4, 33), (2, 1, 0, 1))]  # size, pads


@machines
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_images_gathered_once_for_all_panels(machine: Host, stride: int, threads: int) -> None:
    """Panels outermost, as for large weights; threads that begin in the middle of an image; several images."""
    rng = np.random.default_rng(stride)
    with pytest.MonkeyPatch.context() as patch:
        for module in (quad_plan, pair_plan):
            patch.setattr(module, "SMALL_WEIGHTS", 0)
        patch.setattr(assembly, "SMALL", 0)  # threads share however little there is
        for size, pads in (
            ((2, 9, 7, 16), (1, 1, 1, 1)),
            ((1, 14, 14, 20), (1, 0, 2, 1)),
            ((3, 5, 4, 33), (2, 1, 0, 1)),
        ):
            convolve(
                rng, size, 72, machine, kernel=(3, 3), strides=(stride, stride), dilations=(1, 1), pads=pads,
                threads=threads,
            )  # fmt: skip


STEMS = [  # kernel, stride, channels, width: what is left of the rows makes one to five further steps
    ((7, 7), 2, 3, 23), ((7, 7), 2, 3, 64), ((3, 3), 2, 3, 17), ((5, 3), 4, 3, 41), ((7, 3), 3, 3, 8),
    ((4, 2), 2, 3, 9), ((3, 1), 1, 5, 31), ((6, 5), 2, 3, 50), ((9, 3), 1, 6, 12), ((5, 1), 3, 7, 100),
]  # fmt: skip


@machines
@pytest.mark.parametrize(("kernel", "stride", "channels", "width"), STEMS)
def test_what_is_left_of_kernel_rows(
    machine: Host, kernel: tuple[int, int], stride: int, channels: int, width: int
) -> None:
    window = {"kernel": kernel, "strides": (stride, stride), "dilations": (1, 1)}
    for pads, added in (((0, 0, 0, 0), False), ((3, 2, 1, 3), True)):
        convolve(np.random.default_rng(width), (2, 11, width, channels), 72, machine, pads=pads, added=added, **window)


@machines
@given(
    case=st.fixed_dictionaries({**windows, **finishes}),
    channels=st.sampled_from([32, 40, 64, 100, 144]),
    size=st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 5, 9]), st.sampled_from([1, 3, 7, 8, 13])),
    seed=st.integers(0, 2**31),
)
@SETTINGS
def test_depthwise(machine: Host, case: dict[str, Any], channels: int, size: tuple[int, int, int], seed: int) -> None:
    convolve(np.random.default_rng(seed), (*size, channels), channels, machine, group=channels, **case)


SAME = [  # kernel, dilations, pads: rows of output are as long as those of input
    ((3, 3), (1, 1), (1, 1, 1, 1)), ((5, 5), (1, 1), (2, 2, 2, 2)), ((4, 3), (1, 1), (2, 0, 1, 2)),
    ((1, 5), (1, 1), (0, 4, 0, 0)), ((3, 3), (2, 2), (2, 2, 2, 2)), ((2, 1), (1, 1), (1, 0, 0, 0)),
    ((7, 3), (1, 3), (3, 3, 3, 3)), ((6, 2), (1, 1), (0, 1, 0, 0)),
]  # fmt: skip


@machines
@given(
    window=st.sampled_from(SAME), down=st.sampled_from([1, 1, 2]), case=st.fixed_dictionaries(finishes),
    channels=st.sampled_from([1, 2, 4, 8, 16, 16, 24, 32, 40, 48]),
    size=st.tuples(st.integers(1, 2), st.integers(6, 9), st.integers(1, 40)), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(SETTINGS, max_examples=12)
def test_depthwise_of_few_channels(
    machine: Host, window: Any, down: int, case: dict[str, Any], channels: int, size: tuple[int, int, int], seed: int
) -> None:
    kernel, dilations, pads = window
    convolve(
        np.random.default_rng(seed), (*size, channels), channels, machine, group=channels, kernel=kernel,
        strides=(down, 1), dilations=dilations, pads=pads, **case,
    )  # fmt: skip


@machines
@pytest.mark.parametrize("width", [4, 5, 11, 33])
@pytest.mark.parametrize("channels", [16, 24])
def test_depthwise_rows_of_every_length(machine: Host, width: int, channels: int) -> None:
    """Blocks at the ends, in the middle, and the one that overlaps; odd numbers of rows."""
    window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    for rows in (1, 3):
        convolve(
            np.random.default_rng(width), (2, rows, width, channels), channels, machine, group=channels,
            added=rows == 3, threads=2, **window,
        )  # fmt: skip


@machines
@given(
    case=st.fixed_dictionaries({**windows, **finishes}),
    group=st.sampled_from([2, 3]),
    per_group=st.sampled_from([(4, 32), (6, 64), (17, 48)]),
    size=st.tuples(st.just(1), st.integers(1, 5), st.integers(1, 9)),
    seed=st.integers(0, 2**31),
)
@SETTINGS
def test_groups(
    machine: Host, case: dict[str, Any], group: int, per_group: tuple[int, int], size: tuple[int, int, int], seed: int
) -> None:
    channels, outputs = (group * each for each in per_group)
    convolve(np.random.default_rng(seed), (*size, channels), outputs, machine, group=group, **case)


@machines
@given(
    kernel=st.sampled_from([(2, 2), (3, 3), (4, 4)]),
    strides=st.sampled_from([(1, 1), (2, 2), (3, 2)]),
    channels=st.sampled_from([5, 16, 32]),
    outputs=st.sampled_from([32, 64, 96]),
    zero_points=st.tuples(st.sampled_from([0, -128, 9]), st.sampled_from([0, -7])),
    seed=st.integers(0, 2**31),
)
@SETTINGS
def test_transposed(
    machine: Host, kernel: tuple[int, int], strides: tuple[int, int], channels: int, outputs: int,
    zero_points: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    h, w = (int(v) for v in rng.integers(1, 7, 2))
    out = (1, *((s - 1) * t + k for s, t, k in zip((h, w), strides, kernel, strict=True)), outputs)
    parameters, rounding = form_a(rng, outputs, zero_points[1], 0.1)
    weight = rng.integers(-127, 128, (outputs, *kernel, channels)).astype(np.int8)
    bias = (rng.integers(-20000, 20000, outputs) + rounding).astype(np.int32)
    op = ConvTranspose2d(
        inputs=(), outputs=(), scheme=Scheme.FORM_A, zero_point=zero_points[1], clamp_min=-128, clamp_max=127,
        strides=strides, pads=(0, 0, 0, 0), dilations=(1, 1), output_padding=(0, 0), group=1,
        x_zero_point=zero_points[0],
    )  # fmt: skip
    operands = [rng.integers(-128, 128, (1, h, w, channels)).astype(np.int8), weight, bias, *parameters]
    run_both(op, operands, [(out, DType.I8)], machine=machine)


@machines
def test_ends_of_multipliers_shifts_and_accumulators(machine: Host) -> None:
    """One output channel for each combination; words saturate, and products reach 2^30."""
    rng = np.random.default_rng(0)
    x, few = rng.choice(np.array([-128, -1, 0, 1, 127], np.int8), (1, 2, 5, 4)), [15, 16, 17, 24, 31]
    for multipliers, least, zero_point in itertools.product(
        [[-32767, -1, 0, 1, 32767], [-32768, 5]], [15, 18], [0, 90]
    ):
        posts = [p for p in few if p >= least] + [least]
        biases = [-(1 << 31) + 65024, -32769, -32768, 0, 32767, 32768, (1 << 31) - 65025]
        grid = np.array(list(itertools.product(multipliers, posts, [0, 0, 9], biases)))
        weight = rng.integers(-127, 128, (len(grid), 1, 1, 4)).astype(np.int8)
        op = Conv2d(
            inputs=(), outputs=(), scheme=Scheme.FORM_A, zero_point=zero_point, clamp_min=-128, clamp_max=127
        )  # fmt: skip
        parameters = [grid[:, 0].astype(np.int16), grid[:, 2].astype(np.int8), grid[:, 1].astype(np.int8)]
        operands = [x, weight, grid[:, 3].astype(np.int32), *parameters, None, None, None]
        run_both(op, operands, [((1, 2, 5, len(grid)), DType.I8)], machine=machine)


ABLE = [m for m in MACHINES.values() if m.dot is Dot.U8S8]
needs_bytes = pytest.mark.skipif(not ABLE, reason="this machine has no byte dot products")


def square(channels: int, outputs: int, kernel: int, *, group: int = 1, dilation: int = 1) -> Window:
    """A convolution over 15 × 15 pixels that keeps their number."""
    axis = Axis(15, 15, kernel, 1, dilation, dilation * (kernel // 2))
    return Window(1, channels, group, outputs, axis, axis, 0)


@needs_bytes
def test_the_cases_are_the_fast_ones() -> None:
    """What these tests are for: plans are packed."""
    plans = [make_quad_plan(square(32, 64, 3), m, 9 * 32 * 64, fast=True, offset=True) for m in ABLE]
    assert all(p.packed for p in plans)


@needs_bytes
def test_what_is_left_of_kernel_rows_is_done_together() -> None:
    """A stem of 7 × 7 × 3 takes 5 steps per row and 2 for what is left of all rows."""
    axis = Axis(224, 112, 7, 2, 1, 3)
    stem = Window(1, 3, 1, 64, axis, axis, 0)
    tails = [make_quad_plan(stem, m, 64 * 147, fast=True, offset=False).tail for m in ABLE]
    assert {t and (t.start, t.bytes, t.steps) for t in tails} == {(20, 1, 2)}


@needs_bytes
@pytest.mark.parametrize("channels", [1, 2, 8, 16, 24])
def test_few_channels_are_done_by_blocks_of_pixels(channels: int) -> None:
    axis = Axis(70, 70, 3, 1, 1, 1)
    window = Window(1, channels, channels, channels, axis, axis, 0)
    for machine in ABLE:
        assert takes_flat(window, machine, fast=True, offset=True)
        plan = flat_plan(window, machine)
        assert plan.phases * plan.width % channels == 0
        assert plan.tile_rows == 2
        assert {c for row in plan.channels() for c in row} == set(range(channels))


@needs_bytes
@pytest.mark.parametrize(("channels", "in_place"), [(32, True), (33, False), (4, True), (6, False)])
def test_a_step_of_four_bytes_never_reads_past_the_tensor(channels: int, *, in_place: bool) -> None:
    """The last pixel's last step would, where channels are no multiple of four: such rows are gathered."""
    plans = [make_quad_plan(square(channels, 64, 1), m, channels * 64, fast=True, offset=True) for m in ABLE]
    assert {p.in_place for p in plans} == {in_place}


@needs_bytes
@pytest.mark.parametrize(("dilation", "taken"), [(1, True), (15, True), (16, False), (1000, False)])
def test_depthwise_code_is_bounded_however_far_apart_the_taps_are(dilation: int, *, taken: bool) -> None:
    window = square(64, 64, 3, group=64, dilation=dilation)
    assert {takes_depthwise(window, m, fast=True, offset=True) for m in ABLE} == {taken}
