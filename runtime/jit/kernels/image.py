"""QuantizeImage: planes of float32 in, pixels of bytes out."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...program import Tensor
from ..emitter import F32, I8, i64
from ..fused import QuantizeImage
from ..loops import coordinates, rows, span
from ..offset import store_q
from ..registry import KernelBuilder, Operands, kernel, operand
from .move import interleaved_planes
from .quant import one_quantizer


@kernel(QuantizeImage)
def emit_quantize_image(k: KernelBuilder, op: QuantizeImage, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 2, a row of pixels at a time: one vector of each plane, interleaved."""
    n, c, h, w = operand(ins, 0).shape
    quantizer = one_quantizer(k, op, outs[0])

    def row(r: ir.Value) -> None:
        image, line = coordinates(k, r, (n, h))
        first = k.b.add(k.b.mul(image, i64(c * h * w)), k.b.mul(line, i64(w)))
        to = k.b.mul(r, i64(w * c))

        def body(i: ir.Value, lanes: int) -> None:
            reals = [k.load(k.ins[0], k.b.add(k.b.add(first, i64(p * h * w)), i), F32, lanes) for p in range(c)]
            planes = [k.resize(q, I8) for q in quantizer(reals)]
            at = k.b.add(to, k.b.mul(i, i64(c)))
            if lanes == 1:
                for p, q in enumerate(planes):
                    store_q(k, outs[0], q, k.outs[0], k.b.add(at, i64(p)))
            else:
                store_q(k, outs[0], interleaved_planes(k, planes, lanes), k.outs[0], at)

        span(k, 0, w, k.host.lanes, body)

    rows(k, n * h, row, cost=4 * outs[0].elements)
