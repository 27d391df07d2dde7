"""Conv2d and ConvTranspose2d, as a sum over kernel taps: each tap is one product of pixels by channels."""

from __future__ import annotations

import numpy as np

from .. import numerics
from ..isa import Conv2d, ConvTranspose2d, Scheme, Shaped
from .common import Array, IntArray, Operands, along, cast, centred, operand, requantize
from .matmul import exact_matmul


def conv2d(op: Conv2d, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 3, 4; with an addend also 5 (D5)."""
    acc = _conv_accumulator(op, operand(ins, 0), operand(ins, 1), out.shape)
    if ins[2] is not None:
        acc += ins[2]
    if ins[6] is None:
        return cast(requantize(op, acc, ins[3:6]), out)
    if op.scheme is Scheme.FLOAT:
        return cast(_float_with_addend(op, acc, ins), out)
    mult, shift = along(operand(ins, 7), -1, 4), along(operand(ins, 8), -1, 4)
    acc += numerics.addend_to_accumulator(ins[6], op.addend_zero_point, mult, shift)
    return cast(requantize(op, acc, ins[3:6]), out)


def conv_transpose2d(op: ConvTranspose2d, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 3, 4: every input pixel is spread over a canvas, of which `pads` are cut off."""
    x, w = centred(operand(ins, 0), op.x_zero_point), operand(ins, 1)
    (n, h, wd, _), (o, kh, kw, _) = x.shape, w.shape
    (sh, sw), (dh, dw), (ph, pw) = op.strides, op.dilations, op.output_padding
    canvas = np.zeros((n, (h - 1) * sh + dh * (kh - 1) + 1 + ph, (wd - 1) * sw + dw * (kw - 1) + 1 + pw, o), np.int64)
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + (h - 1) * sh + 1, sh)
            columns = slice(j * dw, j * dw + (wd - 1) * sw + 1, sw)
            canvas[:, rows, columns] += _tap(x, w[:, i, j], op.group)
    top, left = op.pads[0], op.pads[1]
    acc = canvas[:, top : top + out.shape[1], left : left + out.shape[2]]
    if ins[2] is not None:
        acc = acc + ins[2]
    return cast(requantize(op, acc, ins[3:6]), out)


def _conv_accumulator(op: Conv2d, x: Array, w: Array, shape: tuple[int, ...]) -> IntArray:
    """Σ x · weight in int64, without the bias; `shape` is the result's, [N, OH, OW, O]."""
    top, left, bottom, right = op.pads
    border = ((0, 0), (top, bottom), (left, right), (0, 0))
    padded = np.pad(x.astype(np.int64), border, constant_values=op.pad_value)
    (_, kh, kw, _), (_, oh, ow, _) = w.shape, shape
    acc = np.zeros(shape, np.int64)
    for i in range(kh):
        for j in range(kw):
            y, z = i * op.dilations[0], j * op.dilations[1]
            rows = slice(y, y + (oh - 1) * op.strides[0] + 1, op.strides[0])
            columns = slice(z, z + (ow - 1) * op.strides[1] + 1, op.strides[1])
            acc += _tap(padded[:, rows, columns], w[:, i, j], op.group)
    return acc


def _tap(x: IntArray, w: Array, group: int) -> IntArray:
    """x [N,H,W,C] by w [O,C/group] within each group of channels: [N,H,W,O] in int64."""
    n, h, wd, _ = x.shape
    o, cg = w.shape
    if cg == 1:  # depthwise: a product per channel, where a matmul per group would be all overhead
        products: IntArray = np.repeat(x, o // group, axis=3) * w[:, 0].astype(np.int64)
        return products
    pixels = x.reshape(n * h * wd, group, cg).swapaxes(0, 1)
    products = exact_matmul(pixels, w.reshape(group, o // group, cg).swapaxes(1, 2).astype(np.int64))
    return np.reshape(products.swapaxes(0, 1), (n, h, wd, o))


def _float_with_addend(op: Conv2d, acc: IntArray, ins: Operands) -> IntArray:
    """nearbyint(f32(acc)·mult + f32(addend − zp)·addend_multiplier) + zero_point, clamped."""
    mult, addend_mult = along(operand(ins, 3), -1, 4), along(operand(ins, 7), -1, 4)
    saturated = np.clip(acc, numerics.I32_MIN, numerics.I32_MAX)
    addend = centred(operand(ins, 6), op.addend_zero_point)
    total = saturated.astype(np.float32) * mult + addend.astype(np.float32) * addend_mult
    return np.clip(numerics.nearbyint_f32(total) + op.zero_point, op.clamp_min, op.clamp_max)
