"""Attention as one operator: said as products, a softmax and a mask."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, Mul, Softmax, Where
from hbc.ir.types import DType

from ..onnx_ops.conv import multiply
from ..onnx_ops.shape import expanded
from ..onnx_weights import reshaped, transposed
from ..torch_node import Results, TorchNode
from .registry import torch_op


@torch_op(
    "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_attention_math", "aten::_scaled_dot_product_efficient_attention",
)  # fmt: skip
def attention(n: TorchNode) -> Results:
    """softmax(query · keyᵀ · scale + mask) · value."""
    query, key, value = (n.real(i) for i in range(3))
    if n.flag("enable_gqa"):
        key, value = _per_query(n, query, key), _per_query(n, query, value)
    lead = np.broadcast_shapes(*(v.type.shape[:-2] for v in (query, key, value)))
    query, key, value = (expanded(n, v, (*lead, *v.type.shape[-2:])) for v in (query, key, value))
    order = (*range(key.type.rank - 2), key.type.rank - 1, key.type.rank - 2)
    scale = n.number("scale", 1 / math.sqrt(query.type.shape[-1]))
    scores = multiply(n, n.op(Mul, query, n.const(np.float32(scale))), transposed(n, key, order))
    scores = _masked(n, scores)
    y = multiply(n, n.op(Softmax, scores, axis=scores.type.rank - 1), value)
    return [y, *[None] * (len(n.record.results) - 1)]


def _per_query(n: TorchNode, query: Value, x: Value) -> Value:
    """Keys or values of grouped heads, each repeated for the queries that share it."""
    *lead, heads, length, size = x.type.shape
    count = query.type.shape[-3] // heads
    if count == 1:
        return x
    apart = reshaped(n, x, (*lead, heads, 1, length, size))
    return reshaped(n, expanded(n, apart, (*lead, heads, count, length, size)), (*lead, heads * count, length, size))


def _masked(n: TorchNode, scores: Value) -> Value:
    name = "attn_mask" if n.has("attn_mask") else "attn_bias"
    if n.arg("is_causal"):
        rows, columns = scores.type.shape[-2:]
        seen = n.const(np.tril(np.ones((rows, columns), np.bool_)))
        return n.op(Where, seen, scores, n.const(np.float32(-np.inf)))
    if not n.has(name):
        return scores
    mask = n.x(name)
    if mask.type.dtype is DType.BOOL:
        return n.op(Where, mask, scores, n.const(np.float32(-np.inf)))
    return n.op(Add, scores, n.cast(mask, DType.F32))
