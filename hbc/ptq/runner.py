"""Float and quantised modules run by ONNX Runtime, a few inner tensors at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hbc.backend.cpu.export_model import export_model
from hbc.backend.cpu.probe import ProbeError, make_session
from hbc.calibration.grid import Array
from hbc.diagnostics import error
from hbc.ir.core import Module, Value
from hbc.words import printable

from .errors import QuantizeError
from .read_config import EXTRA

HINT = "calibration runs the float model in ONNX Runtime: check that it runs there, with one of your samples"

BUDGET = 1 << 28  # bytes of inner tensors that one run hands out


class Runner:
    """A module as a session with `exposed` values as further outputs.

    `optimised`: with ONNX Runtime's optimiser, which may move the last bits; without it every node is one kernel.
    Raises QuantizeError where ONNX Runtime isn't installed or doesn't run the model, EmitError where an op has no form.
    """

    def __init__(
        self, module: Module, exposed: Iterable[Value] = (), *, optimised: bool = False, threads: int = 1
    ) -> None:
        self.exposed = tuple(dict.fromkeys(exposed))
        made = export_model(module, expose=self.exposed)
        self.names = {v: made.names[v] for v in self.exposed}
        self.outputs = [o.name for o in module.graph.outputs]
        self.where = Path(printable(module.metadata.get("source", "the model")))
        try:
            self.session = make_session(self.where, made.to_bytes(), optimised=optimised, threads=threads)
        except ProbeError as err:
            d = err.diagnostic
            if isinstance(err.__cause__, ImportError):
                raise error(QuantizeError, d.title, why="calibration runs the float model in it", hint=EXTRA) from err
            raise error(QuantizeError, d.title, where=str(self.where), why=d.why, hint=HINT) from err

    def run(self, sample: Mapping[str, Array], values: Sequence[Value]) -> dict[Value, Array]:
        """These exposed values for one sample."""
        found = self._run([self.names[v] for v in values], sample)
        return dict(zip(values, found, strict=True))

    def results(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs for one sample; those that are arrays of numbers."""
        found = self._run(self.outputs, sample)
        return {n: a for n, a in zip(self.outputs, found, strict=True) if isinstance(a, np.ndarray)}

    def _run(self, names: Sequence[str], sample: Mapping[str, Array]) -> list[Any]:
        if not names:
            return []
        try:
            return list(self.session.run(list(names), dict(sample)))
        except Exception as err:  # ONNX Runtime raises classes of its own, without a common base
            why = " ".join(str(err).split())[:400]
            title = "ONNX Runtime could not run the model on a sample"
            raise error(QuantizeError, title, where=str(self.where), why=why, hint=HINT) from err


def in_pieces(values: Sequence[Value], budget: int = BUDGET) -> Iterator[list[Value]]:
    """The values in lists that hold at most `budget` bytes each; a larger value is alone."""
    piece: list[Value] = []
    room = budget
    for value in values:
        size = 0 if value.type.is_dynamic else value.type.nbytes
        if piece and size > room:
            yield piece
            piece, room = [], budget
        piece.append(value)
        room -= size
    if piece:
        yield piece
