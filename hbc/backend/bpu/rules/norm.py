"""Where softmax and the normalisations run as their parts."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops

from ..march import MarchSpec
from .registry import legal, reject


@legal(ops.Composite, where=lambda march: not march.has_composites)
def composites(op: ops.Composite, march: MarchSpec) -> Rejection | None:
    """Softmax and normalisations run as their parts on nash; on bayes and bernoulli2 they run on the CPU by default.

    Try: keep it at the model's head or tail, spell it out in its parts, or compile for nash.
    """
    return reject(f"Here the march is {march.name}.")


@legal(ops.LayerNorm, where=lambda march: march.max_norm > 0)
def norm_size(op: ops.LayerNorm, march: MarchSpec) -> Rejection | None:
    """A layer normalisation of [N,C,H,W] covers at most {march.max_norm} positions.

    Try: cut the image into tiles, or use a batch normalisation.
    """
    shape = op.operands[0].type.shape if op.operands[0] is not None else ()
    area = shape[2] * shape[3] if len(shape) == 4 else 0
    return reject(f"Here {area}.") if area > march.max_norm else None


RULES = (composites, norm_size)
