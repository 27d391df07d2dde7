"""From ops to instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.ir.core import Module

from .base import Pass, Target


@dataclass(frozen=True)
class LowerToBpu(Pass):
    """Every op placed on the BPU or the host becomes its instruction, with its constants.

    Spatial ops stand between transposes to NHWC.

        %y = conv2d %x, %w, %b : q<0.05>      →   %t = bpu.transpose %x {perm = [0, 2, 3, 1]}
                                                  %c = bpu.conv2d %t, %k, %bias, %mult, %pre, %post {scheme = FORM_A, …}
                                                  %y = bpu.transpose %c {perm = [0, 3, 1, 2]}
    """

    name: ClassVar[str] = "lower-to-bpu"

    def run(self, module: Module, target: Target) -> int:
        return target.lower(module)
