"""One instruction's operands: arity, which must be constant, and what the values in its constants must be.

`Instruction.check` sees shapes and dtypes only; an index or a shift inside a constant can lead a kernel astray as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from .. import isa
from ..isa import Instruction, Scheme, require
from ..program import Model, Storage, Tensor
from .layout import INT_ATTRIBUTE
from .where import within

# every other operand is a parameter, and must be constant
ACTIVATIONS = {"x", "xs", "lhs", "rhs", "addend", "grid", "condition"}
# NUMERICS 4 and D4: forms A and B shift an i32, WIDE an i64; a shift by all its bits has no meaning to a machine
SHIFT_LIMIT = {Scheme.FORM_A: 31, Scheme.FORM_B: 31, Scheme.WIDE: 62}
ADDEND_SHIFT = (-31, 62)  # D5
MAX_SEGMENT_SHIFT = 16  # positions inside a segment are below 2^16


def check_instruction(model: Model, op: Instruction) -> None:
    """Raise ValueError unless `op` can run on `model`'s tensors. The tensors themselves are checked before."""
    ins = _operands(model, op)
    require(len(op.outputs) == 1, f"{len(op.outputs)} results, there must be 1")
    out = model.tensors[_index(model, op.outputs[0])]
    _check_attributes(op)
    op.check([None if i < 0 else model.tensors[i] for i in op.inputs], [out])
    if not aliases(op, model):
        writable = out.storage in {Storage.ARENA, Storage.OUTPUT}
        require(writable, f"it writes {out.name!r}, which lies in {out.storage.name}, not in the arena or an output")
    _check_values(model, op, dict(ins))


def aliases(op: Instruction, model: Model) -> bool:
    """True for a Reshape whose result is its operand's bytes, so that nothing is written."""
    if not isinstance(op, isa.Reshape):
        return False
    x, y = model.tensors[op.inputs[0]], model.tensors[op.outputs[0]]
    return (x.storage, x.offset, x.index) == (y.storage, y.offset, y.index)


def _index(model: Model, i: int) -> int:
    require(0 <= i < len(model.tensors), f"tensor {i} of {len(model.tensors)}")
    t = model.tensors[i]
    require(not t.is_dynamic, f"{t.name!r} has a dynamic size, which only CPU segments make and nothing reads")
    return i


def _operands(model: Model, op: Instruction) -> list[tuple[str, int]]:
    """Name and tensor of every operand that is there."""
    least, most = isa.arity(type(op))
    count = len(op.inputs)
    require(count >= least and (most is None or count <= most), f"{count} operands, {type(op).__name__} takes {least}")
    names = op.operands if most is not None else op.operands * count
    out = []
    for name, i in zip(names, op.inputs, strict=True):
        bare = name.rstrip("?*")
        with within(f"operand {bare!r}"):
            if i == -1:
                require(name.endswith("?"), "it is missing")
                continue
            t = model.tensors[_index(model, i)]
            allowed = t.storage is Storage.CONSTANT or bare in ACTIVATIONS
            require(allowed, f"{t.name!r} lies in {t.storage.name}; a parameter must be constant")
            out.append((bare, i))
    return out


def _check_attributes(op: Instruction) -> None:
    lo, hi = INT_ATTRIBUTE
    for f in dataclasses.fields(op):
        if f.name in {"inputs", "outputs", "loc"}:
            continue
        value = getattr(op, f.name)
        for v in value if isinstance(value, tuple) else (value,):
            if isinstance(v, float):
                require(_fits_float32(v), f"attribute {f.name!r} is {v}, which is no finite float32 or vanishes as one")
            elif isinstance(v, int):
                require(lo <= v <= hi, f"attribute {f.name!r} is {v}, outside {lo}..{hi}")


def _fits_float32(v: float) -> bool:
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float32(v)
    return bool(np.isfinite(narrow)) and (narrow == 0) == (v == 0)  # kernels compute in float32 (`Add`, `Mul`)


# ---- values inside constants


def _check_values(model: Model, op: Instruction, operands: dict[str, int]) -> None:
    for name, i in operands.items():
        if name in {"pre_shift", "post_shift"}:
            assert isinstance(op, isa.Requantizing)
            _check_range(model.constant(i), 0, SHIFT_LIMIT[op.scheme], name)
        elif name == "addend_shift":
            _check_range(model.constant(i), *ADDEND_SHIFT, name)
        elif name in {"multiplier", "addend_multiplier"} and model.tensors[i].dtype.is_float:
            require(bool(np.isfinite(model.constant(i)).all()), f"{name} has entries that are not finite")
        elif name == "scale":
            scale = model.constant(i)
            sound = np.isfinite(scale) & (scale > 0)
            require(bool(sound.all()), "scale has entries that are not positive and finite")
    rule = _TABLES.get(type(op))
    if rule is not None:
        rule(model, op)


def _check_range(values: np.ndarray, lo: int, hi: int, what: str) -> None:
    if values.size:
        least, most = int(values.min()), int(values.max())
        require(lo <= least and most <= hi, f"{what} has entries from {least} to {most}, allowed are {lo} to {hi}")


def _check_resize_nearest(model: Model, op: Instruction) -> None:
    x = _tensor(model, op, 0)
    for axis, name in ((1, "rows"), (2, "columns")):
        _check_range(_constant(model, op, axis), 0, x.shape[axis] - 1, name)


def _check_resize_bilinear(model: Model, op: Instruction) -> None:
    x = _tensor(model, op, 0)
    for axis, name in ((1, "rows"), (2, "columns")):
        table = _constant(model, op, axis)
        _check_range(table[:, :2], 0, x.shape[axis] - 1, name)
        _check_range(table[:, 2], 0, 256, f"weights of {name}")


def _check_gather(model: Model, op: Instruction) -> None:
    assert isinstance(op, isa.Gather)
    _check_range(_constant(model, op, 1), 0, _tensor(model, op, 0).shape[op.axis] - 1, "indices")


def _check_segment_lut(model: Model, op: Instruction) -> None:
    segments, rows = _constant(model, op, 1), _tensor(model, op, 2).shape[0]
    first = segments[:, 0].astype(np.int64)
    require(int(first[0]) == -32768, f"the first segment begins at {first[0]}, not at -32768")
    require(bool((np.diff(first) > 0).all()), "segments do not ascend")
    _check_range(first, -32768, 32767, "segments")
    _check_range(segments[:, 1], 0, MAX_SEGMENT_SHIFT, "shifts of segments")
    _check_range(segments[:, 2], 0, rows - 1, "table rows of segments")


def _tensor(model: Model, op: Instruction, operand: int) -> Tensor:
    return model.tensors[op.inputs[operand]]


def _constant(model: Model, op: Instruction, operand: int) -> np.ndarray:
    return model.constant(op.inputs[operand])


_TABLES: dict[type[Instruction], Callable[[Model, Instruction], None]] = {
    isa.ResizeNearest: _check_resize_nearest,
    isa.ResizeBilinear: _check_resize_bilinear,
    isa.Gather: _check_gather,
    isa.SegmentLut: _check_segment_lut,
}
