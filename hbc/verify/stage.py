"""What a stage of a model is: named tensors in running order, their values, and each op on operands given to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import CannotCompare, HbcError, error
from hbc_runtime.program import Model
from hbc_runtime.types import Quant

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]


class StageError(HbcError):
    """A stage cannot be made or run, or isn't one of the same model."""

    FAMILY = CannotCompare


@dataclass(frozen=True)
class Place:
    """One named tensor of a stage, where it is computed.

    `op` makes it, from the model's `nodes`. `quant` says how its integers stand for reals. `channels_last`: axes are in
    another order than the model's, the channels behind. `dtype` is "" where only a run can tell.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    dtype: str = ""
    quant: Quant | None = None
    channels_last: bool = False


@dataclass(frozen=True)
class Step:
    """One tensor of one run: `total` as the stage computes it from the inputs on, `own` from operands given to its op.

    `own` is None where the op cannot be run by itself.
    """

    place: Place
    total: Array
    own: Array | None


Given = Callable[[Place, Array], "Array | None"]


class Stage(Protocol):
    """One form of the model that can be run and looked into."""

    @property
    def name(self) -> str:
        """As the user writes it: `ort`, `ir:quantize`, `jit`."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Every named tensor that depends on the inputs, in running order."""

    def fetch(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """The values of these places, of one run."""

    def walk(self, sample: Sample, given: Given) -> Iterator[Step]:
        """The places one by one.

        `given(place, value)` says what later ops shall read in place of `value` (of its shape and dtype), or None for
        what the op made of the operands that were given to it.
        """


def require_same_model(program: Model, outputs: Collection[str], model: Path) -> None:
    """StageError where the program has an output that the model, whose `outputs` these are, lacks."""
    missing = [o.name for o in program.outputs if o.name not in outputs]
    if missing:
        why = f"the program gives {missing[0]!r}, the model {', '.join(map(repr, outputs))}"
        raise error(StageError, "the program is not of this model", where=str(model), why=why)


def same(a: Array, b: Array) -> bool:
    """Equal bits, and equal as numbers."""
    return a is b or (
        a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    )
