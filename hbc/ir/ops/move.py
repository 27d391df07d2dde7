"""Ops that move elements and compute nothing: on integers and reals alike, any dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import Quant, TensorType
from .shapes import given


class Move(Op):
    """Base of the ops that only move elements of their first operand.

    (C1) the result has the shape that the attributes imply.  (C2) the dtype stays.
    """

    x: Value = operand()

    def infer_shape(self) -> tuple[int, ...]:
        """The result's shape."""
        raise AssertionError(self.NAME)

    def axis_image(self, axis: int) -> int | None:
        """Where the operand's `axis` lies in the result, index by index; None where it has no such image."""
        raise AssertionError(self.NAME)

    def quant_image(self, quant: Quant | None) -> Quant | None:
        """The quantisation of the result for an operand of `quant`.

        ValueError where a per-channel axis is torn apart.
        """
        if quant is None or quant.axis is None:
            return quant
        image = self.axis_image(quant.axis)
        if image is None:
            msg = f"{self.NAME} does not keep axis {quant.axis}"
            raise ValueError(msg)
        return Quant(quant.scale, quant.zero_point, image)

    def infer(self) -> Sequence[TensorType]:
        t = self.x.type
        return [TensorType(self.infer_shape(), t.dtype, self.quant_image(t.quant))]

    def verify(self) -> None:
        t = self.out.type
        self.require(t.shape == self.infer_shape(), "C1", f"result is {t.shape}, not {self.infer_shape()}")
        self.require(t.dtype is self.x.type.dtype, "C2", f"{self.x.type.dtype.text} became {t.dtype.text}")


@define_op("reshape")
class Reshape(Move):
    """The same elements, row-major, under another shape (all sizes given).

    (C1) element counts agree.  (C2) the dtype stays.
    """

    shape: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    def verify(self) -> None:
        super().verify()
        self.require(math.prod(self.shape) == self.x.type.elements, "C1", f"{self.x.type.shape} to {self.shape}")

    def axis_image(self, axis: int) -> int | None:
        before, after = self.x.type.shape, self.shape
        outer = math.prod(before[:axis])
        for i, size in enumerate(after):
            if size == before[axis] and math.prod(after[:i]) == outer:
                return i
        return None

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [given(operands[0]).reshape(self.shape)]


@define_op("transpose")
class Transpose(Move):
    """Axis i of the result is axis perm[i] of x.

    (C1) `perm` is a permutation of the axes.  (C2) the dtype stays.
    """

    perm: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        return tuple(self.x.type.shape[p] for p in self.perm)

    def verify(self) -> None:
        self.require(sorted(self.perm) == list(range(self.x.type.rank)), "C1", f"perm {self.perm}")
        super().verify()

    def axis_image(self, axis: int) -> int | None:
        return tuple(self.perm).index(axis)

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [np.ascontiguousarray(given(operands[0]).transpose(self.perm))]


@define_op("slice")
class Slice(Move):
    """y[i] = x[starts + i·steps], `sizes` of them along each axis; starts not negative, steps may be.

    (C1) the result has `sizes`.  (C2) the dtype stays.  (C3) every index lies inside x.
    """

    starts: tuple[int, ...] = attr()
    sizes: tuple[int, ...] = attr()
    steps: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes)

    def verify(self) -> None:
        super().verify()
        rows = zip(self.x.type.shape, self.starts, self.sizes, self.steps, strict=True)
        inside = all(n == 0 or (0 <= a < d and 0 <= a + (n - 1) * s < d) for d, a, n, s in rows)
        what = f"{self.starts} + {self.sizes} by {self.steps} in {self.x.type.shape}"
        self.require(inside and 0 not in self.steps, "C3", what)

    def axis_image(self, axis: int) -> int | None:
        whole = self.starts[axis] == 0 and self.steps[axis] == 1 and self.sizes[axis] == self.x.type.shape[axis]
        return axis if whole else None

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        rows = zip(self.starts, self.sizes, self.steps, strict=True)
        return [given(operands[0])[np.ix_(*[a + np.arange(n) * s for a, n, s in rows])]]


@define_op("pad")
class Pad(Move):
    """x inside a border of the real number `value`; `pads` holds begins, then ends, none negative.

    In quantised form the border is `value` by x's scale.
    """

    pads: tuple[int, ...] = attr()
    value: float = attr(default=0.0)

    def infer_shape(self) -> tuple[int, ...]:
        r = self.x.type.rank
        return tuple(d + self.pads[i] + self.pads[r + i] for i, d in enumerate(self.x.type.shape))

    def axis_image(self, axis: int) -> int | None:
        return axis if self.pads[axis] == self.pads[self.x.type.rank + axis] == 0 else None

    @property
    def fill(self) -> float | int:
        """The border in x's own numbers: an integer where x is one."""
        t = self.x.type
        if t.quant is None:
            return self.value if t.dtype.is_float else int(self.value)
        lo, hi = t.dtype.limits
        return int(np.clip(np.rint(self.value / t.quant.scale[0]) + t.quant.zero_point[0], lo, hi))

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        r = self.x.type.rank
        border = list(zip(self.pads[:r], self.pads[r:], strict=True))
        return [np.pad(given(operands[0]), border, constant_values=self.fill)]


