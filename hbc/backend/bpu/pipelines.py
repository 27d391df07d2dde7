"""The compiler as a list: stages and passes, top to bottom."""

from __future__ import annotations

from hbc.passes.assign_layout import AssignLayout
from hbc.passes.canonicalize import Canonicalize
from hbc.passes.check_plan import plan_is_sound
from hbc.passes.cse import Cse
from hbc.passes.dce import Dce
from hbc.passes.fold_clip import FoldClip
from hbc.passes.fold_constants import FoldConstants
from hbc.passes.fold_qdq import FoldQdq
from hbc.passes.fuse_conv import FuseConv
from hbc.passes.insert_requantize import InsertRequantize
from hbc.passes.lower_to_bpu import LowerToBpu
from hbc.passes.lower_to_lut import LowerToLut
from hbc.passes.manager import Stage
from hbc.passes.partition import Partition
from hbc.passes.plan_memory import PlanMemory
from hbc.passes.propagate_qdq import PropagateQdq
from hbc.passes.signed_types import SignedTypes
from hbc.passes.widen_outputs import WidenOutputs

NORMALIZE = Stage(
    "normalize", (Canonicalize(), FoldConstants(), PropagateQdq(), Canonicalize(), FoldConstants(), Cse(), Dce())
)
FUSE = Stage("fuse", (FuseConv(), FoldConstants(), Dce()))
QUANTIZE = Stage(
    "quantize",
    (
        SignedTypes(), LowerToLut(), FoldQdq(), WidenOutputs(), InsertRequantize(), Canonicalize(), FoldClip(), Cse(),
        Dce(),
    ),
)  # fmt: skip
PLACE = Stage("place", (Partition(), Dce()))
LOWER = Stage("lower", (LowerToBpu(), AssignLayout(), Canonicalize(), Cse(), Dce()))
SCHEDULE = Stage("schedule", (PlanMemory(),), ensures=plan_is_sound)

PIPELINE = (NORMALIZE, FUSE, QUANTIZE, PLACE, LOWER, SCHEDULE)
# Every march takes the same road: what differs is data (march.py) and numeric facts (ir/semantics.py).
PIPELINES = dict.fromkeys(("bernoulli2", "bayes", "bayes-e", "nash-e", "nash-m", "nash-p"), PIPELINE)
