"""Limits of convolutions and matrix products."""

from __future__ import annotations

import math

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.types import DType

from ..march import MarchSpec
from .registry import legal, reject


@legal(ops.Conv2d, ops.ConvTranspose2d)
def conv_input(op: ops.Conv2d | ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A convolution reads at most {march.max_side} rows, columns and channels.

    Try: cut the image into tiles, or the channels into groups.
    """
    shape = op.x.type.shape
    return reject(f"Here it reads {_dims(shape)}.") if max(shape[1:]) > march.max_side else None


@legal(ops.Conv2d)
def conv_batch(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's batch is at most {march.max_batch}.

    Try: run smaller batches.
    """
    n = op.x.type.shape[0]
    return reject(f"Here it is {n}.") if n > march.max_batch else None


@legal(ops.Conv2d)
def conv_kernel(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's kernel is at most {march.max_kernel} high and wide.

    Try: split the convolution.
    """
    kh, kw = op.weight.type.shape[2:]
    return reject(f"Here it is {kh}x{kw}.") if max(kh, kw) > march.max_kernel else None


@legal(ops.Conv2d)
def conv_volume(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """KH·KW·C of a convolution is at most {march.max_kernel_volume},
    and C at most {march.max_plain_channels}, or {march.max_conv_channels} per group.

    Try: split the input channels and add the parts.
    """
    _, c, kh, kw = op.weight.type.shape
    channels = march.max_plain_channels if op.group == 1 else march.max_conv_channels
    return reject(f"Here it is {kh}·{kw}·{c}.") if c > channels or c * kh * kw > march.max_kernel_volume else None


@legal(ops.Conv2d)
def conv_outputs(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution has at most {march.max_conv_outputs} output channels, or 65536 where it ends the model.

    Try: split the output channels and concatenate.
    """
    o = op.weight.type.shape[0]
    tail = op.out.is_output or all(isinstance(u, ops.Dequantize) and u.out.is_output for u in op.out.users)
    return reject(f"Here it has {o}.") if o > (65536 if tail else march.max_conv_outputs) else None


@legal(ops.Conv2d)
def conv_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's stride is at most {march.max_conv_stride}.

    Try: use a smaller stride and a slice.
    """
    return reject(f"Here it is {_dims(op.strides)}.") if max(op.strides) > march.max_conv_stride else None


@legal(ops.Conv2d)
def conv_dilation(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's dilation is at most {march.max_dilation}.

    Try: use a smaller dilation.
    """
    return reject(f"Here it is {_dims(op.dilations)}.") if max(op.dilations) > march.max_dilation else None


@legal(ops.Conv2d, where=lambda march: not march.dilates_by_powers)
def dilated_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's stride is 1 along an axis that it dilates.

    Try: convolve with stride 1 and slice.
    """
    if all(d == 1 or s == 1 for d, s in zip(op.dilations, op.strides, strict=True)):
        return None
    return reject(f"Here dilation {_dims(op.dilations)}, stride {_dims(op.strides)}.")


@legal(ops.Conv2d, where=lambda march: march.dilates_by_powers)
def dilation_power(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's dilation is a power of 2, and a multiple of its stride where it is more than 1.

    Try: use a dilation of 2, 4, 8 or 16, or convolve with stride 1 and slice.
    """
    rows = zip(op.dilations, op.strides, strict=True)
    if all(d == 1 or (d & (d - 1) == 0 and d % s == 0) for d, s in rows):
        return None
    return reject(f"Here dilation {_dims(op.dilations)}, stride {_dims(op.strides)}.")


@legal(ops.Conv2d, where=lambda march: march.wide_depthwise_stride)
def depthwise_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A depthwise convolution of i16 has strides that are odd, or 2.

    Try: quantise its input to int8, or use a stride of 1 or 2.
    """
    alone = op.weight.type.shape[1] == 1 and op.group > 1
    if not alone or op.x.type.dtype is not DType.I16 or all(s % 2 or s == 2 for s in op.strides):
        return None
    return reject(f"Here they are {_dims(op.strides)}.")


@legal(ops.Conv2d)
def conv_pad(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution pads at most {march.max_conv_pad} on each side.

    Try: pad in an op of its own.
    """
    return reject(f"Here it is {_dims(op.pads)}.") if max(op.pads) > march.max_conv_pad else None


@legal(ops.Conv2d, where=lambda march: march.max_sum_stride > 0)
def sum_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution with a fused addition has strides of at most {march.max_sum_stride}.

    Try: quantise the convolution's result before the addition.
    """
    if op.addend is None or max(op.strides) <= march.max_sum_stride:
        return None
    return reject(f"Here they are {_dims(op.strides)}.")


@legal(ops.ConvTranspose2d)
def transpose_limits(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution: kernel up to {march.max_transpose_kernel}, stride up to {march.max_transpose_stride},
    dilation 1, channels up to {march.max_transpose_channels}, KH·KW·C up to 65536, batch up to 128.

    Try: resize, then convolve.
    """
    c, og, kh, kw = op.weight.type.shape
    if max(kh, kw) > march.max_transpose_kernel or max(op.strides) > march.max_transpose_stride:
        return reject(f"Here kernel {kh}x{kw}, stride {_dims(op.strides)}.")
    if max(op.dilations) > 1:
        return reject(f"Here dilation {_dims(op.dilations)}.", "use dilation 1")
    if max(c, og * op.group) > march.max_transpose_channels or c // op.group * kh * kw > 65536:
        return reject(f"Here {c} to {og * op.group} channels, kernel {kh}x{kw}.", "split the channels")
    n = op.x.type.shape[0]
    return reject(f"Here batch {n}.", "run smaller batches") if n > 128 else None


@legal(ops.ConvTranspose2d)
def transpose_least(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution has a kernel of more than 1x1, of at least {march.min_transpose_kernel} on each axis,
    and strides of at least {march.min_transpose_stride}.

    Try: use a convolution, as a kernel of 1x1 needs no transposed one, or resize, then convolve.
    """
    kh, kw = op.weight.type.shape[2:]
    small = min(kh, kw) < march.min_transpose_kernel or kh == kw == 1
    if not small and min(op.strides) >= march.min_transpose_stride:
        return None
    return reject(f"Here kernel {kh}x{kw}, stride {_dims(op.strides)}.")


@legal(ops.ConvTranspose2d)
def transpose_pad(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution pads at most 256, on bernoulli2 half its kernel.

    Try: slice the result.
    """
    kernel = op.weight.type.shape[2:]
    limits = [(k - 1) // 2 if march.half_transpose_pad else 256 for k in kernel]
    if all(p <= limits[i % 2] for i, p in enumerate(op.pads)):
        return None
    return reject(f"Here pads {_dims(op.pads)}, kernel {_dims(kernel)}.")


@legal(ops.ConvTranspose2d, where=lambda march: march.max_output_padding > 0)
def output_padding(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution pads its result by at most {march.max_output_padding}.

    Try: pad the result in an op of its own.
    """
    return reject(f"Here by {_dims(op.output_padding)}.") if max(op.output_padding) > march.max_output_padding else None


@legal(ops.ConvTranspose2d, where=lambda march: not march.has_wide_transpose)
def transpose_dtype(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution takes i8 on bayes and bernoulli2.

    Try: quantise its operand to int8.
    """
    dtype = op.x.type.dtype
    return reject(f"Here it is {dtype.text}.") if dtype is DType.I16 else None


@legal(ops.Linear)
def linear_size(op: ops.Linear, march: MarchSpec) -> Rejection | None:
    """A linear layer has at most {march.max_linear} inputs and outputs.

    Try: split the layer.
    """
    shape = op.weight.type.shape
    return reject(f"Here {shape[1]} inputs, {shape[0]} outputs.") if max(shape) > march.max_linear else None


@legal(ops.Matmul)
def matmul_size(op: ops.Matmul, march: MarchSpec) -> Rejection | None:
    """A matmul's M, K and N are at most {march.max_linear}, its batch at most 4096.

    Try: split the product.
    """
    sizes = (*op.lhs.type.shape[-2:], op.rhs.type.shape[-1])
    batch = math.prod(op.out.type.shape[:-2])
    if max(sizes) <= march.max_linear and batch <= 4096:
        return None
    return reject(f"Here {_dims(sizes)}, batch {batch}.")


def _dims(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


RULES = (
    conv_input, conv_batch, conv_kernel, conv_volume, conv_outputs, conv_stride, conv_dilation, dilated_stride,
    dilation_power, depthwise_stride, conv_pad, sum_stride, transpose_limits, transpose_least, transpose_pad,
    output_padding, transpose_dtype, linear_size, matmul_size,
)  # fmt: skip
