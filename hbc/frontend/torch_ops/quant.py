"""Fake quantisation, and PyTorch's quantize and dequantize: all become quantize and dequantize ops.

Weights keep the integers that PyTorch itself rounds them to: its float arithmetic (a product with 1/scale) may differ
from a march's on ties.
"""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import BadQuantization, FrontendError
from hbc.ir.core import Value
from hbc.ir.ops import Dequantize, Quantize
from hbc.ir.types import DType, Quant, TensorType

from ..onnx_ops.activation import limited
from ..onnx_quant import dequantized, dequantized_const, list_quant, require_positive
from ..torch_node import Results, TorchNode, as_array
from ..torch_records import Ref
from .registry import torch_op

QUANTIZED = "_quantized"  # behind the name of a fake-quantised tensor: its integers
_FITTING = (DType.I8, DType.U8, DType.I16, DType.U16, DType.I32)  # the narrowest first, signed before unsigned


@torch_op(
    "hbc::fake_quantize", "aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_channel_affine",
    "aten::fake_quantize_per_tensor_affine_cachemask", "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::_fake_quantize_learnable_per_tensor_affine", "aten::_fake_quantize_learnable_per_channel_affine",
    "aten::fused_moving_avg_obs_fake_quant", "aten::_fused_moving_avg_obs_fq_helper",
    "quantized_decomposed::fake_quant_per_channel",
)  # fmt: skip
def fake_quantize(n: TorchNode) -> Results:
    """x → quantize → dequantize on the grid of scale, zero point and [quant_min, quant_max]."""
    low, high = _limits(n)
    scales, zeros = _parameters(n)
    axis = _axis(n) if scales.size > 1 else None
    quant = list_quant(n, scales, zeros, axis)
    dtype = _dtype(n, low, high)
    if not (zeros >= dtype.limits[0]).all() or not (zeros <= dtype.limits[1]).all():
        raise _bad(n, f"the zero point {int(zeros.max())} is no {dtype.text}")
    y = _on_grid(n, quant, dtype, low, high)
    return [y, *[None] * (len(n.record.results) - 1)]


def _on_grid(n: TorchNode, quant: Quant, dtype: DType, low: int, high: int) -> Value:
    if n.result.constant is not None:
        return _constant(n, as_array(n.result.constant), quant, dtype)
    require_positive(n, quant)
    x = n.real(0)
    edges = dtype.limits
    narrow = (low, high) == (edges[0] + 1, edges[1])
    q = n.op(Quantize, x, type=TensorType(x.type.shape, dtype, quant), narrow=narrow)
    if not narrow and (low, high) != edges:
        if quant.axis is not None:
            raise n.refuse(f"it limits an activation to [{low}, {high}] per channel", "fake-quantise it per tensor")
        q = limited(n, q, low, high)
    q.name = f"{n.result.name}{QUANTIZED}"
    return n.op(Dequantize, q)


def _constant(n: TorchNode, reals: np.ndarray, quant: Quant, dtype: DType) -> Value:
    """The weight's integers, read off PyTorch's own result: exact, since it is (q − zero) · scale."""
    shape = [-1 if i == quant.axis else 1 for i in range(reals.ndim)] if quant.axis is not None else []
    scale = np.asarray(quant.scale, np.float64).reshape(shape)
    zero = np.asarray(quant.zero_point, np.int64).reshape(shape)
    usable = np.where(scale > 0, scale, 1.0)
    integers = np.rint(reals.astype(np.float64) / usable).astype(np.int64) + zero
    if not np.isfinite(reals).all():
        raise n.fail("the weight is not finite", why="no integer stands for NaN or infinity", hint="check the training")
    return dequantized_const(n, _weight_name(n), integers.clip(*dtype.limits).astype(dtype.numpy), quant)


def _weight_name(n: TorchNode) -> str:
    name = getattr(n.arg(0), "name", "")
    return str(name) or n.result.name


