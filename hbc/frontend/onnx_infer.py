"""One node at a time: its result types by ONNX's own inference, its values by ONNX's own reference.

The walk knows every operand's exact type, so one-node models infer more than a pass over the whole model would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

from .onnx_model import domain_of, reads

FOLD_LIMIT = 1 << 24  # elements of a folded result: shape arithmetic is tiny, weights are below this
DATA_LIMIT = 1 << 12  # elements of an operand whose values inference gets to see: shapes, axes, k

# Cheap ops without randomness or state. Matrix products, quantize and dequantize are not among them: they stay.
FOLDABLE = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "Ceil", "Clip", "Compress", "Concat", "CumSum", "Div",
    "Equal", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot",
    "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
    "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
_BOUNDED_BY_OPERAND = {"NonZero", "Compress"}  # shapes depend on values, but never exceed rank × elements


@dataclass(frozen=True)
class Known:
    """What is known of one operand: ONNX's element type, its shape, and its values where they are constant."""

    elem_type: int
    shape: tuple[int, ...]
    array: np.ndarray | None = None


@dataclass(frozen=True)
class Inferred:
    """What ONNX infers of one result; `shape` is None where a size depends on data (or on nothing that is known)."""

    elem_type: int
    shape: tuple[int, ...] | None


def infer(node: NodeProto, operands: Mapping[str, Known], versions: Mapping[str, int]) -> list[Inferred | None]:
    """Result types of `node`, one per output; None for one that is not a tensor or that inference doesn't reach.

    ValueError with ONNX's own text where the operands contradict the operator's definition.
    """
    given = {name: _scalar(operands[name]) if node.op_type == "Range" else operands[name] for name in reads(node)}
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    found = {o.name: read_type(o.type) for o in infer_graph([node], given, outputs, versions).output}
    return [found.get(o) for o in node.output]


def infer_graph(
    nodes: Sequence[NodeProto], operands: Mapping[str, Known | Inferred], outputs: Sequence[ValueInfoProto],
    versions: Mapping[str, int], *, constants: Iterable[TensorProto] = (), stated: Iterable[ValueInfoProto] = (),
) -> GraphProto:  # fmt: skip
    """The graph of `nodes` with all types that ONNX infers; it gets to see small operands' values and `constants`.

    ValueError with ONNX's own text where the nodes contradict their operators' definitions.
    """
    inputs = [helper.make_tensor_value_info(name, t.elem_type, t.shape) for name, t in operands.items()]
    arrays = {name: t.array for name, t in operands.items() if isinstance(t, Known) and t.array is not None}
    shown = [from_array(np.asarray(a, order="C"), name) for name, a in arrays.items() if a.size <= DATA_LIMIT]
    graph = helper.make_graph(nodes, "part", inputs, outputs, [*constants, *shown], value_info=list(stated))
    opsets = [helper.make_opsetid(d, v) for d, v in versions.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
        raise ValueError(_first_sentence(error)) from error
    return result.graph


def _scalar(known: Known) -> Known:
    """A tensor of shape [1] as a scalar: ONNX Runtime takes it for one, and exporters write Range so."""
    if known.shape != (1,):
        return known
    return Known(known.elem_type, (), None if known.array is None else known.array.reshape(()))


def fold(node: NodeProto, operands: Mapping[str, Known], versions: Mapping[str, int]) -> list[np.ndarray] | None:
    """The node's values where every operand's are known, the op is cheap and the results are small; else None."""
    if domain_of(node) or node.op_type not in FOLDABLE or not node.input:
        return None
    given = {name: operands[name] for name in node.input if name}
    known = {name: (_scalar(k) if node.op_type == "Range" else k).array for name, k in given.items()}
    arrays = {name: a for name, a in known.items() if a is not None}
    if len(arrays) < len(known) or any(a.size > FOLD_LIMIT for a in arrays.values()):
        return None
    if node.op_type not in _BOUNDED_BY_OPERAND and not _is_small(infer(node, operands, versions)):
        return None
    return _evaluate(node, arrays, versions)


def _is_small(results: Sequence[Inferred | None]) -> bool:
    return all(r is not None and r.shape is not None and math.prod(r.shape) <= FOLD_LIMIT for r in results)


def _evaluate(
    node: NodeProto, arrays: Mapping[str, np.ndarray], versions: Mapping[str, int]
) -> list[np.ndarray] | None:
    from onnx.reference import ReferenceEvaluator

    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in arrays.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    opsets = [helper.make_opsetid("", versions[""])]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=opsets, ir_version=10)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, dict(arrays))
    except NotImplementedError:
        return None  # an old version that the reference doesn't have: the node stays in the graph
    found = dict(zip((o for o in node.output if o), results, strict=True))
    return [np.asarray(found[o]) if o else np.zeros(0) for o in node.output]


def read_type(type_: onnx.TypeProto) -> Inferred | None:
    """A tensor's type; None where it is no tensor, or not known."""
    if not type_.HasField("tensor_type") or type_.tensor_type.elem_type == TensorProto.UNDEFINED:
        return None
    tensor = type_.tensor_type
    static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
    return Inferred(tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim) if static else None)


def _first_sentence(error: Exception) -> str:
    """ONNX's message without its `[ShapeInferenceError]` and source line prefixes."""
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    return text.rsplit("] ", 1)[-1]
