"""A small program written by hand, and small quantised ONNX models: quick to compile, with all a real one has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from hbc_runtime import isa
from hbc_runtime.isa import Rounding, Scheme
from hbc_runtime.program import BpuSegment, BuildInfo, Constants, Model, Program, Storage, Tensor, TensorInfo
from hbc_runtime.types import DType, Layout, Quant

Array = npt.NDArray[Any]
WEIGHT = np.array([[[[1, 0, -2]]], [[[3, 1, 1]]]], np.int8)  # [O=2, KH=1, KW=1, C=3]


class Blob:
    """Constants, each at the next multiple of 64, and their tensors."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.tensors: list[Tensor] = []

    def add(self, name: str, array: Array, quant: Quant | None = None) -> None:
        """Append one constant."""
        offset = len(self.data)
        self.tensors.append(Tensor(name, array.shape, DType.of(array.dtype), Storage.CONSTANT, offset, quant=quant))
        self.data += array.tobytes() + b"\0" * (-array.nbytes % 64)


def program(*, zero_point: int = 0) -> Program:
    """x f32[1,3,2,2] → quantize (scale 0.5) → NHWC → conv 1×1 to i32 → NCHW → dequantize → y f32[1,2,2,2]."""
    blob = Blob()
    blob.add("w", WEIGHT, Quant((1.0, 0.5), (0,), axis=0))
    blob.add("x_scale", np.float32([0.5]))
    blob.add("x_zero_point", np.int32([zero_point]))
    blob.add("y_scale", np.float32([0.5, 0.25]))
    blob.add("y_zero_point", np.int32([0, 0]))
    w, x_scale, x_zero_point, y_scale, y_zero_point = range(5)
    x, x_q, x_nhwc, acc, acc_nchw, y = range(5, 11)
    q = Quant.per_tensor(0.5, zero_point)
    tensors = (
        *blob.tensors,
        Tensor("x", (1, 3, 2, 2), DType.F32, Storage.INPUT),
        Tensor("x_q", (1, 3, 2, 2), DType.I8, Storage.ARENA, 0, quant=q),
        Tensor("x_nhwc", (1, 2, 2, 3), DType.I8, Storage.ARENA, 64, quant=q),
        Tensor("acc", (1, 2, 2, 2), DType.I32, Storage.ARENA, 128, quant=Quant((0.5, 0.25), (0,), axis=3)),
        Tensor("acc_nchw", (1, 2, 2, 2), DType.I32, Storage.ARENA, 0, quant=Quant((0.5, 0.25), (0,), axis=1)),
        Tensor("y", (1, 2, 2, 2), DType.F32, Storage.OUTPUT),
    )
    i8, i32 = ({"clamp_min": t.limits[0], "clamp_max": t.limits[1]} for t in (DType.I8, DType.I32))
    ops: tuple[isa.Instruction, ...] = (
        isa.Quantize(
            inputs=(x, x_scale, x_zero_point), outputs=(x_q,), loc=("q",), rounding=Rounding.HALF_EVEN_F32, **i8
        ),
        isa.Transpose(inputs=(x_q,), outputs=(x_nhwc,), loc=("conv",), perm=(0, 2, 3, 1)),
        isa.Conv2d(inputs=(x_nhwc, w, *[-1] * 7), outputs=(acc,), loc=("conv", "relu"), scheme=Scheme.NONE, **i32),
        isa.Transpose(inputs=(acc,), outputs=(acc_nchw,), loc=("conv",), perm=(0, 3, 1, 2)),
        isa.Dequantize(inputs=(acc_nchw, y_scale, y_zero_point), outputs=(y,), loc=("dq",), axis=1),
    )
    model = Model(
        name="tiny",
        inputs=(TensorInfo("x", (1, 3, 2, 2), DType.F32, Layout.NCHW, None, x),),
        outputs=(TensorInfo("y", (1, 2, 2, 2), DType.F32, Layout.NCHW, None, y),),
        tensors=tensors,
        segments=(BpuSegment("bpu0", ops),),
        arena_size=192,
        constants=Constants(memoryview(bytes(blob.data))),
    )
    return Program("nash-e", "bpu", BuildInfo("hbc test", "tiny.onnx", "ab" * 32, (("march", "nash-e"),)), (model,))


