"""The framework that a model comes from, as something to compare its program with: ONNX Runtime, or PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from hbc.backend.cpu.probe import Probe, ProbeError, inner_tensors
from hbc.frontend import is_torch_path, open_torch
from hbc.options import CompileOptions

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]


class Reference(Protocol):
    """A model by its own framework. `inner`: the names of the tensors inside."""

    name: str
    outputs: list[str]

    @property
    def inner(self) -> list[str]:
        """Every named tensor that the model computes, in running order."""

    def run(self, sample: Sample) -> dict[str, Array]:
        """The outputs."""

    def optimised(self, sample: Sample) -> dict[str, Array] | None:
        """The outputs after the framework's own optimiser; None where it has none, or that doesn't take the model."""

    def inside(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """The tensors of these names."""


def reference_of(model: Path, options: CompileOptions, threads: int = 1) -> Reference:
    """The framework of a model file. Raises ProbeError, FrontendError where it doesn't run it."""
    return TorchReference(model, options) if is_torch_path(model) else OnnxReference(model, threads)


class OnnxReference:
    """ONNX Runtime, with the optimiser off and on."""

    name = "ONNX Runtime"

    def __init__(self, model: Path, threads: int) -> None:
        self.model, self.threads = model, threads
        self._plain = Probe(model, optimised=False, threads=threads)
        self.outputs = self._plain.outputs

    @cached_property
    def _optimised(self) -> Probe | None:
        """None where only the optimiser refuses the model: of opset 21, for one, it makes pools of other types."""
        try:
            return Probe(self.model, optimised=True, threads=self.threads)
        except ProbeError:
            return None

    @property
    def inner(self) -> list[str]:
        """Of the file, as it is."""
        return inner_tensors(self.model)

    def run(self, sample: Sample) -> dict[str, Array]:
        """By the session without optimiser."""
        return self._plain.run(sample)

    def optimised(self, sample: Sample) -> dict[str, Array] | None:
        """By the session with it."""
        return None if self._optimised is None else self._optimised.run(sample)

    def inside(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """By a session that has them as further outputs."""
        return Probe(self.model, optimised=False, threads=self.threads, expose=names).run(sample)


class TorchReference:
    """PyTorch, operator by operator."""

    name = "PyTorch"

    def __init__(self, model: Path, options: CompileOptions) -> None:
        self._model = open_torch(model, options.shape_map, options.example, options.output_names)
        self.outputs = self._model.outputs

    @property
    def inner(self) -> list[str]:
        """The results of its operators, and the integers of those that are fake-quantised."""
        return self._model.inner

    def run(self, sample: Sample) -> dict[str, Array]:
        """One run."""
        return self._model.run(sample)

    def optimised(self, sample: Sample) -> dict[str, Array] | None:
        """It has none."""
        return None

    def inside(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """One run that keeps them."""
        return self._model.run(sample, names)
