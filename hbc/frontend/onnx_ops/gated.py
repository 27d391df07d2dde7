"""Swish and what is built of it. ONNX Runtime has no kernel of ONNX's own Swish."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import PLAIN_UNARY, Mul

from ..onnx_node import Node, Results
from .registry import onnx_op


@onnx_op("Swish")
def swish(n: Node) -> Results:
    """x · sigmoid(alpha·x)."""
    return gate(n, n.number("alpha", 1.0))


@onnx_op("QuickGelu", domain="com.microsoft")
def quick_gelu(n: Node) -> Results:
    """x · sigmoid(alpha·x), by default with the alpha that comes near to Gelu."""
    return gate(n, n.number("alpha", 1.702))


@onnx_op("SwiGLU")
def swiglu(n: Node) -> Results:
    """swish(a) · b."""
    return n.op(Mul, gate(n, n.number("alpha", 1.0)), n.x(1))


def gate(n: Node, alpha: float) -> Value:
    """x · sigmoid(alpha·x) of the node's first operand; these operators take reals only."""
    x = n.x(0)
    if alpha == 1.0:
        return n.op(PLAIN_UNARY["silu"], x)
    scaled = n.op(Mul, x, n.const(np.float32(alpha)))
    return n.op(Mul, x, n.op(PLAIN_UNARY["sigmoid"], scaled))
