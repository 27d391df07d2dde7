"""Where softmax and the normalisations run as their parts."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops

from ..march import MarchSpec
from .registry import legal, reject


@legal(ops.Composite)
def composites(op: ops.Composite, march: MarchSpec) -> Rejection | None:
    """Softmax and normalisations run as their parts on nash; on bayes and bernoulli2 they run on the CPU by default."""
    if march.has_composites:
        return None
    return reject(f"Here the march is {march.name}.", "keep it at the model's head or tail, or compile for nash")


RULES = (composites,)
