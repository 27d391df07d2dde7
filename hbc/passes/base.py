"""What a pass is, and what it may ask of its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from hbc.diagnostics import Rejection
from hbc.ir.core import Module, Op
from hbc.ir.semantics import Semantics


class Target(Protocol):
    """What passes may ask about the machine; implemented one floor up (backend/bpu/target.py)."""

    @property
    def semantics(self) -> Semantics:
        """The numeric facts of march and arithmetic."""
        ...

    def legal(self, op: Op) -> Rejection | None:
        """Why `op` may not run on the BPU, or None where it may."""
        ...

    def lower(self, module: Module) -> int:
        """Replace every op placed on the BPU or the host by `bpu.*` ops; returns how many."""
        ...


@dataclass(frozen=True)
class Pass:
    """A change of the module.

    Subclasses are frozen dataclasses; their fields are the pass's options (`fuse-conv{x=1}`). `run` returns how many
    rewrites it made. `changes_numerics`: the integers before and after may differ (a proof by execution is not asked
    for). `absorbs`: what it means where nothing is left of a node after the pass. The docstring shows before and after.
    """

    name: ClassVar[str]
    changes_numerics: ClassVar[bool] = False
    absorbs: ClassVar[str] = "a rewrite left nothing of it to do"

    def run(self, module: Module, target: Target) -> int:
        """Rewrite `module` in place; returns the number of rewrites."""
        raise AssertionError(self.name)
