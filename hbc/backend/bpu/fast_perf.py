"""`--fast-perf`: a float model lowered as a quantised one would be, everything legal on the BPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.passes.canonicalize import Canonicalize
from hbc.passes.dce import Dce
from hbc.passes.fold_constants import FoldConstants
from hbc.passes.manager import Stage
from hbc.passes.pseudo_quantize import PseudoQuantize
from hbc.passes.recognize_composites import RecognizeComposites

from .march import MARCHES, MarchSpec
from .target import Target

SOFTMAX = (ops.Softmax, ops.LogSoftmax)


@dataclass(frozen=True)
class FastPerfTarget(Target):
    """A target that quantises what is not, and runs normalisations as their parts on every march.

    The manuals of bayes list a layer normalisation among the BPU's ops; a Softmax stays on the CPU there unless it is
    asked for (or spelled out in its parts), and so it does here.
    """

    @property
    def march(self) -> MarchSpec:
        return replace(MARCHES[self.march_name], has_composites=True)

    @property
    def pipeline(self) -> tuple[Stage, ...]:
        softmax = MARCHES[self.march_name].has_composites
        first = (Canonicalize(), FoldConstants(), RecognizeComposites(softmax=softmax), Canonicalize(), Dce())
        return (Stage("pseudo-quantize", (*first, PseudoQuantize())), *super().pipeline)

    def asked(self, op: Op) -> Target:
        """The target whose rules `op` is asked: a softmax those of the march as it is."""
        return Target(self.march_name, self.arith) if isinstance(op, SOFTMAX) else self

    def legal(self, op: Op) -> Rejection | None:
        asked = self.asked(op)
        return super().legal(op) if asked is self else asked.legal(op)
