"""Merges ops that compute the same thing."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir.core import Module, Op
from hbc.ir.location import fuse

from .base import Pass, Target


@dataclass(frozen=True)
class Cse(Pass):
    """Merge ops of one class with equal operands, attributes, result types and placement; locations fuse.

        %a = clip %x {low = 0}       %a = clip %x {low = 0}
        %b = clip %x {low = 0}   →   %c = add %a, %a
        %c = add %a, %b

    Arrays and floats are equal where their bits are: −0 and 0 stay apart, and a NaN equals itself.
    """

    name: ClassVar[str] = "cse"

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        first: dict[Hashable, Op] = {}
        copies: dict[Op, list[Op]] = {}
        for op in graph.ops:  # operands are merged before their users are looked at, so one walk is enough
            kept = first.setdefault(op_key(op), op)
            if kept is not op and not _fill_two_arrays(kept, op):
                for old, new in zip(op.results, kept.results, strict=True):
                    graph.replace_uses(old, new)
                    new.name = new.name or old.name
                copies.setdefault(kept, []).append(op)
        for kept, others in copies.items():
            kept.loc = fuse(op.loc for op in (kept, *others))
        return graph.erase(op for others in copies.values() for op in others)


def _fill_two_arrays(a: Op, b: Op) -> bool:
    """True for placed ops that write two of the caller's arrays: one op fills only one."""
    both = (x.is_output and y.is_output for x, y in zip(a.results, b.results, strict=True))
    return a.placement is not None and any(both)


def op_key(op: Op) -> Hashable:
    """Equal for two ops that compute the same values in the same place."""
    operands = tuple(None if v is None else id(v) for v in op.operands)
    attrs = tuple(_attr_key(v) for v in op.attrs.values())
    place = None if op.placement is None else (op.placement.device, op.placement.segment)
    return type(op), operands, attrs, tuple(r.type for r in op.results), place


def _attr_key(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16)
        return value.dtype.str, value.shape, digest.digest()
    if isinstance(value, tuple):
        return tuple(_attr_key(v) for v in value)
    if isinstance(value, float):
        return value.hex()
    assert isinstance(value, (int, str)), value
    return value
