"""What the cases of single operators are drawn with: shapes, scales, zero points, integers, all by hypothesis."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from tests.differential.quantised import Array, Case, Scaled

T = TypeVar("T")
Shape = tuple[int, ...]


class Kind(enum.Enum):
    """What the activations of a case are."""

    SYMMETRIC = "int8 with zero point 0"
    AFFINE = "int8 or uint8 with any zero point"
    WIDE = "int16"
    PLAIN = "no quantised tensors of 16 bits: plain dtypes, unusual shapes"


class OpCase(Case):
    """A case that may say where its op has to run and that nothing is rounded, against what its entry says of all."""

    on_cpu: bool | None = None
    exact: bool = False

    def result(self, y: str, by: Scaled, out: str = "y") -> OpCase:
        """`y` quantised as an output."""
        super().result(y, by, out)
        return self


@dataclass(frozen=True)
class Draw:
    """Hypothesis' `draw`, with words for what the cases need. `kind` says what activations are."""

    draw: Callable[..., Any]
    kind: Kind

    def of(self, *values: T) -> T:
        """One of them."""
        found: T = self.draw(st.sampled_from(values))
        return found

    def int(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.draw(st.integers(low, high)))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        """`count` integers."""
        return [self.int(low, high) for _ in range(count)]

    def flag(self) -> bool:
        """True or False."""
        return bool(self.draw(st.booleans()))

    def real(self, low: float, high: float) -> np.float32:
        """One of 1000 float32 numbers from `low` to `high`."""
        return np.float32(low + (high - low) * self.int(0, 999) / 999)

    def rng(self) -> np.random.Generator:
        """A generator, for what need not shrink."""
        return np.random.default_rng(self.int(0, 2**32 - 1))

    def reals(self, shape: Sequence[int], low: float = -2, high: float = 2) -> Array:
        """float32 numbers."""
        return self.rng().uniform(low, high, tuple(shape)).astype(np.float32)

    def shape(self, low: int = 1, high: int = 5, most: int = 4) -> Shape:
        """`low` to `high` axes of 1 to `most` elements."""
        return tuple(self.ints(self.int(low, high), 1, most))

    def broadcast(self, shape: Shape) -> Shape:
        """The shape with some axes of size 1, or without its first axes."""
        ones = tuple(1 if self.flag() else d for d in shape)
        return ones[self.int(0, len(shape)) :] if self.flag() else shape if self.flag() else ones

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return self.int(-rank, rank - 1)

    def by(self, low: float = 0.002, high: float = 0.1, *, dtype: Any = None, zero: int | None = None) -> Scaled:
        """A scale (finer by 256 for 16 bits) and a zero point, as the kind has them."""
        if dtype is None:
            dtype = {Kind.WIDE: np.int16, Kind.AFFINE: self.of(np.int8, np.uint8)}.get(self.kind, np.int8)
        info = np.iinfo(dtype)
        scale = self.real(low, high) / np.float32(1 if info.bits == 8 else 256)
        if zero is None:
            zero = self.int(info.min, info.max) if self.kind is Kind.AFFINE else 0
        return Scaled(float(scale), np.dtype(dtype).type(zero))

    def far(self, *, dtype: Any = None) -> Scaled:
        """As `by`, with a scale that may be far from 1: for ops whose result grows and shrinks with its operand."""
        by = self.by(dtype=dtype)
        return Scaled(by.scale * 2.0 ** self.int(-12, 12), by.zero)

    def like(self, by: Scaled, factor: float = 1.0) -> Scaled:
        """Another zero point of that dtype, and `factor` times its scale, give or take a fifth."""
        other = self.by(dtype=by.dtype)
        return Scaled(float(np.float32(by.scale * factor) * self.real(0.8, 1.25)), other.zero)

    def data(self, by: Scaled, shape: Sequence[int]) -> Array:
        """Integers over the whole range of the dtype."""
        return np.asarray(by.ints(self.rng(), *shape))

    def activation(self, case: Case, shape: Sequence[int], by: Scaled) -> str:
        """Reals of a quantised input."""
        return case.activation(self.data(by, shape), by)

    def weight(self, case: Case, shape: Sequence[int], axis: int = 0) -> str:
        """Reals of constant i8: one scale, or one per entry of `axis`."""
        w = self.rng().integers(-127, 128, tuple(shape)).astype(np.int8)
        scale = self.reals((shape[axis],), 0.001, 0.01) if self.flag() else self.real(0.001, 0.01)
        return case.weight(w, scale, axis)


Build = Callable[[Draw], OpCase]


def longs(case: Case, *values: Any) -> str:
    """A constant of int64: a list of what is given."""
    return case.const(np.concatenate([np.atleast_1d(np.asarray(v, np.int64)) for v in values]))
