"""The compiled program of a fixed-point model as something to look into: its tensors under the units' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.verify.program_stage import reference_stage
from hbc.verify.stage import Place
from hbc.verify.stored import Pair, to_reals

from ..converting import FixedPointModel
from .running import Array, Values, named_outputs


class ProgramRunnable:
    """The program by the NumPy engine, one instruction at a time. A unit that is fused away has no values."""

    def __init__(self, model: FixedPointModel) -> None:
        self.model = model
        self.about = "fixed point"
        self.stage = reference_stage(model.compiled.program, "the compiled program")
        self.unit_of = {p.name: u for p in self.stage.places if (u := _unit(p)) is not None}

    @property
    def units(self) -> tuple[str, ...]:
        """Those whose tensors the program has."""
        return tuple(dict.fromkeys(self.unit_of.values()))

    def run(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """One run of the program."""
        found = self.stage.fetch(self._sample(args), list(self.unit_of))
        at = {p.name: p for p in self.stage.places}
        return {self.unit_of[n]: _real(at[n], v) for n, v in found.items()}

    def outputs(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """The results."""
        return named_outputs(self.model.interface, self.model(*args))

    def own(self, args: tuple[Any, ...], given: Values) -> dict[str, Array]:
        """Every instruction on what was given."""

        def fitted(place: Place, like: Array) -> Array | None:
            want = given.get(self.unit_of.get(place.name, ""))
            if want is None:
                return None
            return Pair(place, Place(place.name, "", ()), None).fitted(want, like)

        found = {}
        for step in self.stage.walk(self._sample(args), fitted):
            unit = self.unit_of.get(step.place.name)
            if unit is not None and step.own is not None:
                found[unit] = _real(step.place, step.own)
        return found

    def _sample(self, args: tuple[Any, ...]) -> dict[str, Array]:
        interface = self.model.interface
        leaves = interface.leaves(args)
        names = [name for name, _, _ in interface.inputs]
        wanted = {info.name for info in self.model.session.inputs}
        feeds = {n: t.detach().cpu().numpy() for n, t in zip(names, leaves, strict=True)}
        return {n: v for n, v in feeds.items() if n in wanted}


def _unit(place: Place) -> str | None:
    """The unit whose result a tensor is: `neck/quantize`, or the reals of a 32-bit accumulator (`head/Conv`)."""
    if place.name.endswith("/quantize"):
        return place.name.removesuffix("/quantize")
    if place.dtype == "f32" and place.op in {"transpose", "dequantize", "reshape"}:
        owners = {n.rpartition("/")[0] for n in place.nodes}
        kinds = {n.rpartition("/")[2].rstrip("_0123456789") for n in place.nodes}
        if len(owners) == 1 and kinds <= {"Conv", "ConvTranspose", "MatMul", "Add", "Gemm"}:
            return next(iter(owners))
    return None


def _real(place: Place, value: Array) -> Array:
    """As `Dequantize` makes them: in float32, which is what the exact forward's reals are."""
    real = to_reals(value, place.quant).astype(np.float32) if value.dtype.kind in "iu" else value
    return np.moveaxis(real, -1, 1) if place.channels_last and real.ndim > 2 else real
