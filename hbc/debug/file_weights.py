"""The weights of a quantised model file, channel by channel, beside those of the float model where that is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hbc.backend.bpu.target import Target
from hbc.backend.cpu import engine
from hbc.diagnostics import OptionError, error
from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.interpreter import evaluate
from hbc.ir.location import node_names
from hbc.ir.types import Quant
from hbc.options import CompileOptions
from hbc.verify.facts import stripped
from hbc.verify.stage import Array
from hbc.verify.stored import to_reals
from hbc.words import plural, some

from .figures import bars
from .hostile import FEW, weight_reasons
from .measures import Similarity, similarity
from .model_files import OnStep
from .report import DETAIL, Column, Figure, Report, listed
from .weight_statistics import WeightStatistics, weight_statistics

ANOTHER = 0.05  # share of elements that are off by more than a step where it isn't the same weight
WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)
COLUMNS = (
    Column("weight", "name"),
    Column("read by", "kind", rank=2),
    Column("node", "node", rank=4),
    Column("type", "dtype", rank=1),
    Column("shape", "shape", "shape", rank=3),
    Column("SQNR", "sqnr", "decibel", "of the float and the rounded weight, in dB; needs float weights"),
    Column("cosine", "cosine", "cosine", rank=DETAIL),
    Column("scale", "scale", "number", "the largest of the channels' scales"),
    Column("spread", "spread", "number", "the largest channel's magnitude over the smallest's"),
    Column("worst channel", "worst", "count", "the channel of the fewest bits", rank=5),
    Column("peak", "peak", "number", "largest over usual magnitude, in the channel where that is worst"),
    Column("bits", "bits", "bits", "bits left of the usual values of the worst channel"),
    Column("why", "reasons", "words", "why it is flagged", rank=6),
)


@dataclass(frozen=True)
class FileWeightRow:
    """One weight. `whole` is None without float weights."""

    name: str
    kind: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    scale: float
    whole: Similarity | None
    reasons: tuple[str, ...]
    statistics: WeightStatistics = field(repr=False, compare=False)

    sqnr = property(lambda self: None if self.whole is None else self.whole.sqnr)
    cosine = property(lambda self: None if self.whole is None else self.whole.cosine)
    spread = property(lambda self: self.statistics.spread)
    worst = property(lambda self: int(np.argmin(self.statistics.bits)))
    peak = property(lambda self: float(self.statistics.peak.max()))
    bits = property(lambda self: float(self.statistics.bits.min()))
    flagged = property(lambda self: bool(self.reasons))


def file_weights(
    model: Path, options: CompileOptions, float_model: Path | None = None, on_step: OnStep | None = None
) -> Report[FileWeightRow]:
    """The weights of every convolution, transposed convolution and linear layer that are integers.

    Float weights are those of `float_model`, of the nodes or tensors of the same names; where the model itself has
    floats in front of its quantize nodes, these. Raises OptionError where no weight is integers, HbcError otherwise.
    """
    constants = _Constants(lower_model(model, options, stop_after="load"))
    known = {} if float_model is None else float_weights(lower_model(float_model, options, stop_after="load"))
    rows, unknown, other = [], [], []
    weighted = [op for op in constants.module.graph.ops if isinstance(op, WEIGHTED)]
    for number, op in enumerate(weighted):
        if on_step is not None:
            on_step("reading", number + 1, len(weighted))
        rounded, quant = constants.value(op.operands[1]), constants.quant(op.operands[1])
        if rounded is None or quant is None:
            continue
        name = constants.name(op)
        real = next((known[n] for n in (*node_names(op.loc), name) if n in known), constants.real(op.operands[1]))
        if real is not None and not _same(real, rounded, quant):
            other.append(name)
            real = None
        elif real is None:
            unknown.append(name)
        rows.append(_row(op, name, rounded, real, quant, constants.dtype(op.operands[1])))
    if not rows:
        hint = "hbc quantize makes such a model of a float one"
        raise error(OptionError, "no layer of the model has a weight of integers", where=str(model), hint=hint)
    notes = list(listed([f"{r.name}: {'; '.join(r.reasons)}" for r in rows if r.flagged])) or ["nothing is flagged"]
    notes += [f"without float weights: {plural(len(unknown), 'weight')}; --float names their model"] if unknown else []
    if other:
        notes.append(f"the float model's weight is another one, as with a batch norm folded in: {some(other)}")
    order = sorted(rows, key=lambda r: r.bits)
    items = [(r.name, max(0.0, r.bits), f"{r.bits:.1f} bits", r.flagged) for r in order]
    figure = Figure(
        "Bits left of usual values", bars(items, limit=FEW), "In the worst channel of each; under 4 is few."
    )
    return Report("Weights", str(model), COLUMNS, tuple(rows), tuple(notes), (figure,))


def _same(real: Array, rounded: Array, quant: Quant) -> bool:
    """Whether a float weight may be what was rounded: nearly everything within a step of the largest scale."""
    if real.shape != rounded.shape:
        return False
    return bool(np.mean(np.abs(real - rounded) > max(quant.scale)) < ANOTHER)


def float_weights(module: Module) -> dict[str, Array]:
    """The weights of a float model by node and by tensor."""
    constants, found = _Constants(module), {}
    for op in module.graph.ops:
        if isinstance(op, WEIGHTED) and (value := constants.value(op.operands[1])) is not None:
            for name in (*node_names(op.loc), constants.name(op)):
                found[name] = value
    return found


@dataclass
class _Constants:
    """What of a module is known without inputs. `seen`: values that were asked for."""

    module: Module
    seen: dict[Value, Array | None] = field(default_factory=dict)

    @cached_property
    def semantics(self) -> Target:
        """The march's rounding."""
        return Target(self.module.march, self.module.arith)

    def stored(self, value: Value | None) -> Array | None:
        """The value as it is stored, integers or reals; None where it depends on inputs."""
        if value is None or value.op is None:
            return None
        if value not in self.seen:
            op = value.op
            if isinstance(op, ops.Const):
                self.seen[value] = op.value
            else:
                arrays = [self.stored(v) for v in op.operands]
                if any(a is None and v is not None for a, v in zip(arrays, op.operands, strict=True)):
                    self.seen[value] = None
                else:
                    results = evaluate(op, self.semantics.semantics, arrays, cpu=engine.evaluate)
                    self.seen.update(zip(op.results, results, strict=True))
        return self.seen[value]

    def value(self, value: Value | None) -> Array | None:
        """In reals."""
        array = self.stored(value)
        return None if array is None or value is None else to_reals(array, value.type.quant)

    def quant(self, value: Value | None) -> Quant | None:
        """How the integers behind a value stand for reals; None for reals."""
        found = self._integers(value)
        return None if found is None else found.type.quant

    def dtype(self, value: Value | None) -> str:
        """Of the integers behind a value."""
        found = self._integers(value)
        return "" if found is None else found.type.dtype.text

    def _integers(self, value: Value | None) -> Value | None:
        while value is not None:
            if value.type.quant is not None:
                return value
            value = value.op.operands[0] if value.op is not None and value.op.operands else None
        return None

    def real(self, value: Value | None) -> Array | None:
        """The float weight in front of the model's own quantize node, moved as what is behind it."""
        path: list[Op] = []
        while value is not None and value.op is not None and not isinstance(value.op, ops.Const):
            if isinstance(value.op, ops.Quantize):
                array = self.value(value.op.x)
                for op in reversed(path):
                    array = evaluate(op, self.semantics.semantics, [array, *map(self.stored, op.operands[1:])])[0]
                return array
            if not isinstance(value.op, ops.Dequantize):
                path.append(value.op)
            value = value.op.operands[0]
        return None

    def name(self, op: Op) -> str:
        """The weight's name, without what generators append."""
        value = op.operands[1]
        while value is not None and value.op is not None and value.op.operands:
            value = value.op.operands[0]
        return stripped(str(value.name)) if value is not None and value.name else op.node


def _row(op: Op, name: str, rounded: Array, real: Array | None, quant: Quant, dtype: str) -> FileWeightRow:
    axis = 1 if isinstance(op, ops.ConvTranspose2d) else 0
    channels = rounded.shape[axis]
    scales = np.asarray(quant.scale, np.float64)
    scales = scales if scales.size == channels else np.full(channels, scales.max())
    found = weight_statistics(rounded if real is None else real, rounded, scales, axis)
    whole = None if real is None else similarity(rounded, real, float(scales.max()))
    reasons = weight_reasons(found)
    return FileWeightRow(name, op.NAME, op.node, dtype, rounded.shape, float(scales.max()), whole, reasons, found)
