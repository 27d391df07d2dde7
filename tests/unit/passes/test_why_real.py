"""An op that stays in reals names the operand, constant or reader that kept it there, and what to try."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hbc.backend.bpu.target import Target
from hbc.frontend import load
from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, Quant, TensorType, f32
from hbc.passes.manager import PassManager
from hbc.passes.why_real import why_real

pytest.importorskip("onnx", reason="the front end reads ONNX")
Make = Callable[["Net"], Value]
AXIS_1 = "a scale per channel (axis 1, 4 scales)"
PER_CHANNEL = Quant((0.1, 0.2, 0.3, 0.4), axis=1)


class Net:
    """Ops between quantised tensors, each from a node named after its operator."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.build = Builder(self.graph)
        self.count = 0

    def op(self, cls: type[Op], *operands: Value | None, node: str = "", **attrs: object) -> Value:
        self.count += 1
        op_type = "".join(w.capitalize() for w in cls.NAME.split("_"))
        type_ = attrs.pop("type", None)
        assert type_ is None or isinstance(type_, TensorType)
        loc = NodeLoc(node or f"{op_type}_{self.count}", op_type)
        return self.build.op(cls, *operands, loc=loc, type=type_, **attrs).out

    def arg(self, name: str, *shape: int) -> Value:
        return self.graph.add_arg(name, f32(*shape))

    def quantized(self, value: Value, quant: Quant | None = None, dtype: DType = DType.I8, name: str = "") -> Value:
        """`value` through quantize and dequantize; the integers are called `name`."""
        t = TensorType(value.type.shape, dtype, quant or Quant.per_tensor(0.1))
        ints = self.op(ops.Quantize, value, type=t)
        ints.name = name or None
        return self.op(ops.Dequantize, ints)

    def x(self, quant: Quant | None = None, dtype: DType = DType.I8) -> Value:
        return self.quantized(self.arg("image", 1, 4, 8, 8), quant, dtype, "image_q")

    def weight(self, axis: int | None = 0) -> Value:
        scale = (0.01,) if axis is None else (0.01,) * 4
        t = TensorType((4, 4, 1, 1), DType.I8, Quant(scale, axis=axis))
        const = self.op(ops.Const, value=np.ones((4, 4, 1, 1), np.int8), type=t)
        const.name = "conv.weight"
        return self.op(ops.Dequantize, const)

    def const(self, value: object, name: str = "c") -> Value:
        made = self.op(ops.Const, value=np.asarray(value, np.float32))
        made.name = name
        return made


def reason(make: Make, cls: type[Op], arith: str = "bpu", *, quantize: bool = True) -> tuple[str, str]:
    """Reason and hint for the one op of `cls` in a net whose result is quantised, after the stages up to quantize."""
    net = Net()
    result = make(net)
    net.graph.add_output("y", net.quantized(result, name="y_q") if quantize else result)
    module, target = Module(net.graph, arith=arith), Target("nash-e", arith)
    PassManager(target).run_all(target.pipeline[:3], module)
    found = [why_real(op, target) for op in net.graph.ops if isinstance(op, cls)]
    assert len(found) == 1
    return found[0].reason, found[0].hint


def conv_of(x: Callable[[Net], Value], weight: Callable[[Net], Value], bias: bool = False) -> Make:
    def make(net: Net) -> Value:
        b = net.arg("b", 4) if bias else None
        return net.op(ops.Conv2d, x(net), weight(net), b, node="conv")

    return make


