"""A PyTorch model run by PyTorch, operator by operator over its records: what its program is compared with.

Tensors have the names that they have in the IR. A fake-quantised tensor is there twice: as reals, and under its name
with `_quantized` behind it as the integers of its grid. PyTorch's own quantised tensors are their integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.example import Example
from hbc.ir.core import Module
from hbc.ir.ops import Quantize
from hbc.ir.types import DType, Quant

from .files import ModelFile
from .torch_api import quiet, require_torch
from .torch_import import module_of
from .torch_model import record_file
from .torch_node import as_array, reads
from .torch_ops.quant import QUANTIZED
from .torch_records import Record, Recorded, Ref, substituted

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Grid:
    """The integers of a fake-quantised tensor."""

    quant: Quant
    dtype: DType

    def integers(self, reals: Array) -> Array:
        """PyTorch's integers, exact: its reals are (q − zero point) · scale."""
        shape = [-1 if i == self.quant.axis else 1 for i in range(reals.ndim)] if self.quant.axis is not None else []
        scale = np.asarray(self.quant.scale, np.float64).reshape(shape)
        zero = np.asarray(self.quant.zero_point, np.int64).reshape(shape)
        return (np.rint(reals.astype(np.float64) / scale).astype(np.int64) + zero).astype(self.dtype.numpy)


class TorchReference:
    """One recorded model; `grids`: by the name of a fake-quantised tensor."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.torch = require_torch(recorded.file)
        self.grids = _grids(module_of(recorded))
        self.outputs = [name for name, _ in recorded.outputs]
        self.inner = [n for r in recorded.records for n in self.names(r)]

    @staticmethod
    def of(file: ModelFile, examples: Sequence[Example], output_names: Sequence[str] = ()) -> TorchReference:
        """The model of a file. FrontendError where it can't be taken in."""
        return TorchReference(record_file(file, examples, output_names))

    def names(self, record: Record) -> list[str]:
        """The tensors that an operator gives: its results, then the integers of those that have a grid."""
        names = [r.name for r in record.results]
        return [*names, *(f"{n}{QUANTIZED}" for n in names if n in self.grids)]

    @staticmethod
    def reads(record: Record) -> list[str]:
        """The computed tensors that an operator reads, each once."""
        return list(dict.fromkeys(reads(record)))

    def run(self, sample: Mapping[str, Array], inner: Collection[str] = ()) -> dict[str, Array]:
        """The outputs by name, and the tensors of `inner`, of one run."""
        wanted = set(inner)
        found: dict[str, Array] = {}
        values: dict[str, Any] = {r.name: self.tensor(sample[r.name], r) for r in self.recorded.inputs}
        last = {name: i for i, record in enumerate(self.recorded.records) for name in reads(record)}
        kept = {a.name for _, a in self.recorded.outputs if isinstance(a, Ref)}
        for i, record in enumerate(self.recorded.records):
            made = self.step(record, values)
            values.update((r.name, t) for r, t in zip(record.results, made, strict=True))
            if not wanted.isdisjoint(self.names(record)):
                arrays = zip(self.names(record), self.arrays(record, made), strict=True)
                found.update((n, a) for n, a in arrays if n in wanted)
            for name in [n for n in reads(record) if last[n] == i and n not in kept]:
                values.pop(name, None)
        outputs = {name: as_array(substituted(arg, values)) for name, arg in self.recorded.outputs}
        return found | outputs

    def step(self, record: Record, values: Mapping[str, Any]) -> list[Any]:
        """The results of one operator on torch.Tensors by name."""
        given = [substituted(arg, values) for arg in record.args.values()]
        if record.op in _VIEWS:  # the `contiguous` before it left no record
            given[0] = given[0].contiguous()
        with quiet(), self.torch.no_grad():
            result = record.call(given)
        return [t for t in _flat(result) if isinstance(t, self.torch.Tensor)]

    def arrays(self, record: Record, made: Sequence[Any]) -> list[Array]:
        """The results as NumPy has them, then the integers of those that have a grid; in the order of `names`."""
        arrays = [as_array(t) for t in made]
        grids = [(a, self.grids.get(r.name)) for a, r in zip(arrays, record.results, strict=True)]
        return [*arrays, *(g.integers(a) for a, g in grids if g is not None)]

    def tensor(self, array: Array, ref: Ref) -> Any:
        """An array as the torch.Tensor that `ref` is."""
        made = self.torch.from_numpy(np.array(array, ref.dtype.numpy).reshape(ref.shape))
        if ref.quant is None:
            return made
        with quiet():
            return self.torch._make_per_tensor_quantized_tensor(made, ref.quant.scale[0], ref.quant.zero_point[0])  # noqa: SLF001


_VIEWS = {"aten::view", "aten::view_as", "aten::_unsafe_view"}


def _grids(module: Module) -> dict[str, Grid]:
    found = {}
    for op in module.graph.walk(Quantize):
        name, t = op.out.name or "", op.out.type
        if name.endswith(QUANTIZED) and t.quant is not None:
            found[name.removesuffix(QUANTIZED)] = Grid(t.quant, t.dtype)
    return found


def _flat(value: Any) -> list[Any]:
    return [v for item in value for v in _flat(item)] if isinstance(value, (list, tuple)) else [value]
