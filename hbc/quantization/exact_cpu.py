"""Exact forward of operations that the program leaves to the CPU, in reals: nothing is compiled where scales move.

Such a unit's program is dequantize, an ONNX model of reals, quantize (and perhaps a change of scale behind it). The
model doesn't depend on scales, so ONNX Runtime keeps it; what stands around it is computed here by the scales of now.
Used once its result was seen to be the program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.ir.semantics import Semantics
from hbc_runtime import Program
from hbc_runtime.cpu import CpuRunner
from hbc_runtime.isa import Rounding
from hbc_runtime.program import BpuSegment, CpuSegment, Model

from . import exact_constants as constants
from .exact_integers import on_device, requantized_
from .fake_quantize import FakeQuantize

PLACED_BY_TYPE = frozenset({"matmul", "interpolate"})  # no scale plays a part in whether the BPU takes them
_IN = {"Quantize", "Dequantize"}
_OUT = (["Quantize", "Dequantize"], ["Quantize", "Requantize", "Dequantize"])


def on_grid(x: Tensor, scale: Tensor, limits: tuple[int, int], march: str) -> Tensor:
    """The integers of reals by the march's rule (NUMERICS 2), float32; NaN counts as 0."""
    v = torch.nan_to_num(x.detach().float(), nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    if Semantics(march).rounding is Rounding.HALF_EVEN_F32:
        q = torch.round(v / scale)
    else:
        t = v.double() / scale.double()
        whole = torch.trunc(t)
        q = whole + torch.where((t - whole).abs() >= 0.5, torch.sign(t), 0.0)
    return q.clamp(*limits).float()


@dataclass(frozen=True)
class OnCpu:
    """The model of reals, with the places of its operands among the unit's; by which scale its result is quantised:
    an operand's, or (None) the unit's own.
    """

    runner: CpuRunner
    order: tuple[int, ...]
    by: int | None
    march: str

    @staticmethod
    def of(program: Program, sources: Sequence[FakeQuantize], fq: FakeQuantize | None, march: str) -> OnCpu | None:
        """None where the program is another one, or two scales are one number, so that nothing tells them apart."""
        model = program.models[0]
        scales = [s.scale.item() for s in sources]
        if fq is None or fq.spec.narrow or len(model.segments) != 3 or fq.scale.item() in scales:
            return None
        before, middle, after = model.segments
        if not (isinstance(before, BpuSegment) and isinstance(middle, CpuSegment) and isinstance(after, BpuSegment)):
            return None
        names = [type(i).__name__ for i in after.instructions]
        if not {type(i).__name__ for i in before.instructions} <= _IN or names not in _OUT:
            return None
        order = _order(model, before, middle)
        (scale,) = model.constant(after.instructions[0].inputs[1]).tolist()
        by = scales.index(scale) if scale in scales else None
        if order is None or (by is None and scale != fq.scale.item()) or (by is None) != (len(names) == 2):
            return None
        return OnCpu(CpuRunner(model, middle, 1), order, by, march)

    def run(self, operands: Sequence[Tensor], sources: Sequence[FakeQuantize], fq: FakeQuantize) -> Tensor:
        """The program's answer."""
        feeds = [np.ascontiguousarray(operands[i].detach().cpu().float().numpy()) for i in self.order]
        y = torch.from_numpy(self.runner.run(feeds)[0]).to(operands[0].device)
        limits = fq.spec.qmin, fq.spec.qmax
        if self.by is None:
            return on_grid(y, fq.scale.detach(), limits, self.march).mul_(fq.scale.detach())
        first = sources[self.by]
        q = on_grid(y, first.scale.detach(), (first.spec.qmin, first.spec.qmax), self.march)
        ratio = first.scale.item() / fq.scale.item()
        r = constants.requantization(ratio, wide=fq.spec.dtype == "int16", bias=False)
        bound = float(-first.spec.qmin)
        tensors = on_device(r, np.zeros_like(r.rounding), [1] * q.dim(), q.device, q.dtype, bound)
        return requantized_(q, tensors, bound).clamp(*limits).mul_(fq.scale.detach())


def _order(model: Model, before: BpuSegment, middle: CpuSegment) -> tuple[int, ...] | None:
    """Which inputs of the model the segment reads, each quantised and dequantised by its own scale."""
    made: dict[int, Any] = {o: i for i in before.instructions for o in i.outputs}
    found = []
    for tensor in middle.inputs:
        chain = [tensor]
        while chain[-1] in made:
            chain.append(made[chain[-1]].inputs[0])
        names = [type(made[t]).__name__ for t in chain[:-1]]
        name = model.tensors[chain[-1]].name
        if names != ["Dequantize", "Quantize"] or not name.removeprefix("x").isdigit():
            return None
        found.append(int(name.removeprefix("x")))
    return tuple(found)
