"""What the walk has learned so far: the graph under construction, and what every tensor name stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from hbc.diagnostics import TooLarge
from hbc.ir.core import Value
from hbc.ir.location import Loc
from hbc.ir.ops import Cast, Const
from hbc.ir.types import DType, TensorType

from .building import GraphScope
from .onnx_failures import Failures, MissingOperandError
from .onnx_infer import Known
from .onnx_model import Source
from .onnx_tensors import ELEM_TYPES, decode, packed_limits
from .problem import problem, quoted

ALL_CONSTANTS = 1 << 32  # bytes of all constants of a model together


class Scope(GraphScope):
    """Tensor names → IR values or known arrays.

    Reals are float32 inside the IR. `wide` remembers which tensors the model holds as float16 or float64, so that
    their dtype comes back at the border and in ops that ONNX Runtime runs.
    """

    def __init__(self, source: Source, failures: Failures) -> None:
        super().__init__(source.file)
        self.source = source
        self.values: dict[str, Value] = {}
        self.wide: dict[str, DType] = {}
        self.originals: dict[str, Value] = {}  # those of them that exist in that dtype: inputs, and results of calls
        self.failures = failures
        self.limits: dict[str, tuple[int, int]] = {}  # of constants whose type has fewer than 8 bits
        self.read: set[str] = set()  # every tensor that a node or an output of the graph reads
        self.declared: dict[str, Known] = {}  # static types that the file itself states: the last resort of inference
        self.folded = 0  # elements of folded results so far
        self._decoded = 0  # bytes of initializers so far
        self._arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, TensorProto] = {}
        self.integers: dict[str, Any] = {}  # of folded reals that were integers (`onnx_weight_only`)
        self.notes: list[str] = []  # what was changed on the way in, by node: for the report
        self.makers = {name: node for node in source.nodes for name in node.output if name}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in source.nodes:
            for name in dict.fromkeys(node.input):
                self._readers.setdefault(name, []).append(node)

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes of the graph that read a tensor, each once."""
        return self._readers.get(name, [])

    # -- constants

    def add_initializers(self, tensors: Iterable[TensorProto]) -> None:
        """Make `tensors` known; they are decoded when they are first used."""
        self._tensors.update((t.name, t) for t in tensors)

    def set_array(self, name: str, array: np.ndarray) -> None:
        """Make a folded result known."""
        self._arrays[name] = array

    def array(self, name: str) -> np.ndarray | None:
        """The tensor's values where they are known at import."""
        if name not in self._arrays and name in self._tensors:
            if self._decoded <= ALL_CONSTANTS:
                array = decode(self._tensors[name], self.source.folder, self.source.file)
                self._decoded += array.nbytes
            if self._decoded > ALL_CONSTANTS:
                why = "many tensors may name the same bytes of one file"
                raise problem(
                    f"the constants are beyond {ALL_CONSTANTS >> 30} GiB",
                    where=self.source.file,
                    why=why,
                    kind=TooLarge,
                )
            limits = packed_limits(self._tensors[name].data_type)
            if limits is not None:
                self.limits[name] = limits
            self._arrays[name] = array
        return self._arrays.get(name)

    # -- tensors

    def alias(self, name: str, of: str) -> None:
        """`name` is another name of the tensor `of`."""
        array = self.array(of)
        if array is not None:
            self._arrays[name] = array
        if of in self.values:
            self.values[name] = self.values[of]
        if of in self.wide:
            self.wide[name] = self.wide[of]
        if of in self.originals:
            self.originals[name] = self.originals[of]
        if of in self.limits:
            self.limits[name] = self.limits[of]

    def value(self, name: str) -> Value:
        """The IR value of a tensor; a known array becomes a constant."""
        if self.failures.touch([name]):
            raise MissingOperandError(f"{quoted(name)} could not be made")
        if name not in self.values:
            array = self.array(name)
            if array is None:
                where = f"{self.source.file}: tensor {quoted(name)}"
                raise problem("a tensor is read before anything defines it", where=where, hint="export the model again")
            if array.dtype in (np.float16, np.float64):
                self.wide[name] = DType.of(array.dtype)
            self.values[name] = self.typed_const(name, None)
        return self.values[name]

    def known(self, name: str) -> Known:
        """What inference may know of a tensor."""
        array = self.array(name)
        if array is not None:
            return Known(ELEM_TYPES[DType.of(array.dtype)], array.shape, array)
        t = self.value(name).type
        return Known(ELEM_TYPES[self.wide.get(name, t.dtype)], t.shape)

    def onnx_value(self, name: str, loc: Loc) -> Value:
        """The tensor as ONNX Runtime must see it: plain integers, and float16 or float64 where the model says so."""
        value, array = self.value(name), self.array(name)
        if name in self.originals:
            return self.originals[name]
        if name in self.wide and array is not None:
            type_ = TensorType(array.shape, self.wide[name])
            return self.op(Const, loc=loc, type=type_, name=name, value=array.astype(type_.dtype.numpy)).out
        if name in self.wide:
            return self.op(Cast, value, loc=loc, to=self.wide[name]).out
        return self.stripped(value, loc)

    def narrowed(self, name: str, value: Value, loc: Loc) -> Value:
        """A result of ONNX Runtime's as the IR carries it: float16 and float64 as f32. With open sizes it stays."""
        if value.type.is_dynamic or value.type.dtype not in {DType.F16, DType.F64}:
            return value
        self.wide[name], self.originals[name] = value.type.dtype, value
        return self.op(Cast, value, loc=loc, to=DType.F32).out
