"""Keeps feature maps in NHWC between the instructions that need it, so that their transposes cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.ops import BPU_OPS, Const
from hbc.ir.types import TensorType, remap_axis
from hbc_runtime import isa

from .base import Pass, Target
from .move_chains import must_copy

TO_NHWC = (0, 2, 3, 1)  # perm of a transpose from the model's NCHW
TO_NCHW = (0, 3, 1, 2)  # and of the one back
PLACE = {0: 0, 1: 3, 2: 1, 3: 2}  # where each axis of NCHW lies in NHWC

TRANSPOSE = BPU_OPS[isa.Transpose]
RESHAPE = BPU_OPS[isa.Reshape]
DEQUANTIZE = BPU_OPS[isa.Dequantize]

Attrs = dict[str, Any]


@dataclass(frozen=True)
class AssignLayout(Pass):
    """Re-create rank-4 `bpu.*` ops between spatial instructions in NHWC; transpose only where NCHW is asked for.

        %a = bpu.conv2d %x                           %a = bpu.conv2d %x
        %b = bpu.transpose %a {perm = [0, 3, 1, 2]}  %d = bpu.lut %a, %table
        %c = bpu.lut %b, %table                   →  %e = bpu.conv2d %d
        %d = bpu.transpose %c {perm = [0, 2, 3, 1]}
        %e = bpu.conv2d %d

    Spatial instructions arrive with a transpose on each operand and on the result (lowering puts them there). One walk
    in order carries, for every NCHW value that has one, its NHWC twin. An op whose operands have twins is re-created on
    them where that moves no more bytes than bringing them back: axes, slices, pads and per-channel scales follow,
    constants are transposed here, other operands by a new transpose. Readers that need the model's order (reshape,
    matmul, CPU ops, the outputs) read a transpose of the twin, made once. `canonicalize` and `dce` run behind it.
    """

    name: ClassVar[str] = "assign-layout"

    def run(self, module: Module, target: Target) -> int:
        return _Walk(module.graph).run()


# ---- what may be re-created, and how its attributes follow


def _nothing(attrs: Attrs) -> Attrs:
    return attrs


def _axis(attrs: Attrs) -> Attrs:
    return {**attrs, "axis": PLACE.get(attrs["axis"], attrs["axis"])}  # −1: per tensor


def _axes(attrs: Attrs) -> Attrs:
    return {**attrs, "axes": tuple(sorted(PLACE[a] for a in attrs["axes"]))}


def _slice(attrs: Attrs) -> Attrs:
    return {**attrs, "starts": permuted(attrs["starts"]), "steps": permuted(attrs["steps"])}


def _pads(attrs: Attrs) -> Attrs:
    return {**attrs, "pads": permuted(attrs["pads"][:4]) + permuted(attrs["pads"][4:])}


FOLLOW: dict[type[Op], Callable[[Attrs], Attrs]] = {
    BPU_OPS[instruction]: rule
    for instruction, rule in {
        isa.Quantize: _axis,
        isa.Dequantize: _axis,
        isa.FlipSign: _nothing,
        isa.Requantize: _axis,
        isa.Add: _nothing,
        isa.Mul: _nothing,
        isa.Maximum: _nothing,
        isa.Minimum: _nothing,
        isa.Clamp: _nothing,
        isa.Lut: _nothing,
        isa.SegmentLut: _nothing,
        isa.ReduceSum: _axes,
        isa.ReduceMax: _axes,
        isa.ReduceMin: _axes,
        isa.ArgMax: _axis,
        isa.ArgMin: _axis,
        isa.Compare: _nothing,
        isa.Select: _nothing,
        isa.Logical: _nothing,
        isa.Concat: _axis,
        isa.Slice: _slice,
        isa.Pad: _pads,
        isa.Gather: _axis,
        isa.Expand: _nothing,
    }.items()
}  # the other operands (tables, scales, multipliers, indices) know no layout


def data_operands(op: Op) -> list[int]:
    """Positions of the operands that follow the layout: both sides of a binary op, all of a concat, else the first."""
    if op.OPERANDS[0].variadic:
        return list(range(len(op.operands)))
    named = [i for i, spec in enumerate(op.OPERANDS) if i == 0 or spec.name in {"lhs", "rhs"}]
    return [i for i in named if op.operands[i] is not None]


def permuted(values: Sequence[int]) -> tuple[int, ...]:
    """Four numbers, one per axis of NCHW, in the order of NHWC."""
    return tuple(values[p] for p in TO_NHWC)


def nhwc_type(t: TensorType) -> TensorType:
    """The type of the NHWC twin of an NCHW value."""
    return TensorType(permuted(t.shape), t.dtype, remap_axis(t.quant, PLACE))


def keeps_order(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """True for a transpose that only moves axes of size 1: the bytes stay where they are."""
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved)


def _move_bytes(t: TensorType) -> int:
    """Bytes that a change of layout of an NCHW value moves."""
    return 0 if keeps_order(t.shape, TO_NHWC) else t.nbytes


# ---- the walk


class _Walk:
    """New ops are put into the slot of the old op that they stand for, so that a CPU segment is never cut in two."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.slots: list[list[Op]] = [[] for _ in graph.ops]
        self.home = {r: i for i, op in enumerate(graph.ops) for r in op.results}
        self.twin: dict[Value, Value] = {}  # NCHW value → the same in NHWC
        self.virtual: set[Value] = set()  # NCHW values whose op is gone: they exist as twins only
        self.returned: dict[Value, Value] = {}  # virtual value → its twin transposed back
        self.dropped: list[Op] = []

    def run(self) -> int:
        for i, op in enumerate(self.graph.ops):
            if isinstance(op, TRANSPOSE) and op.out.type.rank == 4:
                self.transpose(i, op)
            elif type(op) in FOLLOW and op.out.type.rank == 4 and self.prefers_nhwc(op):
                self.recreate(i, op)
            else:
                self.keep(i, op)
        for n, output in enumerate(self.graph.outputs):
            self.graph.set_output(n, self.in_model_order(output.value))
        for op in self.dropped:
            op.drop_operands()
        assert not any(r.uses for op in self.dropped for r in op.results), "a dropped op is still read"
        self.graph.ops = [op for slot in self.slots for op in slot]
        return len(self.dropped)

    def keep(self, i: int, op: Op) -> None:
        """The op as it is, reading the model's order."""
        for n, v in enumerate(op.operands):
            if v in self.virtual:
                op.set_operand(n, self.in_model_order(v))
        self.slots[i].append(op)

    def transpose(self, i: int, op: Op) -> None:
        """Compose with the way to the twin; remember twins that transposes from and to NHWC show."""
        (x,) = op.operands
        assert x is not None
        perm: tuple[int, ...] = tuple(op.perm)  # type: ignore[attr-defined]
        twin = self.twin.get(x)
        if twin is not None:
            self.compose(i, op, twin, tuple(PLACE[p] for p in perm))
        elif perm == TO_NCHW:
            x.name = x.name or op.out.name
            self.twin[op.out] = x
            self.virtual.add(op.out)
            self.dropped.append(op)
        else:
            if perm == TO_NHWC:
                self.twin[x] = op.out
            self.slots[i].append(op)

    def compose(self, i: int, op: Op, twin: Value, perm: tuple[int, ...]) -> None:
        """`op` transposes a value whose twin is `twin`: transpose the twin instead (by `perm`), or read it as it is."""
        if perm == (0, 1, 2, 3) and must_copy(op, twin):
            self.graph.replace_uses(op.out, self.add(i, op, RESHAPE, [twin], {}, op.out.type, op.out.name))
        elif perm == (0, 1, 2, 3) and twin.type == op.out.type:
            self.graph.replace_uses(op.out, twin)
        elif op.operands[0] in self.virtual:
            new = self.add(i, op, TRANSPOSE, [twin], {"perm": perm}, op.out.type, op.out.name)
            self.graph.replace_uses(op.out, new)
        else:
            self.slots[i].append(op)
            return
        self.dropped.append(op)

    def prefers_nhwc(self, op: Op) -> bool:
        """Whether re-creating `op` in NHWC (and returning the result) moves no more bytes than returning operands."""
        values = [v for v in dict.fromkeys(op.operands[n] for n in data_operands(op)) if v is not None]
        if not any(v in self.twin for v in values):
            return False
        nhwc = sum(_move_bytes(v.type) for v in values if v not in self.twin and not isinstance(v.owner, Const))
        model = sum(_move_bytes(v.type) for v in values if v in self.virtual and v not in self.returned)
        if not any(type(user) in FOLLOW or isinstance(user, TRANSPOSE) for user in op.out.users):
            nhwc += _move_bytes(op.out.type)
        return nhwc <= model

    def recreate(self, i: int, op: Op) -> None:
        """`op` on the NHWC twins of its operands."""
        operands = list(op.operands)
        for n in data_operands(op):
            operands[n] = self.in_nhwc(i, op, operands[n])
        attrs = FOLLOW[type(op)](op.attrs)
        self.twin[op.out] = self.add(i, op, type(op), operands, attrs, nhwc_type(op.out.type), op.out.name)
        self.virtual.add(op.out)
        self.dropped.append(op)

    def in_nhwc(self, i: int, reader: Op, v: Value | None) -> Value:
        """The NHWC twin of `v`, made before `reader` where there is none."""
        assert v is not None
        if v not in self.twin:
            constant = v.defined_by(Const)
            if constant is not None:
                attrs = {"value": np.ascontiguousarray(constant.value.transpose(TO_NHWC))}
                self.twin[v] = self.add(i, constant, Const, [], attrs, nhwc_type(v.type), v.name)
            else:
                self.twin[v] = self.moved(i, reader, v, TO_NHWC, nhwc_type(v.type), None)
        return self.twin[v]

    def in_model_order(self, v: Value) -> Value:
        """`v`, or where only its twin exists the twin transposed back, at the place where `v` was made."""
        if v not in self.virtual:
            return v
        if v not in self.returned:
            assert v.op is not None
            twin = self.twin[v]
            twin.name = None if twin.name == v.name else twin.name  # the model's tensor is the one in its order
            self.returned[v] = self.moved(self.home[v], v.op, twin, TO_NCHW, v.type, v.name)
        return self.returned[v]

    def moved(self, i: int, like: Op, v: Value, perm: tuple[int, ...], t: TensorType, name: str | None) -> Value:
        """`v` transposed: a reshape where the bytes stay."""
        if keeps_order(v.type.shape, perm):
            return self.add(i, like, RESHAPE, [v], {}, t, name)
        return self.add(i, like, TRANSPOSE, [v], {"perm": perm}, t, name)

    def add(
        self,
        i: int,
        like: Op,
        cls: type[Op],
        operands: Sequence[Value | None],
        attrs: Attrs,
        t: TensorType,
        name: str | None,
    ) -> Value:
        """A new op in slot `i`, placed and located as `like`."""
        op = make_op(cls, operands, attrs, like.loc, [t], (name,))
        op.placement = like.placement
        self.slots[i].append(op)
        return op.out
