"""`load`: what it takes, what it says about where a module came from, and what it says of files that are no models."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.location import NodeLoc
from hbc.ir.printer import print_module

from .net import Net, agrees, floats, integers, names_of

ROOT = Path(__file__).resolve().parents[3]


def small() -> Net:
    """x → DQ → Conv → Q → y with per-channel int8 weights `W`, scales `S`, zero points `Z`."""
    net = Net(13)
    x = net.dq(net.input("x", [1, 2, 4, 4], np.int8), 1 / 32, np.int8(0))
    w, s, z = (
        net.const(integers(0, np.int8, 3, 2, 3, 3), "W"),
        net.const(np.full(3, 1 / 64, np.float32), "S"),
        net.const(np.int8([0] * 3), "Z"),
    )
    net.q(net.op("Conv", x, net.op("DequantizeLinear", w, s, z, axis=0)), 1 / 4, np.int8(0), out="y")
    net.output("y", dtype=np.int8)
    return net


def refusal(source: Any, **shapes: Any) -> str:
    """The text of the FrontendError that `load` must raise."""
    with pytest.raises(FrontendError) as raised:
        load(source, shapes)
    return str(raised.value)


# ---- what it takes


def test_path_bytes_and_proto_give_the_same_graph(tmp_path: Path) -> None:
    model = small().model()
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    modules = (load(path), load(str(path)), load(path.read_bytes()), load(model))
    assert len({print_module(m, locs=False).partition("graph ")[2] for m in modules}) == 1


def test_metadata_says_where_a_module_came_from(tmp_path: Path) -> None:
    path = tmp_path / "my net.onnx"
    path.write_bytes(small().model().SerializeToString())
    module = load(path)
    assert module.name == "my_net"
    assert module.metadata == {
        "source": "my net.onnx",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "opset": "ai.onnx 13",
        "producer": "tests",
    }


def test_the_given_proto_is_left_alone() -> None:
    model = small().model()
    before = model.SerializeToString(deterministic=True)
    load(model)
    assert model.SerializeToString(deterministic=True) == before


def test_ops_carry_the_users_names() -> None:
    net = small()
    net.nodes[1].name = ""
    module = load(net.model())
    locs = {op.NAME: op.loc for op in module.graph.ops}
    assert locs["conv2d"] == NodeLoc("Conv_2", "Conv", "<net>")
    assert NodeLoc("DequantizeLinear:dequantizelinear1", "DequantizeLinear", "<net>") in [
        op.loc for op in module.graph.ops
    ]
    assert module.graph.outputs[0].value.name == "y"


def test_odd_names_survive() -> None:
    names = ["/model/层.0/Conv_output_0", "a b\"c'd\n", "../../x", "1", "é" * 300]
    net = Net(13)
    x = net.input("in put:0", [3])
    for name in names:
        x = net.op("Neg", x, out=name)
        net.nodes[-1].name = "n"
    net.op("Neg", x, out="../out:0")
    net.output("../out:0")
    module = load(net.model())
    assert [op.out.name for op in module.graph.ops] == [*names, "../out:0"]
    assert "in put:0" in print_module(module)


def test_unsorted_nodes_are_sorted() -> None:
    net = small()
    net.nodes.reverse()
    assert names_of(load(net.model())) == names_of(load(small().model()))


def test_hbir_text_is_taken_too(tmp_path: Path) -> None:
    text = print_module(load(small().model()))
    path = tmp_path / "net.hbir"
    path.write_text(text, encoding="utf-8")
    assert names_of(load(path)) == names_of(load(text.encode())) == names_of(load(small().model()))
    assert load(path).metadata["source"]


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    model = small().model()
    path = external(tmp_path, model, "sub dir/w.bin")
    agrees(onnx.load(path), {"x": integers(1, np.int8, 1, 2, 4, 4)}, exported=False)
    assert names_of(load(path)) == names_of(load(small().model()))


def external(folder: Path, model: onnx.ModelProto, location: str, *, cut: int = 0) -> Path:
    """Move `W` and `S` into one file, the first with a length and both with offsets."""
    blob = b"\x55" * 64
    for t in model.graph.initializer:
        if t.name in {"W", "S"}:
            raw = t.raw_data
            t.ClearField("raw_data")
            t.data_location = onnx.TensorProto.EXTERNAL
            entries = {
                "location": location,
                "offset": str(len(blob)),
                **({"length": str(len(raw))} if t.name == "W" else {}),
            }
            for key, value in entries.items():
                t.external_data.add(key=key, value=value)
            blob += raw
    target = folder / location
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(blob[: len(blob) - cut])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


# ---- shapes


def open_net() -> Net:
    net = Net(13)
    net.op("Add", net.input("x", ["N", 3, "h", None]), net.input("y", ["N", 3, 1, 1]), out="z")
    net.op("Relu", net.input("fixed", [2]), out="f")
    net.output("z", "f")
    return net


def test_open_sizes_are_asked_for_all_at_once() -> None:
    text = refusal(open_net().model())
    assert "--shape x=1x3xHxW --shape y=1x3x1x1" in text
    assert "'x' is Nx3xhx?" in text
    assert "fixed" not in text


def test_a_batch_alone_is_asked_for_with_all_sizes() -> None:
    net = Net(13)
    net.op("Relu", net.input("x", ["batch", 3, 224, 224]), out="y")
    net.output("y")
    assert "--shape x=1x3x224x224" in refusal(net.model())


def test_a_symbol_bound_in_one_input_is_bound_in_all() -> None:
    module = load(open_net().model(), {"x": (2, 3, 4, 5)})
    assert [a.type.shape for a in module.graph.args] == [(2, 3, 4, 5), (2, 3, 1, 1), (2,)]


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"x": (2, 4, 4, 5)}, "contradicts the model"),
        ({"x": (2, 3, 4, 5), "y": (1, 3, 1, 1)}, "contradicts the model"),
        ({"x": (2, 3, 4)}, "rank 3"),
        ({"x": (0, 3, 4, 5)}, "below 1"),
        ({"typo": (1,)}, "there is no input 'typo'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], says: str) -> None:
    assert says in refusal(open_net().model(), **shapes)


def test_an_input_without_a_rank_needs_its_whole_shape() -> None:
    net = Net(13)
    net.op("Relu", net.input("x", [1]), out="y")
    net.inputs[0].type.tensor_type.ClearField("shape")
    net.output("y")
    assert "unknown rank" in refusal(net.model())
    assert load(net.model(), {"x": (2, 5)}).graph.args[0].type.shape == (2, 5)


def test_initializers_that_old_files_list_as_inputs_are_constants() -> None:
    net = small()
    model = net.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.INT8, [3, 2, 3, 3]))
    assert [a.name for a in load(model).graph.args] == ["x"]


# ---- files that are no models

FOREIGN = {
    "empty": (b"", "empty"),
    "html": (b"<html>not found</html>", "HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "zip"),
    "pickle": (b"\x80\x02}q\0.", "pickle"),
    "tflite": (b"\x1c\0\0\0TFL3" + b"\0" * 60, "TensorFlow Lite"),
    "hbm": (b"\x1c\0\0\0HBM1" + b"\0" * 60, "hbc run"),
    "zeros": (b"\0" * 4096, "0x00"),
    "random": (np.random.default_rng(1).integers(0, 256, 500).astype(np.uint8).tobytes(), "not an ONNX model"),
    "no graph": (b"\x08\x07", "no graph"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_that_are_something_else_are_told_apart(kind: str, tmp_path: Path) -> None:
    data, says = FOREIGN[kind]
    path = tmp_path / "file.onnx"
    path.write_bytes(data)
    text = refusal(path)
    assert says in text
    assert "file.onnx" in text


@pytest.mark.parametrize("cut", [1, 5, 100, 400])
def test_a_file_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(small().model().SerializeToString()[:-cut])
    assert "cut.onnx" in refusal(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing.onnx")
    assert "a folder" in refusal(tmp_path)
    assert "no file name" in refusal("a\0b.onnx")
    assert "no such file" in refusal(tmp_path / "net.pt2")
    assert "int" in refusal(3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_read_from(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "no regular file" in refusal(tmp_path / "pipe.onnx")


@pytest.mark.parametrize(("name", "words"), [("huge.onnx", "save_as_external_data"), ("huge.pt", "model.half()")])
def test_a_file_beyond_protobufs_limit_is_not_read(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate((1 << 31) + 5)  # sparse: takes no space
    text = refusal(path)
    assert "too large" in text
    assert words in text
    assert ("ONNX" in text) == (name == "huge.onnx")


def test_external_data_that_cannot_be_used(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    path = external(inside, small().model(), "w.bin")
    assert "give the path" in refusal(path.read_bytes())
    (inside / "w.bin").unlink()
    assert "is missing" in refusal(path)
    assert "don't fit the tensor" in refusal(external(inside, small().model(), "w.bin", cut=3))
    assert "outside the model's folder" in refusal(external(inside, small().model(), "../out.bin"))
    assert "outside the model's folder" in refusal(external(inside, small().model(), str(tmp_path / "out.bin")))
    (inside / "link.bin").symlink_to(tmp_path / "out.bin")
    model = small().model()
    path = external(tmp_path / "other", model, "x/link.bin")
    (tmp_path / "other" / "x" / "link.bin").unlink()
    (tmp_path / "other" / "x" / "link.bin").symlink_to(tmp_path / "out.bin")
    assert "outside the model's folder" in refusal(path)


def test_a_file_name_that_is_no_text_is_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"net\xff.onnx")
    try:
        path.write_bytes(small().model().SerializeToString())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    metadata = load(path).metadata
    assert metadata["source"] == r"net\xff.onnx"


# ---- functions


def calling(*bodies: Sequence[str]) -> onnx.ModelProto:
    """A model that calls function F0; function Fi consists of nodes of these types, one after the other."""
    helper, opsets = onnx.helper, [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("f", 1)]
    net = Net(17, f=1)
    net.op("F0", net.input("x", [1, 4]), out="y", domain="f")
    net.output("y")
    model = net.model()
    for number, types in enumerate(bodies):
        names = ["a", *(f"t{i}" for i in range(1, len(types))), "b"]
        nodes = [
            helper.make_node(t, [names[i]], [names[i + 1]], domain="f" if t[1:].isdigit() else "")
            for i, t in enumerate(types)
        ]
        model.functions.append(helper.make_function("f", f"F{number}", ["a"], ["b"], nodes, opsets))
    return model


def test_functions_are_inlined() -> None:
    assert names_of(load(calling(["F1", "Neg"], ["Relu", "Exp"]))) == ["clip", "exp", "neg"]


def test_a_function_that_calls_itself_is_refused() -> None:
    assert "a function of the model calls itself --> <net>: function 'F0', 'F1'" in told(
        calling(["F1"], ["Relu", "F0"])
    )


def test_functions_that_grow_like_a_power_of_two_are_refused() -> None:
    text = told(calling(*(2 * [f"F{i + 1}"] for i in range(40)), ["Relu"]))
    assert f"it has {2**40} nodes with its functions inlined" in text


def told(model: onnx.ModelProto) -> str:
    return " ".join(refusal(model).split())


# ---- models that are broken


def broken(change: Any) -> str:
    model = small().model()
    change(model)
    return refusal(model)


def tensor(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == op_type)


BROKEN: dict[str, tuple[Any, str]] = {
    "8 GiB claimed": (lambda m: tensor(m, "S").dims.__setitem__(0, 1 << 31), "beyond 2 GiB"),
    "short data": (lambda m: setattr(tensor(m, "W"), "raw_data", tensor(m, "W").raw_data[:-3]), "tensor 'W'"),
    "type 99": (lambda m: setattr(tensor(m, "W"), "data_type", 99), "tensor 'W'"),
    "negative size": (lambda m: tensor(m, "W").dims.__setitem__(0, -3), "tensor 'W'"),
    "huge tensor": (lambda m: tensor(m, "W").dims.__setitem__(0, 2**40), "tensor 'W'"),
    "huge input": (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[2], "dim_value", 2**40), "input 'x'"),
    "dangling": (lambda m: node(m, "Conv").input.__setitem__(0, "nowhere"), "'nowhere'"),
    "cycle": (lambda m: node(m, "Conv").input.__setitem__(0, "y"), "cycle"),
    "own result": (lambda m: node(m, "Conv").input.__setitem__(0, node(m, "Conv").output[0]), "cycle"),
    "two makers": (lambda m: m.graph.node.append(m.graph.node[0]), "defined twice"),
    "shadowed input": (lambda m: node(m, "Conv").output.__setitem__(0, "x"), "defined twice"),
    "zero point type": (lambda m: setattr(tensor(m, "Z"), "data_type", onnx.TensorProto.UINT8), "'Z'"),
    "scale length": (
        lambda m: tensor(m, "S").CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "S")),
        "'S'",
    ),
    "axis": (lambda m: setattr(m.graph.node[1].attribute[0], "i", 9), "axis 9"),
    "no opset": (lambda m: m.ClearField("opset_import"), "opset"),
    "opset before its operators": (lambda m: setattr(m.opset_import[0], "version", 8), "came with opset 10"),
    "opset 0": (lambda m: setattr(m.opset_import[0], "version", 0), "opset 0"),
    "opset 999": (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999"),
    "unknown operator": (lambda m: setattr(node(m, "Conv"), "op_type", "Conw"), "Conw"),
    "no output": (lambda m: m.graph.ClearField("output"), "no output"),
    "output of nothing": (lambda m: setattr(m.graph.output[0], "name", "z"), "output 'z'"),
    "output twice": (lambda m: m.graph.output.append(m.graph.output[0]), "two outputs"),
    "output type": (lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 1), "states FLOAT"),
    "unknown attribute": (lambda m: node(m, "Conv").attribute.append(onnx.helper.make_attribute("foo", 3)), "foo"),
    "attribute type": (lambda m: node(m, "Conv").attribute.append(onnx.helper.make_attribute("group", "x")), "group"),
    "attribute kind": (lambda m: setattr(m.graph.node[1].attribute[0], "type", 1), "axis"),
    "too few operands": (lambda m: node(m, "Conv").input.pop(), "Conv_2"),
    "input type": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 0), "input 'x'"),
    "input is a sequence": (lambda m: m.graph.input[0].type.sequence_type.SetInParent(), "it is a sequence"),
    "weight is missing": (lambda m: m.graph.initializer.remove(tensor(m, "W")), "'W'"),
    "empty sparse tensor": (lambda m: m.graph.sparse_initializer.add(), "UNDEFINED"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_models_are_refused_by_the_users_names(kind: str) -> None:
    change, says = BROKEN[kind]
    text = broken(change)
    assert says in text
    assert "<net>" in text


@pytest.mark.parametrize("depth", [40])
def test_sizes_that_grow_without_bound_end(depth: int) -> None:
    """Each Concat doubles: a file of a few hundred bytes that asks for 2^40 elements."""
    net = Net(13)
    x = net.input("x", [2])
    for _ in range(depth):
        x = net.op("Concat", x, x, axis=0)
    net.op("Identity", x, out="y")
    net.output("y")
    assert "beyond 2 GiB" in refusal(net.model())


@pytest.mark.parametrize("size", [1 << 29, 1 << 45])
def test_fills_of_enormous_shapes_are_refused(size: int) -> None:
    net = Net(13)
    net.op("ConstantOfShape", net.const(np.int64([size])), out="y")
    net.output("y")
    assert "can't fill" in refusal(net.model())


def test_large_constant_arithmetic_is_left_to_the_graph() -> None:
    net = Net(13)
    net.op("Tile", net.const(np.zeros(1, np.int64)), net.const(np.int64([1 << 27])), out="y")
    net.output("y", dtype=np.int64)
    tracemalloc.start()
    module = load(net.model())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert module.graph.outputs[0].value.type.shape == (1 << 27,)
    assert peak < 1 << 24


def test_import_hbc_needs_no_onnx() -> None:
    script = "import sys, hbc, hbc.frontend; sys.exit('onnx' in sys.modules or 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=60)
    assert result.returncode == 0


def test_without_onnx_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(small().model().SerializeToString())
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install" in refusal(path)


def test_weights_that_are_floats_stay_floats() -> None:
    net = Net(13)
    net.op("MatMul", net.input("x", [2, 3]), net.const(floats(1, 3, 4)), out="y")
    net.output("y")
    assert names_of(load(net.model())) == ["linear"]
