"""What an import rule sees of its node: operands, attributes, and the means to build ops in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from onnx import AttributeProto, NodeProto

from hbc.diagnostics import NotTaken, UnknownSize
from hbc.ir.core import Value
from hbc.ir.location import NodeLoc
from hbc.ir.ops import Call, Const, Dequantize
from hbc.ir.ops.quant import quant_arrays
from hbc.ir.types import DType, TensorType
from hbc_runtime import numerics

from .building import Building
from .onnx_encode import encoded, renamed
from .onnx_infer import Inferred, infer
from .onnx_loops import loop_types
from .onnx_model import captured, domain_of, label
from .onnx_scope import Scope
from .onnx_tensors import DTYPES, dtype_name
from .problem import quoted

Results = Value | Sequence[Value]
Rule = Callable[["Node"], Results]


class Node(Building):
    """One ONNX node during the walk."""

    scope: Scope

    def __init__(self, scope: Scope, proto: NodeProto) -> None:
        self.scope = scope
        self.proto = proto
        self.op_type = proto.op_type
        self.domain = domain_of(proto)
        self.version = scope.source.versions.get(self.domain, 1)
        self.loc = NodeLoc(label(proto), proto.op_type, scope.source.file)
        self.attributes = {a.name: a for a in proto.attribute}

    # -- messages

    @property
    def where(self) -> str:
        """The node as messages name it."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{self.scope.source.file}: node {quoted(self.loc.node)} ({kind}, opset {self.version})"

    # -- operands

    def has(self, index: int) -> bool:
        """True where operand `index` is given."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def wants(self, output: int) -> bool:
        """True where something reads output `output`."""
        return output < len(self.proto.output) and self.proto.output[output] in self.scope.read

    def name(self, index: int) -> str:
        """The tensor name of operand `index`; FrontendError where it is missing."""
        if not self.has(index):
            raise self.fail(f"input {index} is missing", hint="export the model again")
        return str(self.proto.input[index])

    def x(self, index: int = 0) -> Value:
        """Operand `index` as it is: f32, plain integers, or quantised integers."""
        return self.scope.value(self.name(index))

    def plain(self, index: int = 0) -> Value:
        """Operand `index` as numbers: integers lose what they stand for."""
        return self.stripped(self.x(index))

    def reals(self) -> list[Value] | None:
        """All given operands where every one is f32, else None."""
        values = [self.x(i) for i in range(len(self.proto.input)) if self.has(i)]
        return values if all(v.type.dtype is DType.F32 for v in values) else None

    def array(self, index: int) -> np.ndarray | None:
        """The values of operand `index` where they are known at import: a constant, or a dequantised one."""
        array = self.scope.array(self.name(index))
        return known_value(self.x(index)) if array is None else array

    def known_integers(self, index: int) -> tuple[int, ...] | None:
        """Operand `index` as a list of integers where it is a known one (shapes, axes, pads)."""
        array = self.array(index)
        return None if array is None else tuple(int(v) for v in np.asarray(array).reshape(-1))

    # -- attributes

    def _attribute(self, name: str, kind: int) -> AttributeProto | None:
        a = self.attributes.get(name)
        if a is not None and a.type != kind:
            raise self.fail(f"attribute {quoted(name)} has the wrong type", hint="export the model again")
        return a

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        a = self._attribute(name, AttributeProto.INT)
        return default if a is None else int(a.i)

    def number(self, name: str, default: float) -> float:
        """A float attribute (float32 in the file)."""
        a = self._attribute(name, AttributeProto.FLOAT)
        return default if a is None else float(a.f)

    def text(self, name: str, default: str = "") -> str:
        """A string attribute."""
        a = self._attribute(name, AttributeProto.STRING)
        return default if a is None else a.s.decode("utf-8", "replace")

    def ints(self, name: str) -> tuple[int, ...] | None:
        """An attribute that lists integers, or None where it is not given."""
        a = self._attribute(name, AttributeProto.INTS)
        return None if a is None else tuple(int(v) for v in a.ints)

    def floats(self, name: str) -> tuple[float, ...] | None:
        """An attribute that lists floats, or None where it is not given."""
        a = self._attribute(name, AttributeProto.FLOATS)
        return None if a is None else tuple(float(v) for v in a.floats)

    # -- what only ONNX Runtime runs

    def operand_names(self) -> list[str]:
        """The tensors that a call of this node reads: given inputs in order, then what its subgraphs capture."""
        return [name for name in self.proto.input if name] + list(captured(self.proto))

    def inferred(self) -> list[Inferred | None]:
        """Result types by ONNX's own inference; the file's own statements fill what it leaves open."""
        known = {name: self.scope.known(name) for name in self.operand_names()}
        found: list[Inferred | None] = [None] * len(self.proto.output)
        if self.domain in {"", "ai.onnx.ml"}:
            found = infer(self.proto, known, self.scope.source.versions)
        if self.op_type == "Loop" and not self.domain:
            found = loop_types(self.proto, known, self.scope.source.versions, found)
        for i, name in enumerate(self.proto.output):
            stated, result = self.scope.declared.get(name), found[i]
            if stated is not None and (
                result is None or (result.shape is None and result.elem_type == stated.elem_type)
            ):
                found[i] = Inferred(stated.elem_type, stated.shape)
        return found

    def call(self, types: Sequence[Inferred | None] | None = None, *, reason: str = "", hint: str = "") -> list[Value]:
        """The node as a `call`, one Value per output that has a name. Types are inferred where they are not given.

        `reason` and `hint` are what a report says of it: what this node has that no instruction does, and what to try.
        FrontendError where a result's type isn't known before running, or is none that the runtime has.
        """
        found = self.inferred() if types is None else types
        for i, result in enumerate(found):
            if (result is None or result.shape is None) and not self.wants(i):
                self.proto.output[i] = ""  # an optional result that nobody reads
        outputs = [name for name in self.proto.output if name]
        results = [self._result_type(n, r) for n, r in zip(self.proto.output, found, strict=True) if n]
        operands = [self.scope.onnx_value(n, self.loc) for n in self.operand_names()]
        op = self.scope.op(
            Call, *operands, loc=self.loc, types=results, op_type=self.op_type, domain=self.domain, opset=self.version,
            node_proto=encoded(self._positional()),
            reason=reason, hint=hint,
        )  # fmt: skip
        return [self.scope.narrowed(n, v, self.loc) for n, v in zip(outputs, op.results, strict=True)]

    def _result_type(self, name: str, result: Inferred | None) -> TensorType:
        if result is None or result.shape is None:
            why = f"the shape of its result {quoted(name)} depends on the data, or is not stated in the model"
            hint = "cut the model before this node and do the rest outside, or state the shape (value_info)"
            raise self.fail("the size of a result isn't known before running", why=why, hint=hint, kind=UnknownSize)
        if result.elem_type not in DTYPES:
            what = f"its result {quoted(name)} has element type {dtype_name(result.elem_type)}, which isn't taken"
            raise self.fail(what, hint="convert the model to float32 or to 8 and 16 bit integers", kind=NotTaken)
        return TensorType(result.shape, DTYPES[result.elem_type])

    def _positional(self) -> NodeProto:
        """A copy whose tensors are called by position (`operand:0`, `result:0`): the export names them anew."""
        captured_as = {name: f"operand:{i}" for i, name in reversed(list(enumerate(self.operand_names())))}
        given, made = count(), count()
        inputs = [f"operand:{next(given)}" if name else "" for name in self.proto.input]
        outputs = [f"result:{next(made)}" if name else "" for name in self.proto.output]
        return renamed(self.proto, inputs, outputs, captured_as)


def known_value(value: Value) -> np.ndarray | None:
    """The numbers of a constant, or of a dequantised constant; None for anything computed."""
    const = value.defined_by(Const)
    if const is not None:
        return np.asarray(const.value)
    dequantize = value.defined_by(Dequantize)
    source = None if dequantize is None else dequantize.x.defined_by(Const)
    if source is None:
        return None
    quant = source.out.type.quant
    assert quant is not None, source
    return numerics.dequantize(source.value, *quant_arrays(quant, source.out.type.rank))
