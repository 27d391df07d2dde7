"""Whole layers as one operator: what `torch.nn`'s transformer layers become on their fast path, traced in eval mode.

They are said by the products, softmax and norms that the slow path has, so that nobody needs to switch it off.
"""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, Clip, LayerNorm, LogicalNot, Mul, ReduceMean, Softmax, Where
from hbc.ir.ops.unary import Gelu
from hbc.ir.types import DType

from ..onnx_ops.conv import multiply
from ..onnx_weights import reshaped, transposed
from ..torch_node import Results, TorchNode
from .conv import weighted
from .registry import torch_op


@torch_op("aten::_native_multi_head_attention")
def multi_head_attention(n: TorchNode) -> Results:
    """nn.MultiheadAttention: heads of softmax(query · keyᵀ / √size) · value, then a projection. [N, length, size]"""
    y, weights = _attention(n, (n.real("query"), n.real("key"), n.real("value")), n.integer("num_head"))
    if not n.flag("need_weights", default=True):
        return [y, *[None] * (len(n.record.results) - 1)]
    if n.flag("average_attn_weights", default=True):
        weights = n.op(ReduceMean, weights, axes=(1,), keepdims=False)
    return [y, weights]


@torch_op("aten::_transformer_encoder_layer_fwd")
def encoder_layer(n: TorchNode) -> Results:
    """nn.TransformerEncoderLayer: attention and two linear layers, each added to what it reads, with norms."""
    x, first = n.real("src"), n.flag("norm_first")
    a = _norm(n, x, 1) if first else x
    y, _ = _attention(n, (a, a, a), n.integer("num_heads"))
    x = n.op(Add, y, x)
    x = x if first else _norm(n, x, 1)
    y = _norm(n, x, 2) if first else x
    y = weighted(n, y, n.real("ffn_weight_1"), n.real("ffn_bias_1"))
    y = n.op(Gelu, y, tanh=False) if n.flag("use_gelu") else n.op(Clip, y, low=0.0, high=math.inf)
    x = n.op(Add, weighted(n, y, n.real("ffn_weight_2"), n.real("ffn_bias_2")), x)
    return x if first else _norm(n, x, 2)


def _norm(n: TorchNode, x: Value, which: int) -> Value:
    weight, bias = n.real(f"norm_weight_{which}"), n.real(f"norm_bias_{which}")
    return n.op(LayerNorm, x, weight, bias, axes=(x.type.rank - 1,), epsilon=n.number("eps", 1e-5))


def _attention(n: TorchNode, operands: tuple[Value, Value, Value], heads: int) -> tuple[Value, Value]:
    """The projected result, and the weights [N, heads, queries, keys]."""
    weights = np.split(n.known("qkv_weight").astype(np.float32), 3)
    biases = np.split(n.known("qkv_bias").astype(np.float32), 3)
    q, k, v = (
        _in_heads(n, weighted(n, x, n.const(w), n.const(b)), heads)
        for x, w, b in zip(operands, weights, biases, strict=True)
    )
    scale = n.const(np.float32(1 / math.sqrt(q.type.shape[-1])))
    scores = _masked(n, multiply(n, n.op(Mul, q, scale), transposed(n, k, (0, 1, 3, 2))))
    shares = n.op(Softmax, scores, axis=3)
    y = transposed(n, multiply(n, shares, v), (0, 2, 1, 3))
    y = reshaped(n, y, (*y.type.shape[:2], y.type.shape[2] * y.type.shape[3]))
    return weighted(n, y, n.real("proj_weight"), n.real("proj_bias")), shares


def _in_heads(n: TorchNode, x: Value, heads: int) -> Value:
    count, length, size = x.type.shape
    return transposed(n, reshaped(n, x, (count, length, heads, size // heads)), (0, 2, 1, 3))


def _masked(n: TorchNode, scores: Value) -> Value:
    """Scores of what the mask hides become −∞. Kind 0 is [queries, keys], 1 is [N, keys], 2 is all four axes."""
    if not n.has("mask"):
        return scores
    mask, kind = n.cast(n.x("mask"), DType.BOOL), n.integer("mask_type", 2)
    shape = mask.type.shape
    mask = reshaped(n, mask, {0: (1, 1, *shape), 1: (shape[0], 1, 1, shape[-1])}.get(kind, shape))
    return n.op(Where, n.op(LogicalNot, mask), scores, n.const(np.float32(-np.inf)))
