"""Every pass by its name, for `hbc opt -p`, `hbc passes` and the docs."""

from __future__ import annotations

from .assign_layout import AssignLayout
from .base import Pass
from .canonicalize import Canonicalize
from .cse import Cse
from .dce import Dce
from .fold_clip import FoldClip
from .fold_constants import FoldConstants
from .fold_qdq import FoldQdq
from .fuse_conv import FuseConv
from .insert_requantize import InsertRequantize
from .lower_to_bpu import LowerToBpu
from .lower_to_lut import LowerToLut
from .partition import Partition
from .plan_memory import PlanMemory
from .propagate_qdq import PropagateQdq
from .signed_types import SignedTypes
from .widen_outputs import WidenOutputs

PASSES: dict[str, type[Pass]] = {
    p.name: p
    for p in (
        Canonicalize, FoldConstants, PropagateQdq, Cse, Dce, FuseConv, SignedTypes, LowerToLut, FoldQdq, WidenOutputs,
        InsertRequantize, FoldClip, Partition, LowerToBpu, AssignLayout, PlanMemory,
    )
}  # fmt: skip
