"""Ops that only ONNX Runtime has: what the walk does with every node that no rule claims."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from onnx import helper

from hbc.ir.core import Value
from hbc.ir.ops import Call

from ..onnx_infer import Inferred
from ..onnx_model import VENDOR
from ..onnx_node import Node, Results
from ..onnx_tensors import ELEM_TYPES
from .registry import onnx_op

MS = "com.microsoft"

# Microsoft's operators whose only result has the type of their first operand.
_ALIKE = (
    "FastGelu", "BiasGelu", "QuickGelu", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "BiasSoftmax", "Inverse", "BiasAdd", "GroupNorm", "SimplifiedLayerNormalization", "LayerNormalization",
    "RotaryEmbedding",
)  # fmt: skip


@onnx_op(*_ALIKE, domain=MS)
def alike(n: Node) -> Results:
    """A call whose result has the first operand's type."""
    t = n.x(0).type
    return n.call([Inferred(ELEM_TYPES[t.dtype], t.shape), *[None] * (len(n.proto.output) - 1)])


def call(n: Node) -> Results:
    """Any other node: a call, where ONNX Runtime has the op and its result sizes are known."""
    if n.domain == VENDOR:
        hint = "export the calibrated model instead (HzCalibration), which hbc takes whole"
        raise n.fail(f"the vendor's operator {n.op_type} isn't taken yet", hint=hint)
    return n.call()


def float_call(n: Node, op_type: str, operands: Sequence[Value], **attrs: Any) -> Value:
    """A call of ONNX's own `op_type`, in the model's opset; the result has the last operand's type."""
    opset = n.scope.source.versions[""]
    names = [f"operand:{i}" for i in range(len(operands))]
    proto = helper.make_node(op_type, names, ["result:0"], name=n.loc.node, **attrs)
    text = base64.b64encode(proto.SerializeToString(deterministic=True)).decode("ascii")
    op = n.scope.op(
        Call, *operands, loc=n.loc, types=[operands[-1].type], op_type=op_type, domain="", opset=opset, node_proto=text
    )
    return op.out
