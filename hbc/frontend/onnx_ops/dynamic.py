"""Weights in integers, activations in reals: weight-only products, and ops that find their scale at run time.

The latter run in ONNX Runtime as they are, with the reason in the report; constant scales would put them on the BPU.
"""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import BadQuantization
from hbc.ir.core import Value
from hbc.ir.ops import Add, Linear
from hbc.ir.types import DType

from ..onnx_blocks import blocked_weight, is_quantised, spread
from ..onnx_infer import Inferred
from ..onnx_node import Node, Results
from ..onnx_tensors import ELEM_TYPES
from ..problem import quoted
from .quant import STATIC_HINT
from .registry import onnx_op

MS = "com.microsoft"
FLOAT = ELEM_TYPES[DType.F32]
FOUND_LATE = "it finds its activation's scale at run time"


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize(n: Node) -> Results:
    """x → u8, its scale and its zero point: on the CPU."""
    return n.call(reason=FOUND_LATE, hint=STATIC_HINT)


@onnx_op("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MS)
def dynamic_product(n: Node) -> Results:
    """[a, b, a scale, …] → reals of the scale's dtype."""
    a, b = n.x(0).type.shape, n.x(1).type.shape
    if len(a) < 1 or len(b) < 2:
        raise n.fail("the operands are no matrices", why=f"shapes {list(a)} and {list(b)}")
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], b[-1])
    return n.call([Inferred(_elem_type(n, 2), shape)], reason=FOUND_LATE, hint=STATIC_HINT)


@onnx_op("DynamicQuantizeLSTM", domain=MS)
def dynamic_lstm(n: Node) -> Results:
    """X [T,B,I], W [D,I,4H], … → Y [T,D,B,H], Y_h and Y_c [D,B,H]."""
    (steps, batch, _), directions = _rank(n, 0, 3), _rank(n, 1, 3)[0]
    hidden = n.integer("hidden_size")
    state = Inferred(FLOAT, (directions, batch, hidden))
    types = [Inferred(FLOAT, (steps, directions, batch, hidden)), state, state]
    return n.call(types[: len(n.proto.output)], reason=FOUND_LATE, hint="a recurrent layer in 8 bits has no BPU form")


@onnx_op("QAttention", domain=MS)
def attention(n: Node) -> Results:
    """input [B,S,I], weight [I,3H], bias, … → output [B,S,H] of the bias's dtype.

    With `past` [2,B,N,P,D] also present [2,B,N,P+S,D].
    """
    (batch, length, _), width = _rank(n, 0, 3), _rank(n, 1, 2)[1] // 3
    elem_type = _elem_type(n, 2)
    types = [Inferred(elem_type, (batch, length, width))]
    if len(n.proto.output) > 1:
        heads = n.integer("num_heads", 1)
        before = _rank(n, 8, 5)[3] if n.has(8) else 0
        types.append(Inferred(elem_type, (2, batch, heads, before + length, width // heads)))
    return n.call(types, reason="attention in one op, its inner scales are not given", hint="export MatMul and Softmax")


@onnx_op("QEmbedLayerNormalization", domain=MS)
def embedding(n: Node) -> Results:
    """input_ids [B,S], …, word_embedding [V,H] → f32 [B,S,H], and the mask's sums i32 [B]."""
    batch, length = _rank(n, 0, 2)
    types = [Inferred(FLOAT, (batch, length, _rank(n, 2, 2)[1])), Inferred(ELEM_TYPES[DType.I32], (batch,))]
    hint = "look the embeddings up before the model"
    return n.call(types[: len(n.proto.output)], reason="a lookup by computed indices", hint=hint)


@onnx_op("MatMulNBits", domain=MS)
def matmul_n_bits(n: Node) -> Results:
    """A [.., K], B [N, blocks, bytes] of packed integers, scales, zero points, g_idx, bias → linear.

    B's integers, least bits first, are counted from 2^(bits − 1) or from their zero points, in blocks of `block_size`
    along K. They are a weight like any other: quantised activations meet integers, others meet their reals on the CPU.
    """
    weight = _unpacked(n)
    if weight is None:
        shape = (*n.x(0).type.shape[:-1], n.integer("N"))
        return n.call([Inferred(_elem_type(n, 0), shape)], reason="a part of its weights is computed or reordered")
    y = n.op(Linear, n.x(0), weight)
    return n.op(Add, y, n.x(5)) if n.has(5) else y


def _unpacked(n: Node) -> Value | None:
    packed, scales = n.array(1), n.array(2)
    zeros = n.array(3) if n.has(3) else np.zeros(0)
    bits, size, rows, columns = (n.integer(name) for name in ("bits", "block_size", "N", "K"))
    bits = bits or 4
    if packed is None or scales is None or zeros is None or n.has(4) or scales.dtype != np.float32:
        return None
    blocks = -(-columns // size) if size > 0 else 0
    if bits not in {2, 4, 8} or blocks < 1 or packed.size != rows * blocks * (size * bits // 8):
        why = f"{packed.size} bytes for {rows}x{columns} in {bits} bits, blocks of {size}"
        raise n.fail(f"the weights {quoted(n.name(1))} don't fit the attributes", why=why, kind=BadQuantization)
    integers = _bits(packed.reshape(rows, -1), bits)[:, :columns]
    centre = _zero_points(n, zeros, bits, rows, blocks)
    if centre is None:
        return None
    scale, zero = (spread(v, (rows, columns), 1, size) for v in (scales.reshape(rows, blocks), centre))
    channels = 0 if is_quantised(n.scope, n.name(0)) else None
    name = f"{n.proto.output[0]}.weight"  # of this node: another may read the same bytes by other scales
    return blocked_weight(n, name, np.ascontiguousarray(integers), scale, zero, channels)


def _zero_points(n: Node, zeros: np.ndarray, bits: int, rows: int, blocks: int) -> np.ndarray | None:
    """One zero point per block; None where they are no integers."""
    if not n.has(3):
        return np.full((rows, blocks), 1 << (bits - 1))
    if zeros.dtype == np.uint8:
        return _bits(zeros.reshape(rows, -1), bits)[:, :blocks].astype(np.int64)
    whole = np.rint(zeros.astype(np.float64)).reshape(rows, blocks)
    return whole.astype(np.int64) if (whole == zeros.reshape(rows, blocks)).all() else None


def _bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """u8 [R, bytes] → u8 [R, bytes · 8/bits], least bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).astype(np.uint8).reshape(len(packed), -1)


def _elem_type(n: Node, index: int) -> int:
    """The element type that operand `index` has in the file."""
    return n.scope.known(n.name(index)).elem_type


def _rank(n: Node, index: int, rank: int) -> tuple[int, ...]:
    shape = n.x(index).type.shape
    if len(shape) != rank:
        raise n.fail(f"input {quoted(n.name(index))} has rank {len(shape)}", why=f"{n.op_type} takes rank {rank}")
    return shape
