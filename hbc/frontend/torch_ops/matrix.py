"""Determinants and inverses of small matrices, as cameras and calibrations have them: on the CPU, in reals."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import PLAIN_UNARY, Div, Mul
from hbc.ir.types import DType, TensorType

from ..onnx_ops.conv import multiply
from ..onnx_ops.pick import taken
from ..onnx_weights import reshaped, transposed
from ..torch_calls import called
from ..torch_node import Results, TorchNode
from .registry import torch_op

LARGEST = 8  # rows of a matrix that is inverted: it takes the determinants of size² minors
_REASON = "determinants are computed in reals"


def determinant(n: TorchNode, x: Value) -> Value:
    """Of every matrix in the last two axes."""
    return called(n, "Det", [x], [TensorType(x.type.shape[:-2], DType.F32)], reason=_REASON)[0]


def inverse(n: TorchNode, x: Value) -> Value:
    """By Cramer's rule: the transposed matrix of cofactors, divided by the determinant."""
    *lead, size, _ = x.type.shape
    if size > LARGEST:
        raise n.refuse(f"it inverts matrices of {size} rows", f"invert outside of the model, or at most {LARGEST} rows")
    if size == 1:
        return n.op(Div, n.const(np.float32(1)), x)
    flat = reshaped(n, x, (*lead, size * size))
    without = [[k for k in range(size) if k != i] for i in range(size)]
    places = [r * size + c for i in range(size) for j in range(size) for r in without[i] for c in without[j]]
    minors = reshaped(n, taken(n, flat, len(lead), places), (*lead, size, size, size - 1, size - 1))
    signs = (1 - 2 * (np.indices((size, size)).sum(axis=0) % 2)).astype(np.float32)
    cofactors = n.op(Mul, determinant(n, minors), n.const(signs))
    order = (*range(len(lead)), len(lead) + 1, len(lead))
    return n.op(Div, transposed(n, cofactors, order), reshaped(n, determinant(n, x), (*lead, 1, 1)))


@torch_op("aten::linalg_det", "aten::det", "aten::_linalg_det")
def det(n: TorchNode) -> Results:
    """Of every matrix."""
    return [determinant(n, n.real(0)), *[None] * (len(n.record.results) - 1)]


@torch_op("aten::logdet", "aten::linalg_slogdet", "aten::slogdet", "aten::_linalg_slogdet")
def log_determinant(n: TorchNode) -> Results:
    """Its logarithm; or its sign and the logarithm of its magnitude."""
    d = determinant(n, n.real(0))
    if n.word == "logdet":
        return n.op(PLAIN_UNARY["log"], d)
    log = n.op(PLAIN_UNARY["log"], n.op(PLAIN_UNARY["abs"], d))
    return [n.op(PLAIN_UNARY["sign"], d), log, *[None] * (len(n.record.results) - 2)]


@torch_op("aten::linalg_inv", "aten::inverse", "aten::linalg_inv_ex")
def inv(n: TorchNode) -> Results:
    """Of every matrix; up to 8 rows. A singular one gives infinities, where PyTorch raises an error."""
    return [inverse(n, n.real(0)), *[None] * (len(n.record.results) - 1)]


@torch_op("aten::linalg_solve", "aten::_linalg_solve_ex")
def solve(n: TorchNode) -> Results:
    """A⁻¹ · B; up to 8 rows."""
    if not n.flag("left", default=True):
        raise n.refuse("it solves X · A = B", "transpose both sides")
    a, b = n.real(0), n.real(1)
    is_vector = b.type.rank == 1 or (b.type.rank == a.type.rank - 1 and b.type.shape == a.type.shape[:-1])
    b = reshaped(n, b, (*b.type.shape, 1)) if is_vector else b
    y = multiply(n, inverse(n, a), b)
    return [reshaped(n, y, n.result.shape), *[None] * (len(n.record.results) - 1)]
