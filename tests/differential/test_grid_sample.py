"""GridSample between DequantizeLinear and QuantizeLinear, against ONNX Runtime: as far off as positions are (D11)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from hbc_runtime import Session, isa
from tests.differential.quantised import Array, Case, Scaled, cpu_reasons, one_op, quanta, scaled
from tests.unit.frontend.net import onnxruntime_outputs

MODEST = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**31)


def position_error(case_size: tuple[int, int], grid_step: float) -> float:
    """How far an integer position is from the real one, in pixels: half its own step, and half the grid's."""
    bits = min(8, int(math.log2(32767 / max(case_size))))
    return 2.0 ** -(bits + 1) + grid_step / 2 * max(case_size) / 2


@MODEST
@given(
    SEEDS,
    st.sampled_from(["linear", "nearest"]),
    st.sampled_from(["zeros", "border"]),
    st.booleans(),
    st.sampled_from(["i16", "i8", "constant", "float"]),
    st.sampled_from([(9, 14), (1, 20), (150, 7)]),
)
def test_grid_sample(seed: int, mode: str, padding: str, align: bool, kind: str, size: tuple[int, int]) -> None:
    """Bilinear: as far off as its position can be along both axes, over the range of the input, and both roundings.

    Nearest: equal, but where the real position is that close to the middle between two pixels.
    """
    rng = np.random.default_rng(seed)
    by = scaled(rng, rng.choice([np.int8, np.uint8]))
    x = by.ints(rng, 2, 3, *size)
    grid_by = Scaled(0.0118, np.int8(3)) if kind == "i8" else Scaled(0.00005, np.int16(-5))
    integers = grid_by.ints(rng, 2, 6, 5, 2)
    reals = rng.uniform(-1.6, 1.6, (2, 6, 5, 2)).astype(np.float32)

    def build(c: Case, d: str) -> str:
        grid = {"constant": c.const, "float": c.feed}[kind](reals) if kind in {"constant", "float"} else None
        grid = grid or c.activation(integers, grid_by)
        return c.op("GridSample", d, grid, mode=mode, padding_mode=padding, align_corners=int(align))

    step = (1 + 4 / min(size)) / 32767 if kind in {"constant", "float"} else 0.0
    reach = position_error(size, step)
    case = one_op(build, x, by, by)
    if mode == "linear":
        assert quanta(case, "bpu") <= math.floor(1 + 2 * 255 * reach)
    else:
        ours, theirs = results(case)
        exact = (
            reals
            if kind in {"constant", "float"}
            else (integers.astype(np.float64) - int(grid_by.zero)) * grid_by.scale
        )
        unclear = near_the_middle(exact, size, align, reach)
        assert not ((ours != theirs).any(axis=1) & ~unclear).any()
    assert quanta(case, "onnx", cpu=True) == 0


def results(case: Case) -> tuple[Array, Array]:
    """hbc's and ONNX Runtime's integers."""
    program = hbc.compile(case.model()).program
    assert any(isinstance(op, isa.GridSample) for s in program.models[0].segments for op in s.instructions)
    return Session(program).run(case.feeds)["y"], onnxruntime_outputs(case.model(), case.feeds)["y"]


def near_the_middle(grid: Array, size: tuple[int, int], align: bool, reach: float) -> Array:
    """[N,OH,OW]: where a position lies within `reach` of half way between two pixels."""
    found = np.zeros(grid.shape[:3], bool)
    for axis, extent in ((1, size[0]), (0, size[1])):
        factor = (extent - 1) / 2 if align else extent / 2
        position = grid[..., axis] * factor + (extent - 1) / 2
        found |= np.abs(position - np.floor(position) - 0.5) <= reach + 1e-4
    return found


@pytest.mark.parametrize("march", ["bayes", "nash-p"])
def test_grid_sample_of_a_smooth_image_is_within_a_quantum(march: str) -> None:
    """Where neighbours differ by few quanta, as in feature maps, positions of 8 bits behind the point cost nothing."""
    by, grid_by = Scaled(0.05, np.int8(0)), Scaled(1 / 16384, np.int16(0))
    rows, columns = np.mgrid[0:40, 0:50]
    x = np.rint(60 * np.sin(rows / 9) * np.cos(columns / 7))[None, None].astype(np.int8)
    rng = np.random.default_rng(2)
    grid = rng.integers(-16384, 16385, (1, 30, 30, 2)).astype(np.int16)
    case = one_op(lambda c, d: c.op("GridSample", d, c.activation(grid, grid_by), align_corners=1), x, by, by)
    assert quanta(case, "bpu", march) <= 1


@pytest.mark.parametrize(
    ("shape", "attrs", "march", "reason"),
    [
        ((1, 1, 4, 4), {"padding_mode": "reflection"}, "nash-e", "padding_mode reflection"),
        ((1, 1, 4, 4), {"mode": "cubic"}, "nash-e", "its mode is cubic"),
        ((1, 1, 3, 4, 4), {}, "nash-e", "rank 5"),
        ((1, 1, 2, 1025), {}, "nash-e", "at most 1024 rows and columns"),
        ((1, 1, 4, 4), {}, "bernoulli2", "bernoulli2 does not sample"),
    ],
)
def test_other_grid_samples_say_why_they_run_on_the_cpu(
    shape: tuple[int, ...], attrs: dict[str, Any], march: str, reason: str
) -> None:
    by, grid_by = Scaled(0.05, np.int8(0)), Scaled(0.01, np.int8(0))
    grid = grid_by.ints(np.random.default_rng(1), 1, *[3] * (len(shape) - 2), len(shape) - 2)

    def build(c: Case, d: str) -> str:
        return c.op("GridSample", d, c.activation(grid, grid_by), **attrs)

    case = one_op(build, by.ints(np.random.default_rng(0), *shape), by, by)
    assert any(reason in r for r in cpu_reasons(hbc.compile(case.model(), march=march).program))
