"""Hints in the words of the format that the model came in: PyTorch's users know no QuantizeLinear."""

from __future__ import annotations

from hbc.ir.core import Op
from hbc.ir.location import source_nodes


def is_torch(op: Op) -> bool:
    """True for an op of a PyTorch model, whose operators are called `aten::conv2d`."""
    return any("::" in n.op_type for n in source_nodes(op.loc))


def quantise(op: Op, where: str) -> str:
    """The hint to quantise a tensor `where` ("behind node 'x'")."""
    if is_torch(op):
        return f"put a fake_quantize {where}, or quantise the model by `hbc quantize`"
    return f"put QuantizeLinear and DequantizeLinear {where}"


def constant(op: Op) -> str:
    """What a weight is to be."""
    return "make it a parameter or a buffer" if is_torch(op) else "make it an initializer"
