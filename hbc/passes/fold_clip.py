"""A clip of integers goes into the op that makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.ir import ops
from hbc.ir.core import Module
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType

from .base import Pass, Target
from .fuse_conv import CLIPPABLE
from .matching import narrowed


@dataclass(frozen=True)
class FoldClip(Pass):
    """clip(f(x)) of one scale becomes f(x) {clip}.

    Clamping is free behind a requantisation.

        %a = conv2d %x, %w : q<0.1>
        %y = clip %a {low = 0} : q<0.1>      →   %y = conv2d %x, %w {clip = [0, inf]} : q<0.1>
    """

    name: ClassVar[str] = "fold-clip"

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Clip):
            maker = op.x.op
            t = op.out.type
            if not isinstance(maker, CLIPPABLE) or t.quant is None or op.x.type != t or t.dtype is DType.I32:
                continue
            if not op.x.has_one_use:
                continue
            rw = Rewriter(module.graph, op)
            attrs = maker.attrs | {"clip": narrowed(maker.clip, op)}
            rw.replace(op, rw.op(type(maker), *maker.operands, type=t, **attrs), maker)
            changes += rw.changes
        return changes
