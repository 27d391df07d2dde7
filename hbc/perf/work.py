"""What an instruction asks of the engines: products, bytes, elements. Facts of shapes, without a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hbc.analysis import instruction_macs
from hbc.backend.bpu.march import MarchSpec
from hbc_runtime import isa
from hbc_runtime.commands import Engine
from hbc_runtime.program import CpuSegment, Model, Storage, Tensor

KINDS: tuple[tuple[tuple[type[isa.Instruction], ...], Engine], ...] = (
    ((isa.Quantize, isa.Dequantize), Engine.HOST),
    ((isa.Conv2d, isa.ConvTranspose2d, isa.Matmul), Engine.TENSOR),
    ((isa.MaxPool, isa.AvgPool, isa.ResizeNearest, isa.ResizeBilinear, isa.GridSample), Engine.POOL),
    ((isa.Lut, isa.SegmentLut), Engine.LUT),
    ((isa.Concat, isa.Slice, isa.Pad, isa.Transpose, isa.Reshape, isa.Gather, isa.Expand), Engine.MOVE),
)
COMMAND_BYTES = 4096  # of DDR that an instruction's commands take: the tiny net's perf.json loads 3 to 6 kB a layer


@dataclass(frozen=True)
class Work:
    """One instruction's work.

    `macs` are the model's own, `padded_macs` those of the shapes that the march rounds up to. `feature_bytes` is what
    a tensor command reads and writes of activations on chip, `weight_bytes` what it brings from DDR, `store_bytes` what
    it stores there, `load_bytes` what it waits for from the host, `elements` what a vector, pool, table or move command
    makes (of a pool: reads). `kind` is `dense`, `depthwise` or `matmul` where there are MACs, else the instruction's
    name.
    """

    layer: str
    kind: str
    engine: Engine
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    macs: int = 0
    padded_macs: int = 0
    feature_bytes: int = 0
    weight_bytes: int = 0
    load_bytes: int = 0
    store_bytes: int = 0
    elements: int = 0


@dataclass(frozen=True)
class Border:
    """Tensors that cross between DDR and chip: `loaded` by number with their bytes, and `stored`."""

    loaded: dict[int, int]
    stored: frozenset[int]


def border_of(model: Model, march: MarchSpec, *, nv12: bool = False) -> Border:
    """What the host hands to the BPU and takes from it. `nv12`: an image of 3 channels comes at 1.5 bytes a pixel."""
    loaded: dict[int, int] = {}
    stored: set[int] = set()
    for segment in model.segments:
        if isinstance(segment, CpuSegment):
            stored.update(segment.inputs)
            loaded.update((i, model.tensors[i].nbytes) for i in segment.outputs)
            continue
        for op in segment.instructions:
            if _engine(op, _activations(model, op)) is Engine.HOST:
                stored.update(i for i in op.inputs if i >= 0)
                loaded.update((i, _input_bytes(model, op, i, march, nv12=nv12)) for i in op.outputs)
    for i, t in enumerate(model.tensors):
        if t.storage is Storage.INPUT:
            loaded[i] = t.nbytes
        elif t.storage is Storage.OUTPUT:
            stored.add(i)
    for segment in reversed(model.segments):
        for op in () if isinstance(segment, CpuSegment) else reversed(segment.instructions):
            if _in_place(model, op) and op.outputs[0] in stored:
                stored.add(op.inputs[0])
    return Border(loaded, frozenset(stored))


def _in_place(model: Model, op: isa.Instruction) -> bool:
    """True for a reshape that gives the same bytes another name."""
    return isinstance(op, isa.Reshape) and model.tensors[op.outputs[0]].storage is Storage.ARENA


def _input_bytes(model: Model, op: isa.Instruction, made: int, march: MarchSpec, *, nv12: bool) -> int:
    """Bytes of what the host makes; of a model's input, as the march lays it out or as the camera gives it."""
    t = model.tensors[made]
    given = model.tensors[op.inputs[0]]
    if given.storage is not Storage.INPUT or len(t.shape) != 4:
        return t.nbytes
    n, c, h, w = t.shape
    if nv12 and c == 3:
        return n * h * w * 3 // 2
    return n * h * w * _up(c, march.input_channels) * t.dtype.size


