"""SegmentLUT: any function of one tensor as one operation, and one table when it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hbc.diagnostics import OptionError, error

ENTRIES = 64  # of a segment, in hardware (NUMERICS 7)


class SegmentLUT(nn.Module):
    """`simulated_func` as a table: of 256 entries for an int8 operand, of 64 segments of 64 cells for int16.

    In training it is the function, with one fake quantisation behind it; exact forward looks its values up in the
    compiled table. hbc divides an int16 table by curvature, by itself: it halves segments where the error is largest
    (NUMERICS 7), which takes the place of the vendor's `dividing_points` and `auto_divide_strategy`, and holds negative
    inputs too, be the function symmetric (`is_centrosymmetric`) or not. `input_range`: the operand is clipped to it.

    The function takes a tensor and returns one of its shape, elementwise, by operations that hbc exports.
    """

    def __init__(
        self,
        simulated_func: Callable[[Tensor], Tensor],
        is_centrosymmetric: bool = False,  # noqa: FBT001, FBT002 - positions are the vendor's
        dividing_points: Sequence[float] | None = None,
        input_range: tuple[float, float] | None = None,
        auto_divide_strategy: str = "curvature",
        num_entries_per_table: int = ENTRIES,
    ) -> None:
        super().__init__()
        if dividing_points is not None or auto_divide_strategy != "curvature":
            given = "dividing points" if dividing_points is not None else f"strategy {auto_divide_strategy!r}"
            why = "hbc divides by curvature, halving segments where the error is largest"
            raise error(OptionError, f"SegmentLUT takes no {given}", why=why, hint="leave it out")
        if num_entries_per_table != ENTRIES:
            hint = "leave num_entries_per_table out"
            raise error(OptionError, f"a segment has {ENTRIES} entries, not {num_entries_per_table}", hint=hint)
        if input_range is not None and not input_range[0] < input_range[1]:
            raise error(OptionError, f"the input range {input_range} is empty", hint="give (low, high)")
        self.simulated_func, self.input_range = simulated_func, input_range
        self.is_centrosymmetric = is_centrosymmetric

    def forward(self, x: Tensor) -> Tensor:
        if self.input_range is not None:
            x = torch.clamp(x, *self.input_range)
        return self.simulated_func(x)

    def extra_repr(self) -> str:
        name = getattr(self.simulated_func, "__name__", type(self.simulated_func).__name__)
        return name if self.input_range is None else f"{name}, input_range={self.input_range}"


class Opened(nn.Module):
    """The function of a SegmentLUT as a module that is captured op by op."""

    def __init__(self, table: SegmentLUT) -> None:
        super().__init__()
        self.call: Any = table.forward

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.call(x)
        return y
