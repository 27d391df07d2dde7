"""Batch norm, look-up tables, and calls of ops that only the CPU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import DType, TensorType
from .shapes import NO_CLIP, along_channels, given


@define_op("batch_norm")
class BatchNorm(Op):
    """x · multiplier + offset per channel (axis 1).

    The importer folds ONNX's five parameters into these two f32 constants.

    (C1) `multiplier` and `offset` have one entry per channel.
    """

    x: Value = operand()
    multiplier: Value = operand()
    offset: Value = operand()
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        return [self.x.type]

    def verify(self) -> None:
        ok = self.multiplier.type.shape == self.offset.type.shape == (self.x.type.shape[1],)
        self.require(ok, "C1", f"x is {self.x.type.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x, multiplier, offset = (given(v).astype(np.float64) for v in operands)
        y = x * along_channels(multiplier, x.ndim) + along_channels(offset, x.ndim)
        return [np.clip(y, *self.clip).astype(np.float32)]


@define_op("lut")
class Lut(Op):
    """table[x + 128] (NUMERICS D7).

    (C1) x is i8, the table has 256 entries of the result's dtype.
    """

    x: Value = operand()
    table: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, self.table.type.dtype)]

    def verify(self) -> None:
        x, table, out = self.x.type, self.table.type, self.out.type
        ok = x.dtype is DType.I8 and table.shape == (256,) and table.dtype is out.dtype
        self.require(ok, "C1", f"{x} by {table} to {out}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x, table = map(given, operands)
        return [table[x.astype(np.int64) + 128]]


@define_op("segment_lut")
class SegmentLut(Op):
    """An i16 function by segments of 64 entries with linear interpolation (NUMERICS D8); see isa.SegmentLut.

    (C1) x is i16.
    """

    x: Value = operand()
    segments: Value = operand()
    table: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, DType.I16)]

    def verify(self) -> None:
        self.require(self.x.type.dtype is DType.I16, "C1", f"x is {self.x.type.dtype.text}")


@define_op("call")
class Call(Op):
    """An ONNX node that has no class here: it runs on the CPU, by ONNX Runtime.

    `node_proto` is the serialised NodeProto (base64, with attributes and with empty names for missing optional
    inputs); `opset` the version of its domain in the source model. Operands are the node's inputs that are not missing,
    in order. `reason` says why the importer left it to the CPU, and `hint` what to try, where it knows better than "no
    BPU form".
    """

    xs: tuple[Value, ...] = operand(variadic=True)
    op_type: str = attr()
    domain: str = attr(default="")
    opset: int = attr()
    node_proto: str = attr()
    reason: str = attr(default="")
    hint: str = attr(default="")

    @property
    def versions(self) -> Mapping[str, int]:
        """The opset of each domain that the node is written in."""
        return {self.domain: self.opset}

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        msg = f"{self.op_type} ({self.node!r}) runs on the CPU only; the interpreter was given no CPU engine"
        raise LookupError(msg)


@define_op("call_graph")
class CallGraph(Op):
    """ONNX nodes between which pass tensors whose sizes depend on the data, or sequences: no type here stands for them.
    They run on the CPU, by ONNX Runtime, as one.

    `graph_proto` is the serialised GraphProto (base64); its inputs are `operand:0`, `operand:1`, …, its outputs
    `result:0`, …, in the order of operands and results. `domains` and `opsets` say in which versions its nodes are
    written, `reason` why they are here. A result that the graph returns, and that no op reads, may have sizes that are
    known only after a run.

    (C1) There is one opset per domain.
    """

    xs: tuple[Value, ...] = operand(variadic=True)
    domains: tuple[str, ...] = attr()
    opsets: tuple[int, ...] = attr()
    graph_proto: str = attr()
    reason: str = attr(default="")

    @property
    def versions(self) -> Mapping[str, int]:
        """The opset of each domain that the nodes are written in."""
        return dict(zip(self.domains, self.opsets, strict=True))

    def verify(self) -> None:
        ok = len(self.domains) == len(set(self.domains)) == len(self.opsets)
        self.require(ok, "C1", f"domains {self.domains}, opsets {self.opsets}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        msg = f"the nodes from {self.node!r} on run on the CPU only; the interpreter was given no CPU engine"
        raise LookupError(msg)


CALLS = (Call, CallGraph)  # what only ONNX Runtime runs
