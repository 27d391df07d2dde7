"""A PyTorch model by PyTorch as a stage: `torch`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hbc.frontend import open_torch
from hbc.options import CompileOptions

from .facts import Facts
from .stage import Array, Place, Sample
from .stepped import Key, Stepped, Unit


def torch_stage(model: Path, options: CompileOptions, facts: Facts) -> Stepped:
    """The model's operators as units, by name; what is fake-quantised has its integers beside its reals."""
    made = open_torch(model, options.shape_map, options.example, options.output_names)
    records = made.recorded.records
    refs = {r.name: r for record in records for r in record.results} | {r.name: r for r in made.recorded.inputs}
    units: list[Unit] = []
    at: dict[Key, Place] = {}
    outputs = {a.name: name for name, a in made.recorded.outputs if getattr(a, "shape", None) is not None}
    for record in records:
        names = made.names(record)
        read = made.reads(record)
        units.append(Unit(tuple(read), tuple(names), partial(_run, made, record, read, refs)))
        for name in names:
            quant = refs[name].quant if name in refs else made.grids[name.removesuffix("_quantized")].quant
            at[name] = Place(outputs.get(name, name), record.op, (record.node,), quant=quant or facts.quant.get(name))

    def start(sample: Sample) -> dict[Key, Array]:
        return {r.name: np.asarray(sample[r.name]) for r in made.recorded.inputs}

    return Stepped("torch", "PyTorch, operator by operator", tuple(units), at, _no_constant, start)


def _run(made: Any, record: Any, read: Sequence[str], refs: dict[str, Any], arrays: list[Array | None]) -> list[Array]:
    values = {n: made.tensor(a, refs[n]) for n, a in zip(read, arrays, strict=True) if a is not None}
    return list(made.arrays(record, made.step(record, values)))


def _no_constant(key: Key) -> Array | None:
    raise AssertionError(key)
