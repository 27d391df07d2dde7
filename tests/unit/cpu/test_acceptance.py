"""What ONNX Runtime refuses is told when a model is compiled; forms that it lacks are written otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import hbc
from hbc.backend.cpu import acceptance
from hbc.diagnostics import EmitError
from hbc_runtime import Session

from ...ort_age import needs_young_onnxruntime

Array = npt.NDArray[Any]
pytest.importorskip("onnxruntime", reason="ONNX Runtime is what is asked")
RNG = np.random.default_rng


def floats(seed: int, *shape: int) -> Array:
    return RNG(seed).standard_normal(shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], outputs: dict[str, int], opset: int = 22, **known: Array
) -> onnx.ModelProto:
    types = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, *t) for n, t in types.items()]
    outs = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "net", inputs, outs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def runs_like_the_reference(proto: onnx.ModelProto, feeds: dict[str, Array], atol: float = 0.0) -> dict[str, Array]:
    """Compile, run, compare with ONNX's own reference evaluator."""
    names = [o.name for o in proto.graph.output]
    want = dict(zip(names, ReferenceEvaluator(proto).run(None, feeds), strict=True))
    got = Session(hbc.compile(proto, march="nash-e").program, engine="reference").run(feeds)
    for name, array in want.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(got[name], array, rtol=atol, atol=atol, err_msg=name)
    return got


# ---- forms that ONNX Runtime lacks


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("states", [False, True])
def test_batch_first_recurrence(op_type: str, gates: int, states: bool) -> None:
    """1e-5: both sides compute in f32 and sum in another order."""
    batch, time, size, hidden = 2, 3, 4, 5
    feeds = {"x": floats(0, batch, time, size)}
    weights = {"w": floats(1, 1, gates * hidden, size), "r": floats(2, 1, gates * hidden, hidden)}
    inputs = ["x", "w", "r", "", "", *(["h"] if states else [])]
    outputs = {"y": 1, "yh": 1}
    if states:
        feeds["h"] = floats(3, batch, 1, hidden)
    if op_type == "LSTM":
        outputs["yc"] = 1
        if states:
            inputs.append("c")
            feeds["c"] = floats(4, batch, 1, hidden)
    node = helper.make_node(op_type, inputs, list(outputs), "cell", hidden_size=hidden, layout=1)
    runs_like_the_reference(model([node], feeds, outputs, **weights), feeds, 1e-5)


def test_batch_first_recurrence_without_its_sequence() -> None:
    feeds = {"x": floats(0, 2, 3, 4)}
    node = helper.make_node("GRU", ["x", "w", "r"], ["", "yh"], "cell", hidden_size=5, layout=1)
    proto = model([node], feeds, {"yh": 1}, w=floats(1, 1, 15, 4), r=floats(2, 1, 15, 5))
    runs_like_the_reference(proto, feeds, 1e-5)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 2, 0, 1]])