def _activations(model: Model, op: isa.Instruction) -> list[Tensor]:
    given = (model.tensors[i] for i in (*op.outputs, *op.inputs) if i >= 0)
    return [t for t in given if t.storage is not Storage.CONSTANT]


def work_of(model: Model, op: isa.Instruction, march: MarchSpec, border: Border) -> Work | None:
    """The work of `op`; None for one that moves nothing: a reshape in place."""
    out = model.tensors[op.outputs[0]]
    if _in_place(model, op):
        return None
    engine = _engine(op, _activations(model, op))
    layer = op.loc[0] if op.loc else out.name or op.opcode.name.lower()
    kind = op.opcode.name.lower()
    padded = _padded_shape(out.shape, march)
    if engine is Engine.LUT and march.max_lut and out.elements > march.max_lut:
        engine = Engine.HOST
    plain = Work(layer, kind, engine, out.shape, padded, elements=_elements(op, model))
    if engine is Engine.HOST:
        return plain
    given = [i for i in op.inputs if i >= 0]
    moved = replace(
        plain,
        weight_bytes=sum(model.tensors[i].nbytes for i in given if model.tensors[i].storage is Storage.CONSTANT),
        load_bytes=sum(border.loaded.get(i, 0) for i in given),
        store_bytes=out.nbytes if op.outputs[0] in border.stored else 0,
    )
    if engine is not Engine.TENSOR:
        return moved
    kind, padded_macs = _padded_macs(model, op, march)
    features = sum(t.nbytes for t in _activations(model, op))
    return replace(
        moved, kind=kind, macs=instruction_macs(model, op), padded_macs=padded_macs, feature_bytes=features, elements=0
    )


def _engine(op: isa.Instruction, tensors: list[Tensor]) -> Engine:
    """Who executes `op`: what touches reals is the host's."""
    if any(t.dtype.is_float for t in tensors):
        return Engine.HOST
    return next((engine for kinds, engine in KINDS if isinstance(op, kinds)), Engine.VECTOR)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def _padded_shape(shape: tuple[int, ...], march: MarchSpec) -> tuple[int, ...]:
    """An NHWC shape with width and channels rounded up; others as they are."""
    if len(shape) != 4:
        return shape
    n, h, w, c = shape
    return n, h, _up(w, march.work_align[2]), _up(c, march.work_align[1])


def _elements(op: isa.Instruction, model: Model) -> int:
    """Elements that pass through an engine that does not multiply matrices."""
    out = model.tensors[op.outputs[0]]
    if isinstance(op, isa.MaxPool | isa.AvgPool):
        return out.elements * math.prod(op.kernel)
    return max(t.elements for t in _activations(model, op))


def _padded_macs(model: Model, op: isa.Instruction, march: MarchSpec) -> tuple[str, int]:
    """(kind, MACs of the padded shapes)."""
    channels, outputs, width = march.work_align
    if isinstance(op, isa.Matmul):
        *batch, m, n = model.tensors[op.outputs[0]].shape
        k = model.tensors[op.inputs[0]].shape[-1]
        fixed = model.tensors[op.inputs[1]].storage is Storage.CONSTANT
        rows = math.prod(batch) * (m if fixed else _up(m, width))
        return "dense" if fixed else "matmul", rows * _up(k, channels) * _up(n, outputs)
    assert isinstance(op, isa.Conv2d | isa.ConvTranspose2d)
    o, kh, kw, c = model.tensors[op.inputs[1]].shape
    over = op.outputs[0] if isinstance(op, isa.Conv2d) else op.inputs[0]
    n, h, w, _ = model.tensors[over].shape
    rows = n * h * _up(w, width) if w > 1 else _up(n * h, width)  # a linear layer's rows stand side by side
    pixels = rows * kh * kw
    if op.group > 1 and c == 1:
        return "depthwise", pixels * _up(o, outputs)
    return "dense", pixels * op.group * _up(c, channels) * _up(o // op.group, outputs)
