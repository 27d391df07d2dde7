"""Conv2d, and what it shares with ConvTranspose2d: plan, packing, and the one emitter for any window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ...isa import Conv2d, ConvTranspose2d, Matmul, Scheme
from ...numerics import I32_MAX
from ...program import Tensor
from ...types import DType
from ..convolve import Convolution, Operands, Plan, convolve, in_parts, make_plan, pack_weight
from ..dynamic import pack_panel
from ..finish import Sum, Weights, addend_bound, constant, pack_bias, pack_parameters
from ..fused import AddedConv2d
from ..host import Host
from ..offset import is_offset
from ..quad_conv import with_sum
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..window import Axis, Window
from .byte_conv import (
    ByteVariant,
    emit_byte_window,
    finish_of,
    is_quick,
    pack_byte_window,
    packs,
    parameter_names,
    takes_quads,
)

Array = npt.NDArray[Any]
AnyConv = Conv2d | ConvTranspose2d | Matmul


@packing(Conv2d, AddedConv2d)
def pack_conv(
    op: Conv2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """Weights in panels, biases, and the parameters of the requantisation."""
    x, weight = operand(ins, 0), operand(ins, 1)
    extra: int | None = 0
    if ins[7] is not None and op.scheme is not Scheme.FLOAT:  # in FLOAT the addend joins after the accumulator
        multiplier, shift = constant(constants, 7, "addend_multiplier"), constant(constants, 8, "addend_shift")
        extra = addend_bound(op.addend_zero_point, operand(ins, 6).dtype, multiplier, shift)
    packed = pack_window(op, conv_window(op, x, weight, outs[0]), weight, (x, outs[0]), constants, host, extra)
    if not isinstance(op, AddedConv2d):
        return packed
    weights, variant = Weights.of(op.add, operand(ins, 6), outs[0], left=op.left), packed.variant
    assert isinstance(variant, ByteVariant), "see can_add"
    assert weights is not None, "see can_add"
    parameters, *others = packed.arrays
    variant = replace(variant, sum=Sum.of(op.add, operand(ins, 6), outs[0]))
    return Packed((with_sum(parameters, weights, host), *others), variant)


@kernel(Conv2d, AddedConv2d)
def emit_conv(k: KernelBuilder, op: Conv2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """See `convolve.py`."""
    emit_window(k, op, conv_window(op, operand(ins, 0), operand(ins, 1), outs[0]), ins, outs[0])


def conv_window(op: Conv2d, x: Tensor, weight: Tensor, out: Tensor) -> Window:
    """The geometry of a Conv2d."""
    rows, columns = (
        Axis(x.shape[1 + i], out.shape[1 + i], weight.shape[1 + i], op.strides[i], op.dilations[i], op.pads[i])
        for i in range(2)
    )
    return Window(x.shape[0], x.shape[3], op.group, out.shape[3], rows, columns, op.pad_value)


def can_add(
    op: AddedConv2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> bool:
    """True where the fast finish adds: see quad_finish."""
    x, weight, beside = (operand(ins, i) for i in (0, 1, 6))
    values = constants[1]
    if (
        values is None
        or any(c is None for c in constants[3:6])
        or Weights.of(op.add, beside, outs[0], left=op.left) is None
    ):
        return False
    window, bias = conv_window(op, x, weight, outs[0]), constants[2]
    if (op.inputs[2] >= 0 and bias is None) or not fits_i32(window, x.dtype, weight, values, bias, 0):
        return False
    quick = is_quick(op, outs[0], constants, host)
    return takes_quads(window, x, values.dtype, host, quick=quick) and packs(window, x, values, host, quick=quick)


# ---- any window


def pack_window(
    op: AnyConv,
    window: Window,
    weight: Tensor,
    ends: tuple[Tensor, Tensor],
    constants: Constants,
    host: Host,
    addend: int | None,
) -> Packed:
    """The packed arrays (weight unless dynamic, bias, parameters), with the Plan as variant.

    `ends` are the image and the result. `addend` bounds the fused addend's term; None says that it needs i64.
    """
    image, out = ends
    x = image.dtype
    values = constants[1]
    bias = constant(constants, 2, "bias") if op.inputs[2] >= 0 else None
    wide = not fits_i32(window, x, weight, values, bias, addend)
    quick = is_quick(op, out, constants, host)
    if values is not None and not wide and takes_quads(window, image, values.dtype, host, quick=quick):
        return pack_byte_window(op, window, values, bias, image, constants, host, quick=quick)
    plan = make_plan(window, host, wide=wide, dynamic=values is None)
    turned = None if values is None else values[:, ::-1, ::-1] if isinstance(op, ConvTranspose2d) else values
    if wide and turned is not None:
        plan = in_parts(plan, window, turned, far_of(window, x), host)
    names = parameter_names(op)
    arrays = [
        pack_bias(bias, plan.final, 1 if plan.depthwise else window.group),
        pack_parameters(constants, names, plan.shape, 1 if plan.depthwise else window.group),
    ]
    if turned is not None:
        arrays.append(pack_weight(turned, window, plan, host))
    return Packed(tuple(arrays), plan)


def emit_window(k: KernelBuilder, op: AnyConv, window: Window, ins: Sequence[Tensor | None], out: Tensor) -> None:
    """The kernel of a packed convolution."""
    addend = ins[6] if isinstance(op, Conv2d) else None
    finish = finish_of(op, out, addend)
    image = operand(ins, 0)
    if isinstance(k.variant, ByteVariant):
        parameters, weight, *further = k.packed
        at = Operands(
            k.ins[0],
            weight,
            further[0] if further else parameters,
            parameters,
            k.outs[0],
            k.outs[0] if addend is None else k.ins[6],
        )
        emit_byte_window(k, window, finish, at)
        return
    plan: Plan = k.variant
    c = Convolution(window, plan, finish, image.dtype, out.dtype, finish.addend, is_offset(image))
    bias, parameters, *packed = k.packed
    weight = packed[0] if packed else k.ins[1]
    at = Operands(k.ins[0], weight, bias, parameters, k.outs[0], k.outs[0] if addend is None else k.ins[6])

    def pack(chunk: ir.Value, to: ir.Value) -> None:
        turned = isinstance(op, ConvTranspose2d)
        pack_panel(k, window, plan, k.ins[1], operand(ins, 1).dtype, chunk, to, turned=turned)

    convolve(k, c, at, pack)


def far_of(window: Window, x: DType) -> int:
    """The largest |x − zero point|, padding included."""
    lo, hi = x.limits
    return max(abs(lo - window.zero_point), abs(hi - window.zero_point))


def fits_i32(
    window: Window, x: DType, weight: Tensor, values: Array | None, bias: Array | None, addend: int | None
) -> bool:
    """True where no accumulator, in any order of summation, can leave i32, and the operands fit i16 (D3)."""
    if addend is None or (x is DType.I16 and window.zero_point != 0):
        return False
    far = far_of(window, x)
    start = np.abs(bias.astype(np.int64)) if bias is not None else np.int64(0)
    if values is None:
        taps = weight.elements // weight.shape[0]
        total = np.int64(taps * far * -weight.dtype.limits[0]) + start
    else:
        most = values[0].size * far * -int(np.iinfo(values.dtype).min)
        if most + int(np.max(start)) + addend <= I32_MAX:  # whatever the weights are: nearly always
            return True
        total = np.abs(values.astype(np.int64)).reshape(len(values), -1).sum(axis=1) * far + start
    return int(np.max(total)) + addend <= I32_MAX
