"""What the BPU takes: every legality rule, in the order in which they are asked."""

from . import conv, dtypes, norm, pool, sample, select
from .registry import Rule

RULES: tuple[Rule, ...] = (*dtypes.RULES, *conv.RULES, *norm.RULES, *pool.RULES, *sample.RULES, *select.RULES)
