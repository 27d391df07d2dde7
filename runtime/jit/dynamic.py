"""Weights that are computed at run time: the kernel itself packs them into panels, in plain scalar loops."""

from __future__ import annotations

from llvmlite import ir

from ..types import DType
from .convolve import Plan
from .emitter import I16, I32, const, element, i64
from .registry import KernelBuilder
from .tiles import steps_of, vector_start
from .window import Window


def pack_panel(
    k: KernelBuilder,
    window: Window,
    plan: Plan,
    weight: ir.Value,
    dtype: DType,
    chunk: ir.Value,
    to: ir.Value,
    *,
    turned: bool,
) -> None:
    """Emit the packing of one chunk's weights from [O, KH, KW, C/g] to the order of `tiles.pack_panels`.

    There is one segment per tap. `turned` turns the kernel round in both directions, as a transposed convolution needs.
    """
    shape, (kh, kw) = plan.shape, (window.rows.kernel, window.columns.kernel)
    channels = window.channels // window.group
    kind, per_step = (I32, 1) if shape.wide else (I16, 2)
    steps = steps_of(channels, shape)
    with k.loop(0, kh * kw * steps * shape.width * per_step) as i:
        k.store(const(kind, 0), to, i)
    group, within = k.b.sdiv(chunk, i64(shape.chunks)), k.b.srem(chunk, i64(shape.chunks))
    for v in range(shape.vectors):
        start = k.b.add(k.b.mul(group, i64(shape.columns)), vector_start(k, shape, within, v))
        with k.loop(0, shape.used) as lane, k.loop(0, kh * kw) as tap, k.loop(0, channels) as c:
            source_tap = k.b.sub(i64(kh * kw - 1), tap) if turned else tap
            row = k.b.add(k.b.mul(k.b.add(start, lane), i64(kh * kw)), source_tap)
            value = k.load(weight, k.b.add(k.b.mul(row, i64(channels)), c), element(dtype))
            step = k.b.add(k.b.mul(tap, i64(steps)), k.b.sdiv(c, i64(per_step)))
            vector = k.b.mul(k.b.add(k.b.mul(step, i64(shape.width)), i64(v * shape.lanes)), i64(per_step))
            which, pitch = k.b.srem(c, i64(per_step)), (1, shape.lanes) if shape.apart else (per_step, 1)
            at = k.b.add(vector, k.b.add(k.b.mul(lane, i64(pitch[0])), k.b.mul(which, i64(pitch[1]))))
            k.store(k.resize(value, kind), to, at)
