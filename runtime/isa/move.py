"""Elements moved, repeated, or blended with their neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DType
from .base import INT_ACT, Instruction, Opcode, Shaped, all_present, require


@dataclass(frozen=True, kw_only=True)
class Concat(Instruction):
    """Tensors of one dtype joined along `axis`."""

    opcode = Opcode.CONCAT
    operands = ("xs*",)
    axis: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        xs, out = all_present(ins), outs[0]
        rank = len(out.shape)
        require(0 <= self.axis < rank, f"axis {self.axis} of rank {rank}")
        for x in xs:
            require(x.dtype is out.dtype, "operands and result must have one dtype")
            require(len(x.shape) == rank, "operands must have one rank")
            same = all(i == self.axis or x.shape[i] == out.shape[i] for i in range(rank))
            require(same, "shapes differ off the axis")
        require(sum(x.shape[self.axis] for x in xs) == out.shape[self.axis], "sizes along the axis do not add up")


@dataclass(frozen=True, kw_only=True)
class Slice(Instruction):
    """y[i] = x[starts + i·steps] along every axis; starts are not negative, steps may be."""

    opcode = Opcode.SLICE
    operands = ("x",)
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        out = outs[0]
        rank = len(x.shape)
        require(x.dtype is out.dtype and len(out.shape) == rank, "dtype and rank must stay")
        require(len(self.starts) == rank and len(self.steps) == rank, "one start and step per axis")
        for d, o, start, step in zip(x.shape, out.shape, self.starts, self.steps, strict=True):
            require(step != 0, "step is 0")
            inside = o == 0 or (0 <= start < d and 0 <= start + (o - 1) * step < d)
            require(inside, f"slice leaves the axis of size {d}")


@dataclass(frozen=True, kw_only=True)
class Pad(Instruction):
    """x inside a border of `value`; `pads` holds begin then end for every axis, none negative."""

    opcode = Opcode.PAD
    operands = ("x",)
    pads: tuple[int, ...]
    value: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        rank = len(x.shape)
        require(x.dtype is outs[0].dtype and x.dtype.is_integer, "dtype must be an integer, and stay")
        lo, hi = x.dtype.limits
        require(lo <= self.value <= hi, f"value {self.value} is outside {x.dtype.text}")
        require(len(self.pads) == 2 * rank and min(self.pads, default=0) >= 0, "pads")
        want = tuple(d + self.pads[i] + self.pads[rank + i] for i, d in enumerate(x.shape))
        require(outs[0].shape == want, f"output shape is {outs[0].shape}, not {want}")


@dataclass(frozen=True, kw_only=True)
class Transpose(Instruction):
    """Axis i of the result is axis perm[i] of x. Any dtype."""

    opcode = Opcode.TRANSPOSE
    operands = ("x",)
    perm: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(sorted(self.perm) == list(range(len(x.shape))), f"perm {self.perm}")
        require(x.dtype is outs[0].dtype and outs[0].shape == tuple(x.shape[p] for p in self.perm), "shape or dtype")


@dataclass(frozen=True, kw_only=True)
class Reshape(Instruction):
    """The same elements in row-major order under another shape. Any dtype; may alias its input (same bytes)."""

    opcode = Opcode.RESHAPE
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(x.dtype is outs[0].dtype, "dtype must stay")
        require(math.prod(x.shape) == math.prod(outs[0].shape), f"{x.shape} does not reshape to {outs[0].shape}")


@dataclass(frozen=True, kw_only=True)
class ResizeNearest(Instruction):
    """y[n,h,w,c] = x[n, rows[h], columns[w], c]; index tables made by the compiler; NHWC."""

    opcode = Opcode.RESIZE_NEAREST
    operands = ("x", "rows", "columns")  # i32[OH], i32[OW]: constants with entries inside x, checked by the reader

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, rows, cols = all_present(ins)
        require(len(x.shape) == 4 and x.dtype is outs[0].dtype, "input must have rank 4; dtype must stay")
        require(rows.dtype is DType.I32 and cols.dtype is DType.I32, "tables must be i32")
        require(len(rows.shape) == 1 and len(cols.shape) == 1, "tables must have rank 1")
        require(outs[0].shape == (x.shape[0], rows.shape[0], cols.shape[0], x.shape[3]), "output shape")


@dataclass(frozen=True, kw_only=True)
class ResizeBilinear(Instruction):
    """NUMERICS D10. Tables are i32[OH, 3], i32[OW, 3]: low index, high index, weight of the high one in 0..256.

    y = (Σ x[h][w]·wh·ww + 2^15) >> 16 over the four neighbours, in i64.
    """

    opcode = Opcode.RESIZE_BILINEAR
    operands = ("x", "rows", "columns")

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, rows, cols = all_present(ins)
        require(len(x.shape) == 4 and x.dtype in INT_ACT, "input must be i8 or i16 of rank 4")
        require(x.dtype is outs[0].dtype, "dtype must stay")
        for t in (rows, cols):
            require(t.dtype is DType.I32 and len(t.shape) == 2 and t.shape[1] == 3, "tables must be i32[*, 3]")
        require(outs[0].shape == (x.shape[0], rows.shape[0], cols.shape[0], x.shape[3]), "output shape")


@dataclass(frozen=True, kw_only=True)
class Gather(Instruction):
    """y = x taken along `axis` at constant `indices` (i32, rank 1, entries inside the axis, checked by the reader)."""

    opcode = Opcode.GATHER
    operands = ("x", "indices")
    axis: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, idx = all_present(ins)
        require(0 <= self.axis < len(x.shape), f"axis {self.axis} of rank {len(x.shape)}")
        require(idx.dtype is DType.I32 and len(idx.shape) == 1, "indices must be i32 of rank 1")
        want = (*x.shape[: self.axis], idx.shape[0], *x.shape[self.axis + 1 :])
        require(x.dtype is outs[0].dtype and outs[0].shape == want, f"output shape is {outs[0].shape}, not {want}")


@dataclass(frozen=True, kw_only=True)
class Expand(Instruction):
    """x repeated along axes of size 1 to the result's shape (equal ranks). Any dtype."""

    opcode = Opcode.EXPAND
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(x.dtype is outs[0].dtype and len(x.shape) == len(outs[0].shape), "dtype and rank must stay")
        require(all(a in {1, b} for a, b in zip(x.shape, outs[0].shape, strict=True)), "only axes of size 1 expand")
