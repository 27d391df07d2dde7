"""What the BPU takes: every legality rule, in the order in which they are asked."""

from . import conv, dtypes, move, norm, pool, sample, select
from .registry import Refusal, Rule

RULES: tuple[Rule, ...] = (
    *dtypes.RULES,
    *conv.RULES,
    *norm.RULES,
    *pool.RULES,
    *move.RULES,
    *sample.RULES,
    *select.RULES,
)

__all__ = ["RULES", "Refusal", "Rule"]
