"""What a `Program` must hold so that running it reads and writes nothing out of bounds. ValueError names the place.

The reader runs this on every file, the writer before it writes, `Session` on a program made in memory: three users, one
law. Structure and offsets of the file itself are `verifier.py`'s, the order of reads and writes is `plan.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..isa import require
from ..march import ARITHS, BORDER_ROUNDING
from ..plan import check_plan
from ..program import BpuSegment, CpuSegment, Model, Program, Storage, Tensor, TensorInfo
from ..types import DYNAMIC, DType, Layout, Quant
from .layout import MAX_BUFFER, MAX_INSTRUCTIONS, MAX_RANK, MAX_TENSORS, MAX_WORK
from .operands import check_instruction
from .where import within
from .work import memory, work


def check_program(program: Program) -> None:
    """Raise ValueError, naming model, segment and instruction, unless `program` can be executed safely."""
    for what, value, known in (("march", program.march, BORDER_ROUNDING), ("arithmetic", program.arith, ARITHS)):
        require(value in known, f"unknown {what} {value!r}; known are {', '.join(known)}")
    require(len(program.models) >= 1, "the program has no model")
    _check_unique("model", [m.name for m in program.models])
    for model in program.models:
        with within(f"model {model.name!r}"):
            check_model(model)
    for i, native in enumerate(program.natives):
        with within(f"native code {i}"):
            require(0 <= native.model < len(program.models), f"model {native.model} of {len(program.models)}")


def check_model(model: Model) -> None:
    """The same for one model."""
    require(0 <= model.arena_size <= MAX_BUFFER, f"the arena has {model.arena_size} bytes, over {MAX_BUFFER}")
    require(len(model.tensors) <= MAX_TENSORS, f"{len(model.tensors)} tensors, at most {MAX_TENSORS} are allowed")
    _check_unique("input", [i.name for i in model.inputs])
    _check_unique("output", [o.name for o in model.outputs])
    for i, tensor in enumerate(model.tensors):
        with within(f"tensor {i} ({tensor.name!r})"):
            _check_tensor(model, tensor)
    for infos, storage in ((model.inputs, Storage.INPUT), (model.outputs, Storage.OUTPUT)):
        for i, info in enumerate(infos):
            with within(f"{storage.name.lower()} {info.name!r}"):
                _check_border(model, info, storage, i)
    for i, tensor in enumerate(model.tensors):
        if tensor.storage in {Storage.INPUT, Storage.OUTPUT}:
            with within(f"tensor {i} ({tensor.name!r})"):
                _check_in_border(model, i)
    _check_segments(model)
    _check_cost(model)
    check_plan(model)


def _check_cost(model: Model) -> None:
    size, steps = memory(model), work(model)
    require(size <= MAX_BUFFER, f"inputs, outputs and arena have {size} bytes together, over {MAX_BUFFER}")
    require(steps <= MAX_WORK, f"a run would take {steps:.2e} steps, at most {MAX_WORK:.2e} are allowed")


def _check_unique(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        require(name not in seen, f"two {what}s are named {name!r}")
        seen.add(name)


# ---- tensors


def _check_tensor(model: Model, t: Tensor) -> None:
    _check_shape(t.shape, t.dtype)
    if t.is_dynamic:
        require(t.storage is Storage.OUTPUT, f"shape {t.shape} has a dynamic size, which only outputs may have")
        require(t.quant is None, f"scales on a tensor of dynamic shape {t.shape}")
    _check_quant(t.quant, t.shape, t.dtype)
    limit = {Storage.ARENA: model.arena_size, Storage.CONSTANT: len(model.constants)}.get(t.storage)
    if limit is None:
        require(t.offset == 0, f"offset {t.offset} in an {t.storage.name.lower()} array; it must be 0")
        return  # the rest needs the border's tensors: _check_in_border
    require(t.index == 0, f"index {t.index} in the {t.storage.name.lower()}; it must be 0")
    require(t.offset >= 0 and t.offset % t.dtype.size == 0, f"offset {t.offset} is not aligned to {t.dtype.size} bytes")
    end = t.offset + t.nbytes
    require(end <= limit, f"it ends at byte {end} of the {t.storage.name.lower()}, which has {limit}")


def _check_shape(shape: tuple[int, ...], dtype: DType) -> None:
    require(len(shape) <= MAX_RANK, f"rank {len(shape)}, at most {MAX_RANK} is allowed")
    require(all(d >= 0 or d == DYNAMIC for d in shape), f"shape {shape} has a negative size")
    # zeros and dynamic sizes count as 1: a kernel multiplies the other sizes into strides all the same
    size = math.prod(max(d, 1) for d in shape) * dtype.size
    require(size <= MAX_BUFFER, f"shape {shape} of {dtype.text} has {size} bytes, at most {MAX_BUFFER} are allowed")


def _check_quant(quant: Quant | None, shape: tuple[int, ...], dtype: DType) -> None:
    if quant is None:
        return
    require(dtype.is_integer, f"scales on a tensor of {dtype.text}; only integers are quantised")
    with np.errstate(over="ignore"):
        exact = all(0 < s < math.inf and float(np.float32(s)) == s for s in quant.scale)
    require(exact, f"scales must be positive, finite float32 values, not {_few(quant.scale)}")
    lo, hi = dtype.limits
    require(all(lo <= z <= hi for z in quant.zero_point), f"zero points {_few(quant.zero_point)} leave {dtype.text}")
    if quant.axis is None:
        require(len(quant.scale) == 1, f"{len(quant.scale)} scales without an axis")
        return
    require(0 <= quant.axis < len(shape), f"quantisation axis {quant.axis} of rank {len(shape)}")
    want = shape[quant.axis]
    require(len(quant.scale) == want, f"{len(quant.scale)} scales for axis {quant.axis} of size {want}")
    require(len(quant.zero_point) == want, f"{len(quant.zero_point)} zero points for axis {quant.axis} of size {want}")


def _few(values: Sequence[float]) -> str:
    return ", ".join(map(str, values[:4])) + (", …" if len(values) > 4 else "")


# ---- inputs and outputs


def _check_border(model: Model, info: TensorInfo, storage: Storage, index: int) -> None:
    require(0 <= info.tensor < len(model.tensors), f"tensor {info.tensor} of {len(model.tensors)}")
    t = model.tensors[info.tensor]
    require(t.storage is storage and t.index == index, f"its tensor {info.tensor} lies in {t.storage.name} {t.index}")
    require(t.shape == info.shape, f"shape {info.shape}, its tensor {info.tensor} has {t.shape}")
    require(t.dtype is info.dtype, f"dtype {info.dtype.text}, its tensor {info.tensor} has {t.dtype.text}")
    require(info.layout is Layout.ANY or len(info.shape) == 4, f"layout {info.layout.name} for rank {len(info.shape)}")
    require(info.quant is None or not t.is_dynamic, f"scales on an output of dynamic shape {t.shape}")
    _check_quant(info.quant, info.shape, info.dtype)


def _check_in_border(model: Model, tensor: int) -> None:
    t = model.tensors[tensor]
    infos = model.inputs if t.storage is Storage.INPUT else model.outputs
    require(0 <= t.index < len(infos), f"{t.storage.name.lower()} {t.index} of {len(infos)}")
    border = model.tensors[infos[t.index].tensor]
    if t.is_dynamic or border.is_dynamic:  # its bytes are no buffer that others could lie in
        alone = infos[t.index].tensor == tensor
        require(alone, f"it lies in the place of {border.name!r}, and one of them has a dynamic size")
        return
    require(t.nbytes == border.nbytes, f"{t.nbytes} bytes in the place of {border.name!r}, which has {border.nbytes}")
    require(t.dtype is border.dtype, f"{t.dtype.text} in the place of {border.name!r}, which is {border.dtype.text}")


# ---- segments


def _check_segments(model: Model) -> None:
    total = sum(len(s.instructions) for s in model.segments if isinstance(s, BpuSegment)) + len(model.segments)
    require(total <= MAX_INSTRUCTIONS, f"{total} instructions, at most {MAX_INSTRUCTIONS} are allowed")
    for number, segment in enumerate(model.segments):
        with within(f"segment {number} ({segment.name!r})"):
            if isinstance(segment, CpuSegment):
                _check_cpu(model, segment)
                continue
            for i, op in enumerate(segment.instructions):
                with within(f"instruction {i} ({op.opcode.name} of {', '.join(map(repr, op.loc)) or 'no node'})"):
                    check_instruction(model, op)


def _check_cpu(model: Model, segment: CpuSegment) -> None:
    require(len(segment.onnx) > 0, "the embedded ONNX model is empty")
    require(len(segment.outputs) >= 1, "it has no output")
    for i in (*segment.inputs, *segment.outputs):
        require(0 <= i < len(model.tensors), f"tensor {i} of {len(model.tensors)}")
    for i in segment.inputs:
        t = model.tensors[i]
        require(not t.is_dynamic, f"it reads {t.name!r}, which has a dynamic size")
    for i in segment.outputs:
        t = model.tensors[i]
        require(t.storage in {Storage.ARENA, Storage.OUTPUT}, f"it writes {t.name!r}, which lies in {t.storage.name}")
