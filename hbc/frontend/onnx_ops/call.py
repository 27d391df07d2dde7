"""Ops that only ONNX Runtime has: what the walk does with every node that no rule claims."""

from __future__ import annotations

from onnx import helper

from hbc.diagnostics import NotTaken
from hbc.ir.ops import Call

from ..onnx_encode import encoded
from ..onnx_infer import Inferred
from ..onnx_model import VENDOR
from ..onnx_node import Node, Results
from .registry import onnx_op

MS = "com.microsoft"

# Microsoft's operators whose only result has the type of their first operand.
_ALIKE = (
    "FastGelu", "BiasGelu", "BiasSoftmax", "Inverse", "BiasAdd", "GroupNorm", "RotaryEmbedding",
)  # fmt: skip


@onnx_op("MeanVarianceNormalization")  # the function behind it is one that ONNX's inference stumbles over
@onnx_op(*_ALIKE, domain=MS)
def alike(n: Node) -> Results:
    """A call whose result has the first operand's type."""
    t = n.scope.known(n.name(0))
    return n.call([Inferred(t.elem_type, t.shape), *[None] * (len(n.proto.output) - 1)])


@onnx_op("Barrier", domain="hbc")
def barrier(n: Node) -> Results:
    """The operand itself, on the CPU: between what the quantisation kit keeps in reals and what it doesn't."""
    x = n.x(0)
    proto = helper.make_node("Identity", ["operand:0"], ["result:0"], name=n.proto.name)
    reason, hint = "beside it are operations that are kept on the CPU", "quantise those"
    opset = n.scope.source.versions[""]  # the file's own, as of every other node that runs there
    return n.op(
        Call, x, type=x.type, op_type="Identity", opset=opset, node_proto=encoded(proto), reason=reason, hint=hint
    )


def call(n: Node) -> Results:
    """Any other node: a call, where ONNX Runtime has the op and its result sizes are known."""
    if n.domain == VENDOR:
        hint = "export the calibrated model instead (HzCalibration), which hbc takes whole"
        raise n.fail(f"the vendor's operator {n.op_type} isn't taken yet", hint=hint, kind=NotTaken)
    return n.call()
