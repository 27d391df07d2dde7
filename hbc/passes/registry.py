"""Every pass by its name, for `hbc opt -p`, `hbc passes` and the docs."""

from __future__ import annotations

from .assign_layout import AssignLayout
from .base import Pass
from .canonicalize import Canonicalize
from .compose_tables import ComposeTables
from .cse import Cse
from .dce import Dce
from .decompose import Decompose
from .fold_clip import FoldClip
from .fold_constants import FoldConstants
from .fold_qdq import FoldQdq
from .fold_select import FoldSelect
from .fuse_conv import FuseConv
from .hoist_elementwise import HoistElementwise
from .insert_requantize import InsertRequantize
from .lower_to_add import LowerToAdd
from .lower_to_bpu import LowerToBpu
from .lower_to_lut import LowerToLut
from .lower_to_mul import LowerToMul
from .partition import Partition
from .plan_memory import PlanMemory
from .propagate_qdq import PropagateQdq
from .pseudo_quantize import PseudoQuantize
from .recognize_composites import RecognizeComposites
from .recognize_fake_quant import RecognizeFakeQuant
from .signed_types import SignedTypes
from .split_select import SplitSelect
from .widen_outputs import WidenOutputs

PASSES: dict[str, type[Pass]] = {
    p.name: p
    for p in (
        Canonicalize, FoldConstants, RecognizeFakeQuant, RecognizeComposites, HoistElementwise, PropagateQdq, Cse, Dce,
        FuseConv, SignedTypes, Decompose, LowerToLut, SplitSelect, LowerToMul, LowerToAdd, FoldQdq, FoldSelect,
        WidenOutputs, InsertRequantize, FoldClip, Partition, LowerToBpu, AssignLayout, ComposeTables, PlanMemory,
        PseudoQuantize,
    )
}  # fmt: skip
