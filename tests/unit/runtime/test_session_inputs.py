"""What `Session.run` accepts for an input, what it makes of it, and what it says where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc_runtime import HbmError, InputMismatch, Session, isa
from hbc_runtime.march import BORDER_ROUNDING
from hbc_runtime.types import DType, Layout, Quant
from tests.sketch import Sketch


def identity(
    shape: tuple[int, ...],
    dtype: DType,
    quant: Quant | None = None,
    layout: Layout = Layout.ANY,
    name: str = "image",
    **more: Any,
) -> Session:
    """A model that gives its input back."""
    m = Sketch()
    x = m.input(shape, dtype, name=name, quant=quant, layout=layout)
    m.emit(isa.Transpose, [x], shape, dtype, name="y", perm=tuple(range(len(shape))))
    return Session(m.program(**more), engine="reference")


def bound(session: Session, value: Any) -> np.ndarray:
    return session.run({"image": value})["y"]


# ---- what is taken


def test_the_models_own_dtype_is_taken_as_it_is() -> None:
    x = np.array([[-128, 127, 0]], np.int8)
    assert np.array_equal(bound(identity((1, 3), DType.I8), x), x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T.copy().T,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(x.dtype.newbyteorder(">")),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    ],
    ids=["transposed", "fortran", "strided", "reversed", "big-endian", "unaligned"],
)
def test_any_memory_layout_is_taken(view: Any) -> None:
    for dtype in (DType.I16, DType.F32):
        x = np.arange(12, dtype=dtype.numpy).reshape(3, 4)
        assert np.array_equal(bound(identity((3, 4), dtype), view(x)), x)


def test_scalars_are_taken() -> None:
    m = Sketch()
    m.emit(isa.Clamp, [m.input((), DType.I8, name="x")], (), DType.I8, name="y", clamp_min=0, clamp_max=5)
    for engine in ("jit", "reference"):
        y = Session(m.program(), engine=engine).run({"x": np.int8(7)})["y"]
        assert y.shape == ()
        assert y == 5


def test_floats_are_cast_for_a_float_input() -> None:
    session = identity((3,), DType.F32)
    for x in (np.array([0.1, 1e300, -3]), np.array([0.5, 1, 2], np.float16), [0.25, 0.5, 1.0]):
        with np.errstate(over="ignore"):
            assert np.array_equal(bound(session, x), np.asarray(x).astype(np.float32))


# ---- floats for a quantised input

TIES = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 1e30, -np.inf, np.nan]
HALF_EVEN = [0, 2, 2, 0, -2, -2, 0, 127, -128, 0]
HALF_AWAY = [1, 2, 3, -1, -2, -3, 0, 127, -128, 0]


@pytest.mark.parametrize("march", BORDER_ROUNDING)
def test_floats_are_quantised_by_the_marchs_rule(march: str) -> None:
    session = identity((len(TIES),), DType.I8, Quant.per_tensor(1.0), march=march)
    want = HALF_EVEN if march.startswith("nash") else HALF_AWAY
    assert bound(session, np.array(TIES, np.float32)).tolist() == want


def test_with_onnx_arithmetic_floats_are_quantised_as_quantizelinear_does() -> None:
    session = identity((len(TIES),), DType.I8, Quant.per_tensor(1.0), march="bernoulli2", arith="onnx")
    assert bound(session, np.array(TIES, np.float32)).tolist() == HALF_EVEN


def test_the_zero_point_and_the_dtypes_range_count() -> None:
    session = identity((4,), DType.U8, Quant.per_tensor(0.5, 128))
    assert bound(session, np.array([0.0, 1.0, -64.0, 1000.0])).tolist() == [128, 130, 0, 255]


def test_per_channel_scales_run_along_their_axis() -> None:
    session = identity((2, 3), DType.I16, Quant((1.0, 0.5, 0.25), (0, 1, 2), axis=1))
    x = np.ones((2, 3), np.float32)
    assert bound(session, x).tolist() == [[1, 3, 6]] * 2


# ---- what is refused


def refused(session: Session, value: Any, *parts: str) -> None:
    with pytest.raises(InputMismatch) as caught:
        session.run({"image": value})
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_a_missing_name_shows_the_near_one_and_what_the_model_takes() -> None:
    session = identity((1, 3, 2, 2), DType.I8, Quant.per_tensor(0.5, 3), Layout.NCHW)
    with pytest.raises(InputMismatch) as caught:
        session.run({"imgae": np.zeros((1, 3, 2, 2), np.int8)})
    text = str(caught.value)
    assert "input 'image' is missing" in text
    assert "there is no input 'imgae'; did you mean 'image'?" in text
    assert "'image': int8 (1, 3, 2, 2), NCHW, or float to be quantised by scale 0.5, zero point 3" in text


def test_an_unknown_name_is_refused_even_beside_all_others() -> None:
    with pytest.raises(InputMismatch, match="there is no input 'mask'\nthe model takes"):
        identity((1,), DType.I8).run({"image": np.zeros(1, np.int8), "mask": np.zeros(1)})


def test_run_wants_a_dict() -> None:
    with pytest.raises(InputMismatch, match="run takes a dict of name to array, not ndarray"):
        identity((1,), DType.I8).run(np.zeros(1, np.int8))  # type: ignore[arg-type]


def test_a_model_without_inputs_says_so() -> None:
    m = Sketch()
    c = m.constant([1, 2], DType.I8)
    m.emit(isa.Concat, [c], (2,), DType.I8, name="y", axis=0)
    session = Session(m.program(), engine="reference")
    assert session.run({})["y"].tolist() == [1, 2]
    with pytest.raises(InputMismatch, match="the model takes no input"):
        session.run({"x": 1})


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((1, 4, 5, 3), "this looks like NHWC; pass x.transpose(0, 3, 1, 2)"),
        ((3, 4, 5), "pass x[None]: the batch axis is missing"),
        ((0, 3, 4, 5), "the batch is 1: pass a multiple of it"),
        ((1, 3, 4, 6), "pass an array of shape (1, 3, 4, 5)"),
    ],
)
def test_a_wrong_shape_shows_both_and_a_way_out(shape: tuple[int, ...], hint: str) -> None:
    session = identity((1, 3, 4, 5), DType.I8, layout=Layout.NCHW)
    refused(session, np.zeros(shape, np.int8), f"it has shape {shape}", "int8 (1, 3, 4, 5), NCHW", hint)


def test_nchw_handed_to_an_nhwc_model_is_recognised() -> None:
    session = identity((1, 4, 5, 3), DType.I8, layout=Layout.NHWC)
    refused(session, np.zeros((1, 3, 4, 5), np.int8), "this looks like NCHW; pass x.transpose(0, 2, 3, 1)")


@pytest.mark.parametrize(
    ("dtype", "quant", "value", "why"),
    [
        (DType.F32, None, np.array([1, 2], np.uint8), "scale the integers as the model was trained to see them"),
        (DType.F32, None, [1, 2], "dtype int64"),
        (DType.I8, None, np.array([1, 2]), "every value fits: pass x.astype(np.int8)"),
        (DType.I8, None, np.array([1, 200]), "values must lie in -128 to 127"),
        (DType.I8, Quant.per_tensor(0.5), np.array([1, 2], np.uint8), "every value fits"),
        (DType.I8, None, np.array([1.0, 2.0]), "the model has no scale to quantise by: pass integers"),
        (DType.BOOL, None, np.array([0, 2]), "values must lie in 0 to 1"),
        (DType.I8, None, np.array(["a", "b"]), "pass an array of numbers"),
        (DType.I8, None, np.array([1j, 2]), "pass an array of numbers"),
        (DType.I8, None, [[1], [1, 2]], "pass a numpy array"),
    ],
)
def test_a_wrong_dtype_says_what_to_do(dtype: DType, quant: Quant | None, value: Any, why: str) -> None:
    refused(identity((2,), dtype, quant), value, "input 'image' does not fit", why)


def test_it_is_an_hbm_error() -> None:
    with pytest.raises(HbmError):
        identity((1,), DType.I8).run({})
