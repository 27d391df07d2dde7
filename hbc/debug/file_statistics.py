"""The feature maps of a quantised model file, as they are before each of its quantize nodes rounds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hbc.ir import ops
from hbc.ir.core import Op
from hbc.verify.stage import Array
from hbc.words import plural

from .channels import channel_figures
from .columns import FEATURE_COLUMNS
from .figures import ranges
from .hostile import activation_advice, activation_reasons, low_bits
from .model_files import Case, OnStep, is_weight, maker_of, outputs_of, quantize_nodes, watched
from .report import Column, Figure, Report, listed
from .tensor_statistics import TensorStatistics

COLUMNS = (
    Column("tensor", "name"),
    Column("made by", "kind", rank=1),
    *FEATURE_COLUMNS,
)


@dataclass(frozen=True)
class TensorRow:
    """One quantize node's tensor over all samples."""

    name: str
    kind: str
    dtype: str
    scale: float
    reasons: tuple[str, ...]
    advice: str
    statistics: TensorStatistics = field(repr=False, compare=False)

    shape = property(lambda self: self.statistics.shape)
    low = property(lambda self: self.statistics.minimum)
    high = property(lambda self: self.statistics.maximum)
    mean = property(lambda self: self.statistics.mean)
    std = property(lambda self: self.statistics.std)
    used = property(lambda self: self.statistics.used)
    saturated = property(lambda self: self.statistics.saturation)
    spread = property(lambda self: self.statistics.spread)
    bits = property(lambda self: low_bits(self.statistics.channel_bits()))
    histogram = property(lambda self: tuple(map(int, self.statistics.counts)))
    flagged = property(lambda self: bool(self.reasons))


def file_statistics(case: Case, on_step: OnStep | None = None) -> Report[TensorRow]:
    """Every activation that the model quantises, as the quantised model itself computes it.

    Raises OptionError where the model has no quantize nodes, HbcError where a node can't be run.
    """
    found: dict[ops.Quantize, TensorStatistics] = {}
    module = case.module
    constant = {op for op in quantize_nodes(case) if is_weight(op)}

    def watch(op: Op, arrays: Sequence[Array | None]) -> None:
        if isinstance(op, ops.Quantize) and op not in constant and arrays[0] is not None:
            if op not in found:
                found[op] = _opened(op)
            found[op].add(arrays[0])

    stage = watched(module, watch)
    for number, sample in enumerate(case.samples):
        outputs_of(stage, module, sample)
        if on_step is not None:
            on_step("running", number + 1, len(case.samples))
    rows = tuple(_row(op, s) for op, s in found.items())
    notes = listed([f"{r.name}: {'; '.join(r.reasons)} → {r.advice}" for r in rows if r.flagged])
    figure = Figure("Ranges in running order", ranges([(r.name, r.low, r.high) for r in rows]))
    about = f"{case.bench.model}, {plural(len(case.samples), 'sample')} ({case.said})"
    channels = channel_figures([(r.name, r.statistics) for r in rows if r.flagged])
    return Report("Feature maps", about, COLUMNS, rows, notes or ("nothing is flagged",), (figure, *channels))


def _opened(op: ops.Quantize) -> TensorStatistics:
    quant = op.out.type.quant
    assert quant is not None
    low, high = op.limits
    zero, rank = quant.zero_point[0], op.out.type.rank
    axis = None if rank < 2 else rank - 1 if rank == 3 else 1
    return TensorStatistics(axis, float(max(quant.scale)), low - zero, high - zero)


def _row(op: ops.Quantize, s: TensorStatistics) -> TensorRow:
    reasons, dtype = activation_reasons(s), op.out.type.dtype.text
    name = str(op.x.name or op.out.name or op.node)
    advice = activation_advice(s, "int16" if dtype in {"i16", "u16"} else "int8", reasons)
    return TensorRow(name, maker_of(op), dtype, float(s.scale or 0.0), reasons, advice, s)
