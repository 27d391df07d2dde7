"""Tensors of two stages brought together: order of axes, signedness, scales."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.verify.measure import Verdict
from hbc.verify.order import channels_last
from hbc.verify.stage import Place
from hbc.verify.stored import Pair
from hbc_runtime import isa
from hbc_runtime.types import Quant


def pair(to: Quant | None, source: Quant | None, *, to_last: bool = False, source_last: bool = False) -> Pair:
    quants = [q for q in (to, source) if q is not None]
    return Pair(
        Place("t", "op", ("n",), quant=to, channels_last=to_last),
        Place("t", "op", ("n",), quant=source, channels_last=source_last),
        max(quants[0].scale) if quants else None,
    )


def test_unsigned_integers_meet_their_signed_twins_exactly() -> None:
    p = pair(Quant.per_tensor(0.1, -3), Quant.per_tensor(0.1, 125))
    theirs = np.uint8([[0, 125, 255]])
    ours = p.fitted(theirs, np.zeros((1, 3), np.int8))
    assert ours is not None
    np.testing.assert_array_equal(ours, np.int8([[-128, -3, 127]]))
    assert p.distance(theirs, ours).verdict is Verdict.EQUAL
    assert p.distance(theirs, ours + np.int8([[1, 0, 0]])).max_quanta == 1.0


def test_floats_are_quantised_for_the_op_that_reads_them_and_counted_in_its_steps() -> None:
    p = pair(Quant.per_tensor(0.5, 1), None)
    want = np.float32([0.24, 0.26, 0.75, 1000])
    fed = p.fitted(want, np.zeros(4, np.int8))
    assert fed is not None
    np.testing.assert_array_equal(fed, np.int8([1, 2, 3, 127]))  # 0.75 / 0.5 = 1.5: half to even
    assert p.distance(np.float32([0.5]), np.int8([4])).max_quanta == 2.0


def test_integers_are_dequantised_for_a_float_stage() -> None:
    p = pair(None, Quant((0.5, 2.0), (0, 1), axis=1))
    got = p.fitted(np.int8([[2, 3]]), np.zeros((1, 2), np.float32))
    assert got is not None
    np.testing.assert_array_equal(got, np.float32([[1, 4]]))
    assert got.dtype == np.float32


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 2, 2, 2)])
def test_the_order_of_axes_is_known_where_shapes_do_not_tell(shape: tuple[int, ...]) -> None:
    theirs = np.random.default_rng(0).integers(-99, 99, shape).astype(np.int8)
    q = Quant.per_tensor(1.0)
    ours = np.ascontiguousarray(theirs.transpose(0, 2, 3, 1))
    there = pair(q, q, to_last=True).fitted(theirs, ours)
    back = pair(q, q, source_last=True).fitted(ours, theirs)
    assert there is not None
    assert back is not None
    np.testing.assert_array_equal(there, ours)
    np.testing.assert_array_equal(back, theirs)


def test_what_has_another_shape_does_not_fit() -> None:
    q = Quant.per_tensor(1.0)
    assert pair(q, q).fitted(np.zeros((2, 3), np.int8), np.zeros((3, 2), np.int8)) is None
    assert pair(None, None).fitted(np.zeros(3, np.float32), np.zeros(3, np.int64)) is None


def test_saturation_is_the_share_beyond_the_range() -> None:
    p = pair(Quant.per_tensor(0.5, 0), None)
    want = np.float32([63.5, 63.7, 64.0, -64.5, 0])  # the range is −64 to 63.5, and half a step more rounds into it
    assert p.outside(want, np.zeros(5, np.int8)) == pytest.approx(0.4)
    assert pair(None, None).outside(want, want) is None


def test_layout_is_read_off_the_instructions() -> None:
    rows = [
        (isa.Quantize, None, ("x",), ("q",)),
        (isa.Transpose, (0, 2, 3, 1), ("q",), ("q_last",)),
        (isa.Conv2d, None, ("q_last", "w"), ("c",)),
        (isa.Add, None, ("c", "q_last"), ("a",)),
        (isa.Transpose, (0, 3, 1, 2), ("a",), ("y",)),
        (isa.Add, None, ("y", "q"), ("z",)),
        (isa.Reshape, None, ("c",), ("flat",)),
    ]
    assert channels_last(rows) == {"q_last", "c", "a"}
