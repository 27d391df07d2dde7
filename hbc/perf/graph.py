"""A model as nodes and edges, and how many bytes are alive beside each of them."""

from __future__ import annotations

from dataclasses import dataclass

from hbc_runtime import isa
from hbc_runtime.program import CpuSegment, Model, Storage


@dataclass(frozen=True)
class Node:
    """An instruction, or a segment of the CPU: `row` is its depth, `column` its place among those of equal depth.

    `live` are the bytes of activations that somebody still needs, its own result among them, and of its constants.
    """

    name: str
    kind: str
    device: str  # bpu, host or cpu
    inputs: tuple[int, ...]
    row: int
    column: int
    live: int


def graph_of(model: Model) -> tuple[Node, ...]:
    """Every instruction and CPU segment of `model`, in running order."""
    steps = list(_steps(model))
    last = {i: n for n, (_, _, _, reads, _) in enumerate(steps) for i in reads}
    makers: dict[int, int] = {}
    width: dict[int, int] = {}
    nodes: list[Node] = []
    alive: dict[int, int] = {}
    for n, (name, kind, device, reads, makes) in enumerate(steps):
        inputs = tuple(dict.fromkeys(makers[i] for i in reads if i in makers))
        row = max((nodes[i].row + 1 for i in inputs), default=0)
        column = width.get(row, 0)
        width[row] = column + 1
        alive.update((i, model.tensors[i].nbytes) for i in makes if not model.tensors[i].is_dynamic)
        constants = sum(model.tensors[i].nbytes for i in reads if model.tensors[i].storage is Storage.CONSTANT)
        nodes.append(Node(name, kind, device, inputs, row, column, sum(alive.values()) + constants))
        makers.update((i, n) for i in makes)
        for i in [i for i in alive if last.get(i, -1) <= n]:
            del alive[i]
    return tuple(nodes)


Step = tuple[str, str, str, list[int], list[int]]  # name, kind, device, tensors read, tensors made


def _steps(model: Model) -> list[Step]:
    host = _host_instructions(model)
    steps: list[Step] = []
    for segment in model.segments:
        if isinstance(segment, CpuSegment):
            steps.append((segment.name, "onnx", "cpu", list(segment.inputs), list(segment.outputs)))
            continue
        for op in segment.instructions:
            name = op.loc[0] if op.loc else op.opcode.name.lower()
            device = "host" if id(op) in host else "bpu"
            reads = [i for i in op.inputs if i >= 0]
            steps.append((name, op.opcode.name.lower(), device, reads, list(op.outputs)))
    return steps


def _host_instructions(model: Model) -> set[int]:
    """The instructions that touch reals, by identity."""
    found = set()
    for segment in model.segments:
        for op in () if isinstance(segment, CpuSegment) else segment.instructions:
            tensors = [model.tensors[i] for i in (*op.inputs, *op.outputs) if i >= 0]
            real = any(t.dtype.is_float and t.storage is not Storage.CONSTANT for t in tensors)
            if real or isinstance(op, isa.Quantize | isa.Dequantize):
                found.add(id(op))
    return found
