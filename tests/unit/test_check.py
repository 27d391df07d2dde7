"""The comparison with ONNX Runtime: its figures, and its verdict."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from hbc.backend.cpu.probe import ProbeError
from hbc.check import CheckResult, check_program, compare_tensor, difference
from hbc.samples import SampleError, load_arrays, load_samples, random_samples
from hbc.verify.measure import cosine
from hbc.verify.stage import StageError
from hbc_runtime.program import Storage, Tensor
from hbc_runtime.types import DType, Quant
from tests.e2e.tiny import WEIGHT, program, program_twin

# ---- figures


def test_equal_arrays_differ_in_nothing() -> None:
    a = np.float32([[1, np.nan, np.inf, 0]])
    d = difference(a, a.copy(), quantum=0.5)
    assert (d.equal, d.max_abs, d.max_quanta, d.cosine) == (1.0, 0.0, 0.0, 1.0)


def test_a_difference_is_told_absolutely_and_in_quanta() -> None:
    d = difference(np.float32([1, 2, 3, 4]), np.float32([1, 2, 3, 4.5]), quantum=0.25)
    assert (d.equal, d.max_abs, d.max_quanta) == (0.75, 0.5, 2.0)
    assert d.argmax is None


def test_nan_against_a_number_is_infinitely_far() -> None:
    assert difference(np.float32([np.nan, 1]), np.float32([0, 1])).max_abs == math.inf


def test_argmax_agreement_is_per_position_along_channels() -> None:
    a = np.zeros((1, 3, 2, 2))
    a[0, 1] = 1
    b = a.copy()
    b[0, 2, 0, 0] = 2
    assert difference(a, b).argmax == 0.75


def test_argmax_agreement_of_scores_is_along_the_last_axis() -> None:
    assert difference(np.float64([[0, 1], [1, 0]]), np.float64([[0, 1], [0, 1]])).argmax == 0.5


def test_maps_of_probabilities_are_told_by_their_overlap() -> None:
    a, b = np.zeros((2, 1, 1, 4, 4))
    a[..., :2] = 1
    b[..., 1:3] = 1
    assert difference(a, b).iou == pytest.approx(1 / 3)
    assert difference(a * 0, b * 0).iou == 1.0
    assert difference(a, b * 2).iou is None


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ([1, 0], [0, 1], 0.0),
        ([1, 1], [2, 2], 1.0),
        ([1, 1], [-3, -3], -1.0),
        ([0, 0], [1, 1], 0.0),
        ([1e300, 1e300], [1e-300, 1e-300], 1.0),
        ([4.0], [3.0], 0.75),
        ([0.0], [3.0], 0.0),
        ([np.inf, 1], [1, 1], 0.0),
    ],
)
def test_cosine(a: list[float], b: list[float], want: float) -> None:
    assert cosine(np.float64(a), np.float64(b)) == pytest.approx(want, abs=1e-12)


def test_a_tensor_is_compared_in_the_models_layout_and_signedness() -> None:
    ours = np.arange(-6, 6, dtype=np.int8).reshape(1, 1, 4, 3)  # NHWC
    theirs = (ours.astype(np.int16) + 128).astype(np.uint8).transpose(0, 3, 1, 2)
    tensor = Tensor("t", ours.shape, DType.I8, Storage.ARENA, quant=Quant.per_tensor(0.5, -3))
    d = compare_tensor(ours, tensor, theirs)
    assert d is not None
    assert (d.equal, d.max_quanta) == (1.0, 0.0)


def test_a_quantised_tensor_is_compared_with_a_float_one_as_reals() -> None:
    tensor = Tensor("t", (3,), DType.I8, Storage.ARENA, quant=Quant.per_tensor(0.5, 1))
    d = compare_tensor(np.int8([1, 2, 3]), tensor, np.float32([0, 0.5, 1.5]))
    assert d is not None
    assert (d.max_abs, d.max_quanta) == (0.5, 1.0)


def test_tensors_of_other_shapes_are_not_compared() -> None:
    tensor = Tensor("t", (3,), DType.F32, Storage.ARENA)
    assert compare_tensor(np.zeros(3, np.float32), tensor, np.zeros((1, 3), np.float32)) is None


# ---- the verdict


def checked(tmp_path: Path, model: onnx.ModelProto, *, look_inside: bool = True) -> CheckResult:
    onnx.save(model, tmp_path / "m.onnx")
    p = program()
    return check_program(p, tmp_path / "m.onnx", random_samples(p.models[0], 2, 0), look_inside=look_inside)


@pytest.mark.ort
def test_a_program_equal_to_its_model_passes(tmp_path: Path) -> None:
    result = checked(tmp_path, program_twin())
    assert result.passed
    (y,) = result.outputs
    assert (y.name, y.difference.equal, y.difference.cosine, y.ort_cosine) == ("y", 1.0, 1.0, 1.0)
    inside = {t.name: t for t in result.tensors}
    assert inside["x_q"].nodes == ("q",)
    assert inside["x_q"].difference.equal == 1.0
    json.dumps(result.as_dict(), allow_nan=False)


@pytest.mark.ort
def test_a_program_unlike_its_model_fails_and_the_worst_tensor_is_named(tmp_path: Path) -> None:
    result = checked(tmp_path, program_twin(weight=-WEIGHT))
    assert not result.passed
    assert result.outputs[0].difference.cosine == pytest.approx(-1.0)
    assert result.worst is not None
    assert result.worst.name == "y"
    assert result.worst.nodes == ("dq",)


@pytest.mark.ort
def test_nothing_inside_is_compared_where_that_is_not_asked_for(tmp_path: Path) -> None:
    result = checked(tmp_path, program_twin(), look_inside=False)
    assert result.tensors == ()
    assert result.worst is None


@pytest.mark.ort
def test_a_program_of_another_model_is_refused(tmp_path: Path) -> None:
    model = program_twin()
    model.graph.output[0].name = model.graph.node[-1].output[0] = "z"
    with pytest.raises(StageError, match=r"not of this model(.|\n)*gives 'y', the model 'z'"):
        checked(tmp_path, model)


def test_without_onnx_runtime_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProbeError, match=r"pip install hbc\[cpu\]"):
        checked(tmp_path, program_twin())


# ---- samples


def test_random_samples_lie_in_the_range_that_is_quantised_and_repeat_with_their_seed() -> None:
    model = program().models[0]
    one, two = random_samples(model, 2, 5)
    assert -64 <= one["x"].min() < one["x"].max() <= 63.5
    assert not np.array_equal(one["x"], two["x"])
    np.testing.assert_array_equal(random_samples(model, 1, 5)[0]["x"], one["x"])


def test_samples_are_found_under_each_way_of_naming_them(tmp_path: Path) -> None:
    inputs = program().models[0].inputs
    a, b = np.zeros((1, 3, 2, 2), np.float32), np.ones((1, 3, 2, 2), np.float32)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "plain.npz", x=a, other=b)
    np.savez(tmp_path / "in.npz", in_x=b)
    np.savez(tmp_path / "many.npz", in10__x=b, in2__x=a, noopt0__y=b)
    found = {
        f: [s["x"] for s in load_samples(tmp_path / f, inputs)] for f in ("a.npy", "plain.npz", "in.npz", "many.npz")
    }
    assert all(np.array_equal(got, want) for got, want in zip(found["many.npz"], [a, b], strict=True))
    assert [np.array_equal(found[f][0], w) for f, w in (("a.npy", a), ("plain.npz", a), ("in.npz", b))] == [True] * 3


def test_a_file_without_the_input_says_what_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", z=np.zeros(3))
    with pytest.raises(SampleError, match=r"input 'x' isn't in this file(.|\n)*it has z"):
        load_samples(tmp_path / "m.npz", program().models[0].inputs)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04rubbish", b"\x93NUMPY\x01\x00", b"hello", b"\x80\x04."])
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(SampleError, match=r"no (sound )?\.npy or \.npz file") as raised:
        load_arrays(tmp_path / "x.npy")
    assert "pickle" not in str(raised.value)  # NumPy's own words advise to trust the file


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    for path in (tmp_path / "x.npy", tmp_path):
        with pytest.raises(SampleError, match="no regular file"):
            load_arrays(path)


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="there is no such file"):
        load_arrays(tmp_path / "x.npy")


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(SampleError, match="no sound"):
        load_arrays(tmp_path / "o.npy")
