"""From the lowered, scheduled module to a `Program`."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from hbc.backend.cpu.acceptance import refused_together, require_accepted
from hbc.backend.cpu.export import export_segment
from hbc.diagnostics import EmitError, TooManyAxes, error
from hbc.ir import ops
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import node_names, source_nodes
from hbc.passes.plan_memory import storage_root
from hbc.words import shape_text
from hbc_runtime.hbm.layout import MAX_RANK
from hbc_runtime.program import (
    ALIGN,
    BpuSegment,
    BuildInfo,
    Constants,
    CpuSegment,
    Model,
    Program,
    Segment,
    Storage,
    Tensor,
    TensorInfo,
)
from hbc_runtime.types import Layout
from hbc_runtime.version import __version__


def emit_program(module: Module) -> Program:
    """One model in one program; deterministic: the same module gives an equal program."""
    options = tuple(sorted((k[7:], v) for k, v in module.metadata.items() if k.startswith("option.")))
    build = BuildInfo(
        producer=f"hbc {__version__}",
        source=module.metadata.get("source", ""),
        source_sha256=module.metadata.get("sha256", ""),
        options=options,
    )
    return Program(module.march, module.arith, build, (_Emitter(module).model(),))


class _Emitter:
    """Numbers values as tensors in the order in which they are met."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.graph: Graph = module.graph
        self.tensors: list[Tensor] = []
        self.index: dict[Value, int] = {}
        self.blob = bytearray()
        self.pool: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        self.out_index: dict[Value, int] = {}

    def model(self) -> Model:
        """The whole graph."""
        for i, arg in enumerate(self.graph.args):
            self._add(arg, Storage.INPUT, index=i)
        for i, out in enumerate(self.graph.outputs):
            if out.value.op is None or isinstance(out.value.op, ops.Const) or out.value in self.out_index:
                msg = f"output {out.name!r} has no buffer of its own; the place stage should have copied it"
                raise EmitError(msg)
            self.out_index[out.value] = i
        segments = self._segments()
        return Model(
            name=self.module.name,
            inputs=tuple(self._info(v.name or f"input{i}", v) for i, v in enumerate(self.graph.args)),
            outputs=tuple(self._info(o.name, o.value) for o in self.graph.outputs),
            tensors=tuple(self.tensors),
            segments=segments,
            arena_size=self.graph.arena_size or 0,
            constants=Constants(memoryview(bytes(self.blob))),
        )

    def _segments(self) -> tuple[Segment, ...]:
        """Every segment in order; one EmitError for all that can't be written."""
        made: list[Segment] = []
        failed: list[EmitError] = []
        for _, group in groupby(self._placed(), key=_segment_key):
            try:
                made.append(self._segment(list(group)))
            except EmitError as err:
                failed.append(err)
        if failed:
            raise refused_together(failed)
        return tuple(made)

    def _placed(self) -> list[Op]:
        return [op for op in self.graph.ops if not isinstance(op, ops.Const)]

    def _info(self, name: str, value: Value) -> TensorInfo:
        t = value.type
        layout = Layout.NCHW if t.rank == 4 else Layout.ANY  # the model's own layout stays at the border
        return TensorInfo(name, t.shape, t.dtype, layout, t.quant, self.index[value])

    def _add(self, value: Value, storage: Storage, *, offset: int = 0, index: int = 0) -> int:
        t = value.type
        if t.rank > MAX_RANK:
            raise _too_many_axes(value)
        self.index[value] = len(self.tensors)
        self.tensors.append(Tensor(value.name or "", t.shape, t.dtype, storage, offset, index, t.quant))
        return self.index[value]

    def _tensor(self, value: Value | None) -> int:
        """The index of a value's tensor, made on first sight; −1 for a missing operand."""
        if value is None:
            return -1
        if value in self.index:
            return self.index[value]
        const = value.defined_by(ops.Const)
        if const is not None:
            self.index[value] = self._constant(value, const.value)
            return self.index[value]
        if value in self.out_index:
            return self._add(value, Storage.OUTPUT, index=self.out_index[value])
        root = storage_root(value)
        if root is not value:  # a reshape in place: its operand's bytes, wherever they are
            base = self.tensors[self._tensor(root)]
            return self._add(value, base.storage, offset=base.offset, index=base.index)
        if value.offset is None:
            msg = f"{value.name or value!r} has no place in the arena"
            raise EmitError(msg)
        return self._add(value, Storage.ARENA, offset=value.offset)

    def _constant(self, value: Value, array: np.ndarray) -> int:
        """A constant tensor; equal bytes are stored once (parameters without a name or scale share a tensor too)."""
        data = np.ascontiguousarray(array).tobytes()
        key = (str(array.dtype), array.shape, data)
        if key not in self.pool:
            self.blob.extend(bytes(-len(self.blob) % ALIGN))
            self.pool[key] = len(self.blob)
            self.blob.extend(data)
        return self._add(value, Storage.CONSTANT, offset=self.pool[key])

    def _segment(self, group: list[Op]) -> Segment:
        placement = group[0].placement
        assert placement is not None
        if placement.device == "cpu":
            return self._cpu_segment(group, placement.segment)
        instructions = []
        for op in group:
            if not isinstance(op, ops.BpuOp):
                msg = f"{op.NAME} {op.node!r} was not lowered"
                raise EmitError(msg)
            inputs = tuple(self._tensor(v) for v in op.operands)
            outputs = tuple(self._tensor(v) for v in op.results)
            instructions.append(op.instruction(inputs, outputs, node_names(op.loc)))
        return BpuSegment(f"bpu_{placement.segment}", tuple(instructions))

    def _cpu_segment(self, group: list[Op], number: int) -> CpuSegment:
        inside = set(group)
        operands = [v for op in group for v in op.operands if v is not None]
        inputs = list(dict.fromkeys(v for v in operands if v.op not in inside and not v.defined_by(ops.Const)))
        results = [r for op in group for r in op.results]
        outputs = [r for r in results if r in self.out_index or any(u.op not in inside for u in r.uses)]
        reasons = tuple(
            f"{kind} {node!r}: {op.placement.reason}" for op in group if op.placement for kind, node in _nodes(op)
        )
        loc = tuple(dict.fromkeys(name for op in group for name in node_names(op.loc)))
        name = f"cpu_{number}"
        data = export_segment(group, inputs, outputs, None, name)
        require_accepted(data, group, name)
        return CpuSegment(
            name, tuple(self._tensor(v) for v in inputs), tuple(self._tensor(v) for v in outputs), data, reasons, loc
        )


def _too_many_axes(value: Value) -> EmitError:
    where = f"node {value.op.node!r}" if value.op is not None else f"input {value.name!r}"
    why = f"its shape is {shape_text(value.type.shape)}, tensors of a .hbm have {MAX_RANK} axes at most"
    hint = "merge axes that stay side by side by a Reshape"
    return error(EmitError, f"a tensor has {value.type.rank} axes", where=where, why=why, hint=hint, kind=TooManyAxes)


def _segment_key(op: Op) -> tuple[bool, int]:
    if op.placement is None:
        msg = f"{op.NAME} {op.node!r} was not placed"
        raise EmitError(msg)
    return op.placement.device == "cpu", op.placement.segment


def _nodes(op: Op) -> list[tuple[str, str]]:
    """Kind and name of what an op runs: of every node of a `call_graph`, else of the op itself."""
    if isinstance(op, ops.CallGraph):
        return [(n.op_type, n.node) for n in source_nodes(op.loc)] or [(op.NAME, op.node)]
    kinds = [n.op_type for n in source_nodes(op.loc) if n.node == op.node and n.op_type]
    return [(kinds[0] if kinds else op.NAME, op.node)]
