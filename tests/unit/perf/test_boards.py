"""The boards' fits: how many numbers are free, estimates made now beside the stored ones, and the bars."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbc.backend.bpu.march import MARCHES
from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc.perf import boards, estimate
from tests.shared_data import shared

ROOT = Path(__file__).parents[3]
BARS = {"x3": (10, 30), "x5": (9, 28), "s100": (3, 8), "j6e": (8, 18), "s100p": (3, 10)}  # median, 90th percentile, %
SOCS = {"x3": "RDK X3", "x5": "RDK X5", "s100": "RDK S100", "j6e": "J6E", "s100p": "RDK S100P"}


@cache
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "hbc" / "perf" / "boards.json").read_text(encoding="utf-8"))
    return found


def test_boards_have_at_most_eight_free_numbers_and_say_when_they_were_fitted() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", stored()["fitted"])
    assert set(stored()["boards"]) == set(BARS)
    for entry in stored()["boards"].values():
        assert len(entry["free"]) <= 8
        assert set(entry["free"]) <= set(entry["rates"])
        assert entry["march"] in MARCHES


def test_what_is_not_free_is_one_assumption_for_all_boards() -> None:
    """The engine's bytes in a cycle, and the host's cycles for an element: clocks are the hosts' own."""
    clocks = {"x3": 1.2, "x5": 1.8, "s100": 1.5, "j6e": 1.5, "s100p": 2.0}  # GHz
    entries = stored()["boards"]
    assert len({e["feature"] for e in entries.values()}) == 1
    assert {round(e["cpu"] * clocks[name], 6) for name, e in entries.items()} == {9.0}


@pytest.mark.parametrize("name", BARS)
def test_the_vendors_rows_are_met(name: str) -> None:
    """Errors and the order of models, computed here from each row: as fitted, and by fits that left the row out."""
    entry = stored()["boards"][name]
    rows = [r for r in entry["rows"] if r["vendor"]]
    published, made, left = (np.array([r[k] for r in rows]) for k in ("published_ms", "ms", "left_out_ms"))
    for values, kind in ((made, "vendor"), (left, "vendor_left_out")):
        errors = 100 * np.abs(values / published - 1)
        found = float(np.median(errors)), float(np.percentile(errors, 90))
        assert entry[kind] == pytest.approx(found, abs=0.1)
        assert found[0] <= BARS[name][0]
        assert found[1] <= BARS[name][1]
    order = [np.argsort(np.argsort(v, kind="stable")) for v in (published, made)]
    assert np.corrcoef(*order)[0, 1] >= 0.97


def latency(model: Path | bytes, name: str, *, nv12: bool) -> float:
    board = boards()[name]
    program = compile_model(model, CompileOptions(march=board.march, fast_perf=True)).program
    return estimate(program, board, nv12=nv12).latency_us / 1e3


SAMPLE = [
    ("x3", "mobilenetv4_conv_small"), ("x5", "resnet18"), ("j6e", "efficientnet_lite0"), ("s100", "yolov5nu"),
    ("s100p", "yolo26n-cls"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "model"), SAMPLE)
def test_an_estimate_made_now_is_the_one_that_was_stored(name: str, model: str) -> None:
    """A row of each board, compiled and estimated again: what stands in boards.json, and near what was published."""
    table = shared("latency", "published_latency_dev.csv")
    with table.open(encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["name"] == model and r["soc"] == SOCS[name])
    made = latency(table.parent / row["file"], name, nv12=row["input_format"] == "nv12")
    kept = next(r for r in stored()["boards"][name]["rows"] if r["name"] == model)
    assert kept["published_ms"] == float(row["latency_ms"])
    assert made == pytest.approx(kept["ms"], rel=0.005)  # rates are stored with five digits
    assert abs(made / kept["published_ms"] - 1) <= BARS[name][1] / 100


def mobilenet_v1() -> bytes:
    """MobileNetV1 at 224×224, batch norms folded: a convolution, 13 depthwise and pointwise pairs, a classifier."""
    rng = np.random.default_rng(0)
    nodes, weights, at, channels = [], {}, "images", 3

    def layer(kernel: int, out: int, stride: int, group: int) -> None:
        nonlocal at, channels
        name = f"conv{len(weights)}"
        weights[name] = rng.normal(0, 0.01, (out, channels // group, kernel, kernel)).astype(np.float32)
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node("Conv", [at, name], [f"{name}.y"], name, strides=[stride] * 2, pads=pads, group=group)
        )
        nodes.append(helper.make_node("Relu", [f"{name}.y"], [f"{name}.r"], f"{name}.relu"))
        at, channels = f"{name}.r", out

    layer(3, 32, 2, 1)
    for out, stride in (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ):
        layer(3, channels, stride, channels)
        layer(1, out, 1, 1)
    weights["fc"] = rng.normal(0, 0.01, (1000, 1024)).astype(np.float32)
    nodes += [
        helper.make_node("GlobalAveragePool", [at], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "fc"], ["scores"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes, "mobilenet_v1",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1000])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def test_a_net_that_is_built_here_takes_what_was_published() -> None:
    """MobileNetV1, without data from elsewhere: the vendor's tables say 1.27 ms (X5) and 0.455 ms (J6E)."""
    model = mobilenet_v1()
    assert latency(model, "x5", nv12=True) == pytest.approx(1.27, rel=0.28)
    assert latency(model, "j6e", nv12=True) == pytest.approx(0.455, rel=0.18)