def test_an_integer_convolution_with_a_zero_point_per_channel(group: int, pads: list[int]) -> None:
    """Exact: the sums are small integers. NumPy's own sums are the reference."""
    x = RNG(0).integers(0, 256, (1, 4, 5, 6)).astype(np.uint8)
    w = RNG(1).integers(0, 256, (6, 4 // group, 3, 3)).astype(np.uint8)
    zx, zw = np.uint8(7), RNG(2).integers(0, 256, 6).astype(np.uint8)
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], "product", pads=pads, group=group)
    proto = model([node], {"x": x}, {"y": TensorProto.INT32}, 10, w=w, zx=np.asarray(zx), zw=zw)
    got = Session(hbc.compile(proto, march="nash-e").program, engine="reference").run({"x": x})["y"]
    a = np.pad(x.astype(np.int64) - 7, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    b = w.astype(np.int64) - zw.astype(np.int64).reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(2, 3))
    want = np.concatenate(
        [
            np.einsum("nchwij,ocij->nohw", windows[:, g * 4 // group : (g + 1) * 4 // group], part)
            for g, part in enumerate(np.split(b, group))
        ],
        axis=1,
    )
    np.testing.assert_array_equal(got, want.astype(np.int32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_top_k_of_integers_without_a_kernel(dtype: Any) -> None:
    x = RNG(3).permutation(100)[:24].reshape(2, 12).astype(dtype)
    feeds = {"x": x}
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], "best")
    outputs = {"v": helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), "i": TensorProto.INT64}
    runs_like_the_reference(model([node], feeds, outputs, k=np.int64([3])), feeds)


@pytest.mark.parametrize("boolean", [False, True])
def test_an_attention_mask_shorter_than_the_keys_masks_the_rest(boolean: bool) -> None:
    """The rest of the keys must not matter: the result is that of the first four. 1e-5: other order of sums."""
    needs_young_onnxruntime("has no Attention yet")
    q, k, v = floats(0, 1, 2, 3, 8), floats(1, 1, 2, 6, 8), floats(2, 1, 2, 6, 8)
    mask = np.tril(np.ones((3, 4), bool)) if boolean else floats(3, 3, 4)
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], "attend")
    feeds = {"q": q, "k": k, "v": v, "m": mask}
    short = {**feeds, "k": k[:, :, :4], "v": v[:, :, :4]}
    results = [
        Session(hbc.compile(model([node], f, {"y": 1}, 23), march="nash-e").program, engine="reference").run(f)["y"]
        for f in (feeds, short)
    ]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 0)])
def test_truths_are_reduced_even_if_there_are_none(op_type: str, shape: tuple[int, int]) -> None:
    feeds = {"x": floats(5, *shape) > 0, "axes": np.int64([1])}
    node = helper.make_node(op_type, ["x", "axes"], ["y"], "any or all", keepdims=1)
    proto = model([node], feeds, {"y": TensorProto.BOOL})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.BOOL, [2, 1]))
    got = Session(hbc.compile(proto, march="nash-e").program, engine="reference").run(feeds)["y"]
    want = feeds["x"].any(1, keepdims=True) if op_type == "ReduceMax" else feeds["x"].all(1, keepdims=True)
    np.testing.assert_array_equal(got, want)


# ---- what is refused


def decoder(name: str, i: int) -> list[onnx.NodeProto]:
    return [helper.make_node("ImageDecoder", [f"x{i}"], [f"y{i}"], name)]


def refused_model(count: int) -> onnx.ModelProto:
    feeds = {f"x{i}": np.zeros(9, np.uint8) for i in range(count)}
    nodes = [n for i in range(count) for n in decoder(f"decode {i}", i)]
    proto = model(nodes, feeds, {f"y{i}": TensorProto.UINT8 for i in range(count)})
    for info in proto.graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.UINT8, [4, 4, 3]))
    return proto


def test_one_refused_node_is_named_with_the_reason_and_what_to_try() -> None:
    with pytest.raises(EmitError) as raised:
        hbc.compile(refused_model(1), march="nash-e")
    text = str(raised.value)
    assert "'decode 0' (ImageDecoder)" in text
    assert "Could not find an implementation" in text
    assert "give it the pixels" in text


def test_all_refused_nodes_are_listed() -> None:
    with pytest.raises(EmitError, match="25 nodes") as raised:
        hbc.compile(refused_model(25), march="nash-e")
    text = str(raised.value)
    assert "'decode 0'" in text
    assert "'decode 19'" in text
    assert "'decode 20'" not in text
    assert "and 5 more" in text


def test_an_unknown_contributed_operator_is_named() -> None:
    proto = model([helper.make_node("Foo", ["x"], ["y"], "f", domain="com.microsoft")], {"x": floats(0, 2)}, {"y": 1})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [2]))
    with pytest.raises(EmitError, match="'f' \\(Foo\\)"):
        hbc.compile(proto, march="nash-e")


def test_without_onnxruntime_a_model_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "_onnxruntime", lambda: None)
    assert hbc.compile(refused_model(1), march="nash-e").program
