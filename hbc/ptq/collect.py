"""Calibration: the float model runs over the samples, and every tensor to quantise is watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hbc.calibration import Statistics
from hbc.calibration.grid import Array
from hbc.diagnostics import BadCalibration, NotFinite, error
from hbc.ir.core import Module, Value
from hbc.ir.ops import Const
from hbc.words import plural
from hbc_runtime.binding import bind
from hbc_runtime.errors import InputMismatch
from hbc_runtime.march import border_rounding
from hbc_runtime.program import TensorInfo
from hbc_runtime.types import Layout

from .errors import QuantizeError
from .runner import Runner, in_pieces

Sample = Mapping[str, Array]
OnStep = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much


def inputs_of(module: Module) -> list[TensorInfo]:
    """The model's inputs, for the readers of samples."""
    return [TensorInfo(str(a.name), a.type.shape, a.type.dtype, Layout.ANY, None, 0) for a in module.graph.args]


def checked(module: Module, samples: Sequence[Mapping[str, object]]) -> list[Sample]:
    """The samples as the model reads them.

    QuantizeError where there are none or one holds NaN or an infinity, InputMismatch where one doesn't fit.
    """
    if not samples:
        hint = "--calib FOLDER with .npz, .npy, .png or .jpg files: 30 to 300 samples that are like those in use"
        raise error(QuantizeError, "there are no samples to calibrate with", hint=hint, kind=BadCalibration)
    infos = inputs_of(module)
    made: list[Sample] = []
    for number, sample in enumerate(samples):
        try:
            arrays = bind(infos, sample, border_rounding(module.march, module.arith))  # type: ignore[arg-type]
        except InputMismatch as err:
            raise InputMismatch(f"sample {number} of {len(samples)}: {err}") from err
        for info, array in zip(infos, arrays, strict=True):
            _require_finite(array, f"sample {number} holds {{}} in input {info.name!r}")
        made.append({i.name: a for i, a in zip(infos, arrays, strict=True)})
    return made


def _require_finite(array: Array, title: str) -> None:
    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return
    wrong = int((~np.isfinite(array)).sum())
    kind = "NaN" if bool(np.isnan(array).any()) else "an infinity"
    hint = "check how the sample was made: a division by zero, an uninitialised array, a wrong dtype"
    why = f"{wrong} of {plural(array.size, 'element')}"
    raise error(QuantizeError, title.format(kind), why=why, hint=hint, kind=NotFinite)


def collect(
    module: Module, values: Sequence[Value], samples: Sequence[Sample], on_step: OnStep | None = None, threads: int = 1
) -> dict[Value, Statistics]:
    """Statistics of `values` of the float `module` over all samples; constants are their own."""
    found = {v: Statistics() for v in values}
    for v in values:
        if isinstance(v.op, Const):
            found[v].add(v.op.value)
    args = [v for v in values if v.op is None]
    computed = [v for v in values if v.op is not None and not isinstance(v.op, Const)]
    runner = Runner(module, computed, optimised=True, threads=threads)
    pieces = list(in_pieces(computed))
    for number, sample in enumerate(samples):
        for arg in args:
            found[arg].add(sample[str(arg.name)])
        for piece in pieces:
            for value, array in runner.run(sample, piece).items():
                _add(found[value], array, value, number)
        if on_step is not None:
            on_step("calibrating", number + 1, len(samples))
    return found


def _add(statistics: Statistics, array: Array, value: Value, number: int) -> None:
    if bool(np.isnan(array).any()):
        made = f"made by node {value.op.node!r}" if value.op is not None else "an input"
        title = f"the float model computes NaN in tensor {value.name!r}"
        why = f"for sample {number}; {made}"
        hint = "check that the sample is one that the model takes, and that the float model is sound"
        raise error(QuantizeError, title, why=why, hint=hint, kind=NotFinite)
    statistics.add(array)