CASES: dict[str, tuple[Make, type[Op], str, str]] = {
    "an input of the model": (
        conv_of(lambda n: n.arg("image", 1, 4, 8, 8), Net.weight),
        ops.Conv2d,
        "input 'image' isn't quantised",
        "put QuantizeLinear and DequantizeLinear behind the model's input",
    ),
    "an input that another op makes": (
        conv_of(lambda n: n.op(ops.PLAIN_UNARY["sin"], n.arg("image", 1, 4, 8, 8), node="sine"), Net.weight),
        ops.Conv2d,
        "input (the result of 'sine' (Sin)) isn't quantised",
        "put QuantizeLinear and DequantizeLinear between 'sine' (Sin) and 'conv' (Conv2d)",
    ),
    "an input of a scale per channel": (
        conv_of(lambda n: n.x(PER_CHANNEL), Net.weight),
        ops.Conv2d,
        f"input 'image_q' has {AXIS_1}; activations need one scale",
        "calibrate 'image_q' per tensor",
    ),
    "a weight of reals": (
        conv_of(Net.x, lambda n: n.const(np.full((4, 4, 1, 1), 0.5), "w")),
        ops.Conv2d,
        "the weight 'w' is a constant of reals, not quantised",
        "put QuantizeLinear and DequantizeLinear on it (int8, one scale or one per output channel)",
    ),
    "a weight that is computed": (
        conv_of(Net.x, lambda n: n.quantized(n.arg("w", 4, 4, 1, 1), name="w_q")),
        ops.Conv2d,
        "the weight 'w_q' isn't constant: 'Quantize_3' (Quantize) computes it",
        "make it an initializer, or use MatMul of two quantised activations",
    ),
    "weight scales along the wrong axis": (
        conv_of(Net.x, lambda n: n.weight(1)),
        ops.Conv2d,
        f"the weight 'conv.weight' has {AXIS_1}; a sum needs one scale per output channel, axis 0",
        "quantise it along axis 0, or per tensor",
    ),
    "a bias that is computed": (
        conv_of(Net.x, Net.weight, bias=True),
        ops.Conv2d,
        "the bias 'b' isn't constant: it is an input of the model",
        "add it in a node of its own, quantised",
    ),
    "a power of a tensor": (
        lambda n: n.op(ops.Pow, n.x(), n.quantized(n.arg("d", 1, 4, 8, 8), name="d_q"), node="pow"),
        ops.Pow,
        "it raises to the power of 'd_q', which is computed: no instruction does that",
        "use a constant exponent, or Mul",
    ),
    "a constant that is no number": (
        lambda n: n.op(ops.Maximum, n.x(), n.const([[[[1.0, np.nan] * 4] * 8]], "c"), node="max"),
        ops.Maximum,
        "the constant 'c' holds an infinity or a NaN",
        "clip it to finite numbers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_names_what_is_in_the_way(case: str) -> None:
    make, cls, why, hint = CASES[case]
    assert reason(make, cls) == (why, hint)


def test_a_result_that_nothing_quantises_names_its_readers() -> None:
    def make(net: Net) -> Value:
        pooled = net.op(ops.AvgPool, net.x(), node="pool", kernel=(2, 2))
        return net.op(ops.PLAIN_UNARY["sin"], pooled, node="sine")

    assert reason(make, ops.AvgPool) == (
        "its result feeds 'sine' (Sin), which isn't quantised",
        "put QuantizeLinear and DequantizeLinear behind 'pool' (AvgPool)",
    )


def test_a_result_that_the_model_returns_names_the_output() -> None:
    def make(net: Net) -> Value:
        pooled = net.op(ops.AvgPool, net.x(), node="pool", kernel=(2, 2))
        pooled.name = "pooled"
        return pooled

    why, hint = reason(make, ops.AvgPool, quantize=False)
    assert why == "its result feeds the output 'pooled', which isn't quantised"
    assert hint == "put QuantizeLinear and DequantizeLinear behind 'pool' (AvgPool)"


def test_a_function_of_i16_stays_in_floats_under_onnx() -> None:
    def make(net: Net) -> Value:
        return net.op(ops.PLAIN_UNARY["sigmoid"], net.x(dtype=DType.I16), node="s")

    why, hint = reason(make, ops.PLAIN_UNARY["sigmoid"], "onnx")
    assert "an i16 tensor is computed in floats under --arith onnx" in why
    assert hint == "compile with --arith bpu, or quantise its input to int8"


def test_a_call_says_which_operator_has_no_form() -> None:
    import onnx

    node = onnx.helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["y"], name="nms")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [info("boxes", 1, [1, 8, 4]), info("scores", 1, [1, 1, 8])],
        [info("y", 7, [None, 3])],
    )
    module = load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    found = [why_real(op, Target()) for op in module.graph.ops if isinstance(op, ops.CALLS)]
    assert len(found) == 1
    assert found[0].reason
    assert found[0].hint


def test_what_the_march_refuses_is_said_of_an_op_that_became_no_table() -> None:
    net = Net()
    y = net.op(ops.PLAIN_UNARY["sigmoid"], net.x(dtype=DType.I16), node="s")
    net.graph.add_output("y", net.quantized(y, dtype=DType.I16))
    module, target = Module(net.graph, march="bernoulli2"), Target("bernoulli2", "bpu")
    PassManager(target).run_all(target.pipeline[:3], module)
    (op,) = [op for op in net.graph.ops if isinstance(op, ops.PLAIN_UNARY["sigmoid"])]
    uses = len(op.operands[0].uses) if op.operands[0] is not None else 0
    found = why_real(op, target)
    assert found.reason.startswith("Activations on bernoulli2 are i8. Here 'image_q' is i16")
    assert op.operands[0] is not None
    assert len(op.operands[0].uses) == uses, "asking leaves no trace in the graph"
