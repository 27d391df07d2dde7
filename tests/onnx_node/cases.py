"""ONNX's own node tests (`onnx.backend.test`): models of one operator or a few, with inputs and expected outputs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

Array = npt.NDArray[Any]

# The operators that hbc promises to take (README, docs/ops.md); a test that uses others is extra.
PROMISED = frozenset(
    """
    Conv ConvTranspose Gemm MatMul Add Sub Mul Div Min Max Pow
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Log Mish Neg
    Reciprocal Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
    Relu Clip PRelu LeakyRelu
    MaxPool AveragePool GlobalMaxPool GlobalAveragePool ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd
    ArgMax ArgMin
    Softmax LogSoftmax LayerNormalization GroupNormalization InstanceNormalization RMSNormalization BatchNormalization
    Concat Split Slice Gather Pad Reshape Flatten Squeeze Unsqueeze Expand Tile Transpose DepthToSpace SpaceToDepth
    Resize Upsample GridSample Where Equal Greater GreaterOrEqual Less LessOrEqual Not And Or TopK CumSum
    NonMaxSuppression Cast CastLike Identity Dropout Constant ConstantOfShape Shape If LSTM GRU
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger
    """.split()  # noqa: SIM905 - a list of words reads better
)


@dataclass(frozen=True)
class NodeCase:
    """One test: its model, its data sets as (inputs by name, outputs by name), and how far outputs may be off."""

    name: str
    model: ModelProto
    data: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> frozenset[str]:
        """Every operator of the model, its functions and subgraphs; of another domain as `domain.Op`."""
        own = {(f.domain, f.name) for f in self.model.functions}
        bodies = [self.model.graph.node, *(f.node for f in self.model.functions)]
        found = {(n.domain, n.op_type) for body in bodies for top in body for n in _nodes(top)}
        return frozenset(f"{d}.{op}" if d not in {"", "ai.onnx"} else op for d, op in found - own)

    @property
    def is_promised(self) -> bool:
        """True where hbc promises every operator."""
        return self.operators <= PROMISED


@lru_cache(maxsize=1)
def node_cases() -> tuple[NodeCase, ...]:
    """All of them, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference evaluations overflow on purpose
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    return tuple(sorted(map(_case, found), key=lambda c: c.name))


def _case(test: Any) -> NodeCase:
    graph: GraphProto = test.model.graph
    held = {t.name for t in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in held]
    outputs = [o.name for o in graph.output]
    data = tuple(
        (
            dict(zip(inputs, map(_array, ins), strict=False)),
            dict(zip(outputs, map(_array, outs), strict=True)),
        )
        for ins, outs in test.data_sets
    )
    return NodeCase(test.name, test.model, data, test.rtol, test.atol)


def _array(value: Any) -> Any:
    """Some tests bring their data serialised."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _nodes(node: NodeProto) -> list[NodeProto]:
    graphs = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return [node, *(inner for g in graphs for n in g.node for inner in _nodes(n))]


def is_plain(value: object) -> bool:
    """True for an array of a dtype that NumPy itself has, text aside."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
