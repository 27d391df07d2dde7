"""Limits of convolutions and matrix products."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops

from ..march import MarchSpec
from .registry import legal, reject


@legal(ops.Conv2d)
def conv_kernel(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's kernel is at most {march.max_kernel} high and wide."""
    kh, kw = op.weight.type.shape[2:]
    return reject(f"Here it is {kh}x{kw}.", "split the convolution") if max(kh, kw) > march.max_kernel else None


@legal(ops.Conv2d)
def conv_volume(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """KH·KW·C of a convolution is at most {march.max_kernel_volume},
    and C per group at most {march.max_conv_channels}.
    """
    _, c, kh, kw = op.weight.type.shape
    if c > march.max_conv_channels or c * kh * kw > march.max_kernel_volume:
        return reject(f"Here it is {kh}·{kw}·{c}.", "split the input channels and add the parts")
    return None


@legal(ops.Conv2d)
def conv_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's stride is at most {march.max_conv_stride}."""
    if max(op.strides) <= march.max_conv_stride:
        return None
    return reject(f"Here it is {op.strides}.", "use a smaller stride and a slice")


@legal(ops.Conv2d)
def conv_dilation(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution's dilation is at most {march.max_dilation}."""
    if max(op.dilations) <= march.max_dilation:
        return None
    return reject(f"Here it is {op.dilations}.", "use a smaller dilation")


@legal(ops.Conv2d)
def conv_pad(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution pads at most {march.max_conv_pad} on each side."""
    return reject(f"Here it is {op.pads}.", "pad in an op of its own") if max(op.pads) > march.max_conv_pad else None


@legal(ops.Conv2d)
def sum_stride(op: ops.Conv2d, march: MarchSpec) -> Rejection | None:
    """A convolution with a fused addition has strides of 1 or 2 on bernoulli2 and bayes."""
    limited = march.name.startswith(("bernoulli", "bayes"))
    if limited and op.addend is not None and not set(op.strides) <= {1, 2}:
        return reject(f"Here they are {op.strides}.", "quantise the convolution's result before the addition")
    return None


@legal(ops.ConvTranspose2d)
def transpose_limits(op: ops.ConvTranspose2d, march: MarchSpec) -> Rejection | None:
    """A transposed convolution: kernel up to {march.max_transpose_kernel}, stride up to {march.max_transpose_stride},
    dilation 1, channels up to {march.max_transpose_channels}.
    """
    c, og, kh, kw = op.weight.type.shape
    if max(kh, kw) > march.max_transpose_kernel or max(op.strides) > march.max_transpose_stride:
        return reject(f"Here kernel {kh}x{kw}, stride {op.strides}.", "resize, then convolve")
    if max(op.dilations) > 1:
        return reject(f"Here dilation {op.dilations}.", "use dilation 1")
    if max(c, og * op.group) > march.max_transpose_channels:
        return reject(f"Here {c} to {og * op.group} channels.", "split the channels")
    return None


@legal(ops.Linear)
def linear_size(op: ops.Linear, march: MarchSpec) -> Rejection | None:
    """A linear layer has at most {march.max_linear} inputs and outputs."""
    shape = op.weight.type.shape
    return reject(f"Here {shape}.", "split the layer") if max(shape) > march.max_linear else None


@legal(ops.Matmul)
def matmul_size(op: ops.Matmul, march: MarchSpec) -> Rejection | None:
    """A matmul's M, K and N are at most {march.max_linear}."""
    sizes = (*op.lhs.type.shape[-2:], op.rhs.type.shape[-1])
    return reject(f"Here {sizes}.", "split the product") if max(sizes) > march.max_linear else None


RULES = (
    conv_kernel, conv_volume, conv_stride, conv_dilation, conv_pad, sum_stride, transpose_limits, linear_size,
    matmul_size,
)  # fmt: skip
