"""The compiler as a list: stages and passes, top to bottom."""

from __future__ import annotations

from hbc.passes.assign_layout import AssignLayout
from hbc.passes.canonicalize import Canonicalize
from hbc.passes.check_plan import plan_is_sound
from hbc.passes.compose_tables import ComposeTables
from hbc.passes.cse import Cse
from hbc.passes.dce import Dce
from hbc.passes.decompose import Decompose
from hbc.passes.fold_clip import FoldClip
from hbc.passes.fold_constants import FoldConstants
from hbc.passes.fold_qdq import FoldQdq
from hbc.passes.fold_select import FoldSelect
from hbc.passes.fuse_conv import FuseConv
from hbc.passes.hoist_elementwise import HoistElementwise
from hbc.passes.insert_requantize import InsertRequantize
from hbc.passes.lower_to_add import LowerToAdd
from hbc.passes.lower_to_bpu import LowerToBpu
from hbc.passes.lower_to_lut import LowerToLut
from hbc.passes.lower_to_mul import LowerToMul
from hbc.passes.manager import Stage
from hbc.passes.partition import Partition
from hbc.passes.plan_memory import PlanMemory
from hbc.passes.propagate_qdq import PropagateQdq
from hbc.passes.recognize_composites import RecognizeComposites
from hbc.passes.recognize_fake_quant import RecognizeFakeQuant
from hbc.passes.signed_types import SignedTypes
from hbc.passes.split_select import SplitSelect
from hbc.passes.widen_outputs import WidenOutputs

NORMALIZE = Stage(
    "normalize",
    (
        Canonicalize(), FoldConstants(), RecognizeFakeQuant(), RecognizeComposites(), Dce(), HoistElementwise(),
        PropagateQdq(), Canonicalize(), FoldConstants(), Cse(), Dce(),
    ),
)  # fmt: skip
FUSE = Stage("fuse", (FuseConv(), FoldConstants(), Dce()))
# lower-to-lut stands on both sides of split-select: a choice that is a function of one tensor becomes one table as a
# whole, and only what is left is split, whose sides may be such functions.
QUANTIZE = Stage(
    "quantize",
    (
        SignedTypes(), Decompose(), LowerToLut(), SplitSelect(), LowerToLut(), LowerToMul(), LowerToAdd(), FoldQdq(),
        FoldSelect(), WidenOutputs(), InsertRequantize(), Canonicalize(), Dce(), FoldClip(), Cse(), Dce(),
    ),
)  # fmt: skip
PLACE = Stage("place", (Partition(), Dce()))
LOWER = Stage("lower", (LowerToBpu(), AssignLayout(), Canonicalize(), Cse(), ComposeTables(), Cse(), Dce()))
SCHEDULE = Stage("schedule", (PlanMemory(),), ensures=plan_is_sound)

PIPELINE = (NORMALIZE, FUSE, QUANTIZE, PLACE, LOWER, SCHEDULE)
# Every march takes the same road: what differs is data (march.py) and numeric facts (ir/semantics.py).
PIPELINES = dict.fromkeys(("bernoulli2", "bayes", "bayes-e", "nash-e", "nash-m", "nash-p"), PIPELINE)
