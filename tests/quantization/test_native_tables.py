"""Tables made in machine code at every step of a training are the compiler's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc.native import divide as native
from hbc.passes.composites.norm import inverse_root
from hbc.passes.composites.sums import Since
from hbc.passes.segments import FIRST, INPUTS, LAST, divide
from hbc_runtime import numerics

AROUND = 1024  # inputs beyond a reach that its last cells may touch
NOISE = np.random.default_rng(0).uniform(-1, 1, len(INPUTS))
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": lambda q: np.exp(q / 4000),
    "root": lambda q: 1 / np.sqrt(np.maximum(q / 1000, 0.02)),
    "pole": lambda q: 1 / q,
    "nothing": np.log,
    "kink": lambda q: np.abs(q - 3301.0),
    "steps": lambda q: q // 4096 * 4096.0,
    "noise": lambda q: NOISE[np.asarray(q, np.int64) - FIRST],
    "flat": lambda q: np.zeros(len(q)),
}


@settings(max_examples=20)
@example("noise", FIRST, LAST, 1e-5)
@example("pole", -300, 20000, 1e-3)
@example("nothing", -300, 20000, 1e-3)
@example("root", 57, LAST, 2e-4)
@example("steps", FIRST, LAST, 1.0)
@example("kink", 3300, 3301, 0.3)
@given(st.sampled_from(sorted(FUNCTIONS)), st.integers(FIRST, LAST), st.integers(FIRST, LAST), st.floats(1e-6, 10.0))
def test_tables_are_those_of_the_compiler(name: str, a: int, b: int, scale: float) -> None:
    """Results and distance from the function within the reach, whatever the function is there."""
    f, low, high = FUNCTIONS[name], min(a, b), max(a, b)
    first, last = max(low - AROUND, FIRST), min(high + AROUND, LAST + 1)
    with np.errstate(all="ignore"):
        ours, error = native.table(f(np.arange(first, last + 1)), first, last - first + 1, (low, high), scale)
        values = numerics.lut_table(f, INPUTS, scale, 0, FIRST, LAST)
        q = np.arange(low, high + 1)
        theirs = divide(values, (low, high)).at(q)
        assert np.array_equal(ours, theirs)
        assert np.array_equal(error, np.abs(theirs * scale - f(q)).max(), equal_nan=True)


@pytest.mark.parametrize("since", [None, 7.1])
@pytest.mark.parametrize(("f", "curve"), [(inverse_root, "INVERSE_ROOT"), (np.reciprocal, "INVERSE")])
def test_known_curves_have_the_values_of_numpy(f: Callable[..., np.ndarray], curve: str, since: float | None) -> None:
    reach, step, low, scale = (120, LAST), 3.1e-3, 0.41, 1 / np.sqrt(0.41) / LAST
    first, count = reach[0] - AROUND, LAST + 2 - (reach[0] - AROUND)
    reals = Since(f, low, since)(np.arange(first, first + count) * step)
    known = native.Known(native.Curve[curve], step, low, -np.inf if since is None else since)
    ours, theirs = (native.table(r, first, count, reach, scale) for r in (known, reals))
    assert np.array_equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("threads", [1, 3])
def test_work_is_shared_without_gaps(threads: int) -> None:
    """Every item is somebody's, once."""
    from hbc.native import build

    pieces: list[tuple[int, int]] = []
    build.shared(lambda *args: pieces.append(args[-2:]), ("x",), 10, 10 * build.SHARE, threads)
    assert sorted(i for a, b in pieces for i in range(a, b)) == list(range(10))
    assert len(pieces) == threads
