"""`hbc check-ops`: every node with its place, the rules that refuse it, and what to try; floats, integers, PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbc.cli import main
from hbc.options import CompileOptions
from hbc.placement import place_model


def model(*, quantised: bool = False) -> bytes:
    """x [1,4,96,96] → Conv 9×9 (too large for the X3) → Sigmoid (a long table) → x − 1 channel → Softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 4, 9, 9)).astype(np.float32),
        "v": rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
    }
    nodes, x = [], "x"
    if quantised:
        weights |= {"s": np.asarray(0.1, np.float32), "z": np.asarray(0, np.int8)}
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        ]
        x = "xd"
    nodes += [
        helper.make_node("Conv", [x, "w"], ["a"], "wide", pads=[4, 4, 4, 4]),
        helper.make_node("Conv", [x, "v"], ["b"], "narrow"),
        helper.make_node("Sigmoid", ["b"], ["c"], "long table"),
        helper.make_node("Sub", ["a", "c"], ["e"], "difference"),
        helper.make_node("Softmax", ["e"], ["y"], "softmax", axis=1),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 96, 96]) for n in ("x", "y")]
    graph = helper.make_graph(
        nodes, "net", infos[:1], infos[1:], [numpy_helper.from_array(v, k) for k, v in weights.items()]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def test_all_nodes_that_a_march_refuses_are_found_at_once() -> None:
    found = place_model(model(), CompileOptions(march="bernoulli2"))
    assert found.pseudo
    rules = {n.node: [r.rule for r in n.refusals] for n in found.nodes}
    assert rules == {
        "wide": ["conv-kernel"], "narrow": [], "long table": ["table-size"], "difference": ["has-subtraction"],
        "softmax": ["composites"],
    }  # fmt: skip
    assert {n.node: n.device for n in found.nodes} == dict.fromkeys(rules, "cpu") | {"narrow": "bpu"}
    wide = found.nodes[0]
    assert (wide.refusals[0].value, wide.refusals[0].hint) == ("Here it is 9x9.", "split the convolution")
    assert wide.subgraph.startswith("cpu_")


def test_the_same_model_fits_a_march_that_has_the_ops() -> None:
    found = place_model(model(), CompileOptions(march="nash"))
    assert {n.device for n in found.nodes} == {"bpu"}
    assert {n.subgraph for n in found.nodes} == {"bpu_0"}


def test_a_quantised_model_keeps_its_scales_and_says_which_tensor_has_none() -> None:
    found = place_model(model(quantised=True), CompileOptions(march="nash"))
    assert not found.pseudo
    assert [n.op_type for n in found.nodes if n not in found.layers] == ["QuantizeLinear", "DequantizeLinear"]
    row = next(n for n in found.nodes if n.node == "wide")
    assert row.device == "cpu"
    assert not row.refusals
    assert "isn't quantised" in row.reason or "not quantised" in row.reason
    assert "QuantizeLinear" in row.hint


def test_the_command_prints_a_table_json_and_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model())
    assert main(["check-ops", str(path), "--march", "bernoulli2"]) == 0
    out = capsys.readouterr().out
    assert "conv-kernel" in out
    assert "it is 9x9" in out
    assert "A convolution's kernel is at most 7 high and wide." in out
    assert "5 nodes: 1 bpu, 4 cpu" in out
    assert main(["check-ops", str(path), "--march", "bernoulli2", "--fail-on-cpu", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {"bpu": 1, "cpu": 4, "host": 0, "folded": 0}
    assert data["nodes"][0]["refusals"][0]["rule"] == "conv-kernel"
    assert main(["check-ops", str(path), "--march", "nash", "--fail-on-cpu", "--refused"]) == 0
    assert "5 nodes: 5 bpu" in capsys.readouterr().out
    assert main(["check-ops", str(tmp_path / "none.onnx")]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_a_model_with_too_many_outputs_is_warned_about(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    infos = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, 4]) for i in range(33)]
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"], f"n{i}") for i in range(33)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    made = helper.make_model(helper.make_graph(nodes, "g", [x], infos), opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 8
    path = tmp_path / "many.onnx"
    path.write_bytes(made.SerializeToString())
    assert main(["check-ops", str(path), "--march", "bernoulli2"]) == 0
    assert "33 outputs; bernoulli2 takes 32" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_of_floats_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="reads TorchScript (pip install hbc[torch])")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 9), torch.nn.ReLU()).eval()
    path = tmp_path / "net.pt"
    torch.jit.trace(net, torch.zeros(1, 3, 16, 16)).save(str(path))
    assert main(["check-ops", str(path), "--example", "1x3x16x16", "--march", "bernoulli2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["pseudo"]
    assert {r["rule"] for n in data["nodes"] for r in n["refusals"]} == {"conv-kernel"}  # the relu is part of it
