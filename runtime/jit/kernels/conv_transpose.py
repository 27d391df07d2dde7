"""ConvTranspose2d: by phases where its window allows (`phases.py`), else as a convolution with holes (`window.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa import ConvTranspose2d
from ...program import Tensor
from ..convolve import Convolution, Plan, convolve
from ..convolve import Operands as Addresses
from ..finish import constant
from ..host import Dot, Host
from ..offset import is_offset
from ..phases import Phase, convolve_phase, phases_of
from ..quad_conv import QuadConvolution
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..window import Axis, Window
from .byte_conv import ByteVariant, finish_of, is_quick, pack_byte_window, takes_quads
from .conv import emit_window, fits_i32, pack_window

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PhasesVariant:
    """The packing variant: every phase, how it was packed, and in how many arrays."""

    phases: tuple[tuple[Phase, ByteVariant | Plan, int], ...]


@packing(ConvTranspose2d)
def pack_conv_transpose(
    op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """As for Conv2d, phase by phase, or with the kernel turned round."""
    x, weight, out = operand(ins, 0), operand(ins, 1), outs[0]
    window, values = transposed_window(op, x, weight, out), constants[1]
    phases = () if values is None else phases_of(window)
    quick = is_quick(op, out, constants, host)
    bias = constant(constants, 2, "bias") if op.inputs[2] >= 0 else None
    narrow = values is not None and fits_i32(window, x.dtype, weight, values, bias, 0)
    quads = values is not None and narrow and takes_quads(window, x, values.dtype, host, quick=quick)
    if not phases or (quads and host.dot is Dot.PAIRS):  # whose panels hold lists of further steps besides
        return pack_window(op, window, weight, (x, out), constants, host, 0)
    found = []
    for phase in phases:
        own = _of_phase(phase, constants)
        if quads:
            values, bias = own[1], own[2] if op.inputs[2] >= 0 else None
            assert values is not None
            found.append(pack_byte_window(op, phase.window, values, bias, x, own, host, quick=quick))
        else:
            found.append(pack_window(op, phase.window, weight, (x, out), own, host, 0))
    variants = []
    for phase, packed in zip(phases, found, strict=True):
        assert isinstance(packed.variant, ByteVariant | Plan)
        variants.append((phase, packed.variant, len(packed.arrays)))
    return Packed(tuple(a for packed in found for a in packed.arrays), PhasesVariant(tuple(variants)))


def _of_phase(phase: Phase, constants: Constants) -> list[Array | None]:
    """One phase's weights and parameters; where pixels are joined, each has its own copy of the parameters."""
    values = constant(constants, 1, "weight")
    channels = (len(values),)
    own = [np.tile(c, phase.joined) if c is not None and c.shape == channels else c for c in constants]
    own[1] = phase.weights(values[:, ::-1, ::-1])[:, ::-1, ::-1]  # as packing turns it again
    return own


@kernel(ConvTranspose2d)
def emit_conv_transpose(
    k: KernelBuilder, op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor]
) -> None:
    """One function per phase; the items are those of all phases, one after the other."""
    x, out = operand(ins, 0), outs[0]
    if not isinstance(k.variant, PhasesVariant):
        emit_window(k, op, transposed_window(op, x, operand(ins, 1), out), ins, out)
        return
    parts, done = [], 0
    for number, (phase, variant, count) in enumerate(k.variant.phases):
        part = k.part(number, (ins, outs), variant)
        arrays, finish = part.packed[done : done + count], finish_of(op, out, None)
        done += count
        if isinstance(variant, ByteVariant):
            parameters, weight = arrays
            at = Addresses(part.ins[0], weight, parameters, parameters, part.outs[0], part.outs[0])
            convolve_phase(part, QuadConvolution(phase.window, variant.plan, finish, variant.shifts), phase, at)
        else:
            bias, parameters, weight = arrays
            at = Addresses(part.ins[0], weight, bias, parameters, part.outs[0], part.outs[0])
            own = (phase.window, variant, finish, x.dtype, out.dtype, None, is_offset(x), phase.spread)
            convolve(part, Convolution(*own), at)
        parts.append(part)
    k.call_parts(parts)


def transposed_window(op: ConvTranspose2d, x: Tensor, weight: Tensor, out: Tensor) -> Window:
    """Input pixel i reaches output i·s − p + t·d; so output o reads, for tap K−1−t, position o + p − (K−1)·d + t·d."""

    def axis(i: int) -> Axis:
        kernel_size, dilation = weight.shape[1 + i], op.dilations[i]
        pad = (kernel_size - 1) * dilation - op.pads[i]
        return Axis(x.shape[1 + i], out.shape[1 + i], kernel_size, 1, dilation, pad, op.strides[i])

    return Window(x.shape[0], x.shape[3], op.group, out.shape[3], axis(0), axis(1), 0, op.x_zero_point)
