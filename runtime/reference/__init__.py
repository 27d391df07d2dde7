"""The NumPy reference: what every instruction means, slowly and in wide integers. The JIT is held to it bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .. import isa
from . import conv, eltwise, lut, matmul, move, pool, quant, reduce, resize, sample, select
from .common import Array, Operands

__all__ = ["RULES", "execute"]

RULES: dict[type[isa.Instruction], Callable[..., Array]] = {
    isa.Quantize: quant.quantize,
    isa.Dequantize: quant.dequantize,
    isa.FlipSign: quant.flip_sign,
    isa.Requantize: quant.requantize_tensor,
    isa.Conv2d: conv.conv2d,
    isa.ConvTranspose2d: conv.conv_transpose2d,
    isa.Matmul: matmul.matmul,
    isa.Add: eltwise.add,
    isa.Mul: eltwise.mul,
    isa.Maximum: eltwise.maximum,
    isa.Minimum: eltwise.minimum,
    isa.Clamp: eltwise.clamp,
    isa.Lut: lut.lut,
    isa.SegmentLut: lut.segment_lut,
    isa.MaxPool: pool.max_pool,
    isa.AvgPool: pool.avg_pool,
    isa.ReduceSum: reduce.reduce_sum,
    isa.ReduceMax: reduce.reduce_max,
    isa.ReduceMin: reduce.reduce_min,
    isa.Concat: move.concat,
    isa.Slice: move.slice_,
    isa.Pad: move.pad,
    isa.Transpose: move.transpose,
    isa.Reshape: move.reshape,
    isa.ResizeNearest: resize.resize_nearest,
    isa.ResizeBilinear: resize.resize_bilinear,
    isa.Gather: move.gather,
    isa.Expand: move.expand,
    isa.GridSample: sample.grid_sample,
    isa.ArgMax: select.arg_max,
    isa.ArgMin: select.arg_min,
    isa.Compare: select.compare,
    isa.Select: select.select,
    isa.Logical: select.logical,
}  # each rule takes the instruction, its operands, and the result's shape and dtype


def execute(op: isa.Instruction, ins: Operands, outs: Sequence[isa.Shaped]) -> list[np.ndarray]:
    """The results of `op`, dense and of exactly the shapes and dtypes of `outs`.

    `ins` are the operands in order, None where an optional one is absent. They are expected to have passed `op.check`;
    what that leaves open (indices and shifts inside constants) is checked by the container's reader.
    """
    (out,) = outs
    with np.errstate(over="ignore", invalid="ignore"):  # float32 steps may pass its range: ±inf saturates, NaN is 0
        y = RULES[type(op)](op, ins, out)
    assert y.dtype == out.dtype.numpy, op
    assert y.shape == out.shape, op
    return [y]
