"""What the BPU takes: every legality rule, in the order in which they are asked."""

from . import conv, dtypes, pool
from .registry import Rule

RULES: tuple[Rule, ...] = (*dtypes.RULES, *conv.RULES, *pool.RULES)
