"""Which values of a lowered graph have their channels last, read off its instructions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from hbc_runtime import isa

TO_NHWC = (0, 2, 3, 1)
SPATIAL = tuple(c for c in isa.INSTRUCTIONS.values() if c.__name__ in {
    "Conv2d", "ConvTranspose2d", "MaxPool", "AvgPool", "ResizeNearest", "ResizeBilinear", "GridSample",
})  # fmt: skip
Row = tuple[type[isa.Instruction], Any, tuple[Hashable, ...], tuple[Hashable, ...]]  # class, perm, reads, writes


def channels_last(rows: Iterable[Row]) -> set[Hashable]:
    """The values in NHWC order: made by spatial instructions or transposed there, and what keeps their order.

    `rows` are the instructions in running order; a Reshape, a matmul and a CPU segment return to the model's order.
    """
    found: set[Hashable] = set()
    for cls, perm, reads, writes in rows:
        first = reads[0] if reads else None
        if issubclass(cls, SPATIAL):
            last = True
        elif issubclass(cls, isa.Transpose):
            last = tuple(perm) == TO_NHWC and first not in found
        elif issubclass(cls, isa.Reshape | isa.Matmul):
            last = False
        else:
            last = first in found
        if last:
            found.update(writes)
    return found