@define_op("expand")
class Expand(Move):
    """x repeated along axes of size 1 (and new leading axes) to `shape`."""

    shape: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    def axis_image(self, axis: int) -> int | None:
        return axis + len(self.shape) - self.x.type.rank

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [np.ascontiguousarray(np.broadcast_to(given(operands[0]), self.shape))]


@define_op("gather")
class Gather(Move):
    """x taken along `axis` at constant `indices` (rank 1, not negative)."""

    axis: int = attr()
    indices: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        s = self.x.type.shape
        return (*s[: self.axis], len(self.indices), *s[self.axis + 1 :])

    def axis_image(self, axis: int) -> int | None:
        return None if axis == self.axis else axis

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [given(operands[0]).take(np.asarray(self.indices, np.int64), axis=self.axis)]


@define_op("resize_nearest")
class ResizeNearest(Move):
    """y[n,c,h,w] = x[n,c,rows[h],columns[w]]; the importer turns every nearest mode of ONNX into these index lists."""

    rows: tuple[int, ...] = attr()
    columns: tuple[int, ...] = attr()

    def infer_shape(self) -> tuple[int, ...]:
        return (*self.x.type.shape[:2], len(self.rows), len(self.columns))

    def axis_image(self, axis: int) -> int | None:
        return axis if axis < 2 else None

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0])
        return [np.ascontiguousarray(x[:, :, np.asarray(self.rows)[:, None], np.asarray(self.columns)[None, :]])]


@define_op("concat")
class Concat(Op):
    """Operands joined along `axis` (not negative).

    (C1) shapes agree off the axis and add up on it.  (C2) one dtype.
    """

    xs: tuple[Value, ...] = operand(variadic=True)
    axis: int = attr()

    def infer(self) -> Sequence[TensorType]:
        first = self.xs[0].type
        total = sum(x.type.shape[self.axis] for x in self.xs)
        return [TensorType((*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]), first.dtype, first.quant)]

    def verify(self) -> None:
        def rest(t: TensorType) -> tuple[int, ...]:
            return (*t.shape[: self.axis], *t.shape[self.axis + 1 :])

        out = self.out.type
        fits = all(rest(x.type) == rest(out) for x in self.xs) and out.shape == self.infer()[0].shape
        self.require(fits, "C1", f"{[x.type.shape for x in self.xs]} to {out.shape}")
        self.require(len({x.type.dtype for x in (*self.xs, self.out)}) == 1, "C2", "dtypes differ")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [np.concatenate([given(x) for x in operands], axis=self.axis)]


@define_op("resize_linear")
class ResizeLinear(Op):
    """Bilinear resize of [N,C,H,W] to `size`.

    Output row i looks at `first + i·step` (real source coordinates, clamped to the input). `rows` and `columns` are
    (first, step) of their axis: the importer derives them from ONNX's coordinate modes.

    (C1) the result has `size`, and x's batch and channels.
    """

    x: Value = operand()
    size: tuple[int, int] = attr()
    rows: tuple[float, float] = attr()
    columns: tuple[float, float] = attr()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType((*self.x.type.shape[:2], *self.size), self.x.type.dtype, self.x.type.quant)]

    def verify(self) -> None:
        shape = self.out.type.shape
        self.require(shape == (*self.x.type.shape[:2], *self.size), "C1", f"result is {shape}")

    def positions(self, i: int) -> np.ndarray:
        """Source coordinates along spatial axis `i`, clamped to the input; float64."""
        first, step = (self.rows, self.columns)[i]
        return np.clip(first + np.arange(self.size[i]) * step, 0, self.x.type.shape[2 + i] - 1)

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        y = given(operands[0]).astype(np.float64)
        for i in range(2):
            p = self.positions(i)
            low = np.floor(p).astype(np.int64)
            high = np.minimum(low + 1, self.x.type.shape[2 + i] - 1)
            w = (p - low).reshape([-1 if j == 2 + i else 1 for j in range(4)])
            y = y.take(low, axis=2 + i) * (1 - w) + y.take(high, axis=2 + i) * w
        return [y.astype(np.float32)]