def _limits(n: TorchNode) -> tuple[int, int]:
    low = n.integer("quant_min" if n.has("quant_min") else "qmin", -128)
    high = n.integer("quant_max" if n.has("quant_max") else "qmax", 127)
    if low >= high:
        raise _bad(n, f"its integers lie between {low} and {high}")
    return low, high


def _parameters(n: TorchNode) -> tuple[np.ndarray, np.ndarray]:
    """(float32 scales, int64 zero points), flat."""
    fields = ("scale", "zero_point") if n.has("scale") else ("scales", "zero_points")
    scales = n.known(fields[0]).astype(np.float32).reshape(-1)
    zeros = n.known(fields[1]) if n.has(fields[1]) else np.zeros(1)
    zeros = np.rint(zeros.astype(np.float64)).astype(np.int64).reshape(-1)  # learnable ones are floats
    if not scales.size or zeros.size not in {1, scales.size}:
        raise _bad(n, f"it has {scales.size} scales and {zeros.size} zero points")
    return scales, np.broadcast_to(zeros, scales.shape)


def _axis(n: TorchNode) -> int:
    axis = n.arg("axis") if n.has("axis") else n.integer("ch_axis")
    rank = len(n.shape(0))
    if axis is None or not -rank <= int(axis) < rank:
        raise _bad(n, f"axis {axis} is none of a tensor of rank {rank}")
    return int(axis) % rank


def _dtype(n: TorchNode, low: int, high: int) -> DType:
    for dtype in _FITTING:
        if dtype.limits[0] <= low and high <= dtype.limits[1]:
            return dtype
    raise _bad(n, f"its integers lie between {low} and {high}, beyond 32 bits")


def _bad(n: TorchNode, what: str) -> FrontendError:
    return n.fail(what, hint="prepare and calibrate the model again", kind=BadQuantization)


@torch_op("aten::quantize_per_tensor", "aten::quantize_per_channel")
def quantize(n: TorchNode) -> Results:
    """To a quantised tensor; weights keep PyTorch's integers."""
    quant, dtype = n.result.quant, n.result.dtype
    assert quant is not None, n.record
    if n.result.constant is not None:
        reals = as_array(n.result.constant.dequantize())
        return _constant(n, reals, quant, dtype)
    require_positive(n, quant)
    x = n.real(0)
    return n.op(Quantize, x, type=TensorType(x.type.shape, dtype, quant))


@torch_op("aten::dequantize", "aten::int_repr")
def dequantize(n: TorchNode) -> Results:
    """To the reals it stands for."""
    return n.x(0) if n.word == "dequantize" else n.stripped(n.raw(0))


@torch_op("quantized_decomposed::quantize_per_tensor", "quantized_decomposed::quantize_per_channel")
def quantize_decomposed(n: TorchNode) -> Results:
    """To plain integers, which the IR keeps typed by their scale."""
    low, high = _limits(n)
    scales, zeros = _parameters(n)
    dtype = n.result.dtype
    quant = list_quant(n, scales, zeros, _axis(n) if scales.size > 1 else None)
    if n.result.constant is not None:
        return n.scope.const(as_array(n.result.constant), n.loc, _weight_name(n), quant)
    require_positive(n, quant)
    x, edges = n.real(0), dtype.limits
    narrow = (low, high) == (edges[0] + 1, edges[1])
    q = n.op(Quantize, x, type=TensorType(x.type.shape, dtype, quant), narrow=narrow)
    return q if narrow or (low, high) == edges or quant.axis is not None else limited(n, q, low, high)


@torch_op("quantized_decomposed::dequantize_per_tensor", "quantized_decomposed::dequantize_per_channel")
def dequantize_decomposed(n: TorchNode) -> Results:
    """Plain integers read by a scale."""
    scales, zeros = _parameters(n)
    quant = list_quant(n, scales, zeros, _axis(n) if scales.size > 1 else None)
    arg = n.arg(0)
    fixed = arg.constant if isinstance(arg, Ref) else arg.tensor
    if fixed is not None:
        return dequantized_const(n, _weight_name(n), as_array(fixed), quant)
    return dequantized(n, n.raw(0), quant)
