"""The integers that a real may become, and the scale that a threshold stands for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import OptionError, error

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Rounding = Literal["half_even", "half_up", "half_away"]

LEAST_SCALE = float(np.finfo(np.float32).tiny)  # below it float32 loses digits, and a quotient by it may overflow


class Convention(enum.Enum):
    """By what a threshold T is divided. Both stand in the vendor's manuals and files, for one tool each.

    PTQ: `scale = T / qmax`, T / 127 for 8 bits: T itself is the largest integer. QAT: `scale = T / −qmin`, T / 128 and
    T / 32768: −T is the least integer, and T saturates by one step. On a narrow grid the two are one.
    """

    PTQ = "ptq"
    QAT = "qat"


@dataclass(frozen=True)
class Grid:
    """Symmetric integers of `bits` bits: −2^(bits−1) … 2^(bits−1)−1, without the least one where `narrow`.

    A real x becomes `q = clip(round(x / scale), qmin, qmax)` and comes back as `scale · q`; the zero point is 0, as the
    BPU has it. Weights of calibrated models are narrow (−127 … 127), activations are not.
    """

    bits: int = 8
    narrow: bool = False
    convention: Convention = Convention.PTQ

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise error(OptionError, f"a grid of {self.bits} bits", why="hbc quantises to 2 to 16 bits")

    @property
    def qmax(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - 1)) - 1

    @property
    def qmin(self) -> int:
        """The least integer."""
        return -self.qmax if self.narrow else -self.qmax - 1

    @property
    def divisor(self) -> int:
        """What a threshold is divided by."""
        return self.qmax if self.convention is Convention.PTQ else -self.qmin

    def scale(self, threshold: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The float32 scales of thresholds, of their shape; a threshold of 0 (nothing but zeros) counts as 1."""
        wanted = np.asarray(threshold, np.float64)
        wanted = np.where(wanted > 0, wanted, 1.0) / self.divisor
        return np.clip(wanted, LEAST_SCALE, np.finfo(np.float32).max).astype(np.float32)

    def quantize(
        self, x: Array, scale: npt.ArrayLike, *, axis: int | None = None, rounding: Rounding = "half_even"
    ) -> npt.NDArray[np.int16]:
        """The integers of reals `x` (any shape), one scale or one per index of `axis`. NaN becomes 0, ±inf saturates.

        Division in float32, as Nash and ONNX have it, for float32 and shorter; in float64 for float64. `rounding`:
        `half_even` (ONNX, Nash), `half_up` (QAT: floor(x/s + 1/2)), `half_away` (weights; Bayes, Bernoulli 2).
        """
        kind = np.float64 if x.dtype == np.float64 else np.float32
        quotient = np.nan_to_num(x.astype(kind, copy=False) / along(np.asarray(scale, kind), axis, x.ndim), nan=0.0)
        return np.clip(_ROUND[rounding](quotient), self.qmin, self.qmax).astype(np.int16)

    def fake_quantize(
        self, x: Array, scale: npt.ArrayLike, *, axis: int | None = None, rounding: Rounding = "half_even"
    ) -> Array:
        """The reals that the integers of `x` stand for, of `x`'s shape and float dtype."""
        q = self.quantize(x, scale, axis=axis, rounding=rounding)
        kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
        return q.astype(kind) * along(np.asarray(scale, kind), axis, x.ndim)


def along(values: Array, axis: int | None, rank: int) -> Array:
    """`values` shaped so that they run along `axis` of an array of `rank` axes; as they are where `axis` is None."""
    if axis is None:
        return values
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def _half_away(x: Array) -> Array:
    # Not floor(|x| + 1/2): of 0.49999997f that sum is 1.
    down = np.trunc(x)
    return down + np.where(np.abs(x - down) >= 0.5, np.sign(x), 0)


def _half_up(x: Array) -> Array:
    down = np.floor(x)
    return down + (x - down >= 0.5)


_ROUND: dict[str, Callable[[Array], Array]] = {"half_even": np.rint, "half_up": _half_up, "half_away": _half_away}