def reference_output(x: Array) -> Array:
    """What `program()` gives for `x`, in floats that hold every value exactly."""
    q = np.clip(np.rint(x / np.float32(0.5)), -128, 127)
    acc = np.einsum("nchw,oc->nohw", q, WEIGHT.reshape(2, 3).astype(np.float32))
    return (acc * np.float32([0.5, 0.25]).reshape(1, 2, 1, 1)).astype(np.float32)


# ---- ONNX


class Graph:
    """An ONNX graph in the making: nodes, initialisers, and quantise/dequantise pairs on demand."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []

    def const(self, name: str, value: npt.ArrayLike) -> str:
        """An initialiser."""
        self.initialisers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node named after its output."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=f"{op_type}_{output}", **attributes))
        return output

    def qdq(self, x: str, scale: float, zero_point: np.generic) -> str:
        """`x` quantised and dequantised."""
        params = [self.const(f"{x}_scale", np.float32(scale)), self.const(f"{x}_zero_point", zero_point)]
        self.node("QuantizeLinear", [x, *params], f"{x}_quantized")
        return self.node("DequantizeLinear", [f"{x}_quantized", *params], f"{x}_dequantized")

    def weight(self, name: str, value: Array, scale: Array, axis: int) -> str:
        """An i8 weight, dequantised per channel."""
        params = [self.const(f"{name}_scale", scale), self.const(f"{name}_zero_point", np.zeros(scale.shape, np.int8))]
        self.const(f"{name}_quantized", value)
        return self.node("DequantizeLinear", [f"{name}_quantized", *params], f"{name}_dequantized", axis=axis)

    def model(self, inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
        """The checked model."""
        infos = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in d.items()] for d in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "tiny", infos[0], infos[1], self.initialisers)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        onnx.checker.check_model(made)
        return made


def qdq_model(*, batch: int | str = 1, affine: bool = False, tail: str = "") -> onnx.ModelProto:
    """conv 3×3 + relu + conv 1×1 on x f32[batch,3,8,8], all quantised (QDQ, i8; `affine`: u8 with odd zero points).

    `tail` names a further unary op, in floats, at the end.
    """
    rng = np.random.default_rng(7)
    zero = {False: np.int8(0), True: np.uint8(117)}[affine]
    g = Graph()
    x = g.qdq("x", 0.02, zero)
    w1 = g.weight(
        "w1", rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8), rng.uniform(0.001, 0.004, 8).astype(np.float32), 0
    )
    b1 = g.const("b1", rng.normal(0, 0.2, 8).astype(np.float32))
    g.node("Conv", [x, w1, b1], "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    g.node("Relu", ["c1"], "r1")
    r1 = g.qdq("r1", 0.015, {False: np.int8(0), True: np.uint8(3)}[affine])
    w2 = g.weight(
        "w2", rng.integers(-127, 128, (4, 8, 1, 1)).astype(np.int8), rng.uniform(0.002, 0.006, 4).astype(np.float32), 0
    )
    g.node("Conv", [r1, w2], "c2" if tail else "y", kernel_shape=[1, 1])
    if tail:
        g.node(tail, ["c2"], "y")
    return g.model({"x": [batch, 3, 8, 8]}, {"y": [batch, 4, 8, 8]})


def program_twin(*, weight: Array = WEIGHT) -> onnx.ModelProto:
    """The ONNX model that `program()` computes exactly, with the same tensor names."""
    g = Graph()
    params = [g.const("x_scale", np.float32(0.5)), g.const("x_zero_point", np.int8(0))]
    g.node("QuantizeLinear", ["x", *params], "x_q")
    x = g.node("DequantizeLinear", ["x_q", *params], "x_dequantized")
    w = g.weight("w", weight.transpose(0, 3, 1, 2), np.float32([1.0, 0.5]), 0)
    g.node("Conv", [x, w], "y", kernel_shape=[1, 1])
    return g.model({"x": [1, 3, 2, 2]}, {"y": [1, 2, 2, 2]})
