"""How every unit of a prepared model is quantised, and what is unusual about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from hbc.debug import Column, Report

from ..fake_quantize import FakeQuantize
from ..units import QuantizedInput, QuantizedUnit, QuantizedWeighted
from .running import kind_of, prepared_graph, units_in_order

LARGE = 10.0  # public manuals: int8 is not recommended where values exceed this
TINY = 1e-6  # a range that is next to nothing: a dead tensor
USUAL_AVERAGING = 0.01
COLUMNS = (
    Column("unit", "name"),
    Column("operation", "kind"),
    Column("in", "inputs", "names", "types of the operands"),
    Column("out", "output", about="type of the result; int32 is the accumulator itself"),
    Column("weight", "weight"),
    Column("scale", "scale", "number"),
    Column("observer", "observer", rank=1),
    Column("averaging", "averaging", "number", "weight of one batch in a moving average; 0: the scale is kept", rank=3),
    Column("rounding", "rounding", about="plain, lsq or pact", rank=2),
    Column("unusual", "unusual", "words"),
)


@dataclass(frozen=True)
class QConfigRow:
    """One unit. `unusual`: what to look at."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    weight: str | None
    scale: float | None
    observer: str | None
    averaging: float | None
    rounding: str | None
    unusual: tuple[str, ...]

    flagged = property(lambda self: bool(self.unusual))


def check_qconfig(model: nn.Module) -> Report[QConfigRow]:
    """Types, observers and scales of every unit of a prepared model; unusual ones are flagged. Nothing is run."""
    model = prepared_graph(model, "check_qconfig")
    units = units_in_order(model)
    sharing = Counter(id(u.weight_fake_quant) for u in units.values() if isinstance(u, QuantizedWeighted))
    tails = {h.partition(": ")[0]: h.partition(": ")[2] for h in model.meta["hints"]}
    rows = tuple(_row(name, u, sharing, tails) for name, u in units.items())
    types = Counter(r.output for r in rows)
    notes = [f"results: {', '.join(f'{n} {t}' for t, n in types.items())}"]
    notes += [f"{r.name}: {'; '.join(r.unusual)}" for r in rows if r.flagged]
    return Report("QConfigs", f"march {model.meta['march']}", COLUMNS, rows, tuple(notes))


def _row(name: str, unit: QuantizedUnit, sharing: Counter[int], tails: dict[str, str]) -> QConfigRow:
    fq = unit.activation_post_process
    inputs = () if isinstance(unit, QuantizedInput) else tuple(_type(s) for s in unit.sources)
    weight = unit.weight_fake_quant if isinstance(unit, QuantizedWeighted) else None
    unusual = [*_of_result(fq), *_of_weight(weight, inputs, sharing)]
    unusual += ["an operand is real"] if "float32" in inputs else []
    unusual += [tails[name]] if name in tails else []
    return QConfigRow(
        name=name,
        kind=kind_of(unit),
        inputs=inputs,
        output="int32" if fq is None and weight is not None else _type(fq),
        weight=None if weight is None else weight.spec.dtype,
        scale=float(fq.scale.detach().max()) if fq is not None and fq.is_ready() else None,
        observer=None if fq is None else fq.spec.observer if fq.spec.scale is None else "fixed",
        averaging=None if fq is None else fq.spec.averaging,
        rounding=None if fq is None else fq.spec.kind,
        unusual=tuple(unusual),
    )


def _type(fq: FakeQuantize | None) -> str:
    return "float32" if fq is None else fq.spec.dtype


def _of_result(fq: FakeQuantize | None) -> list[str]:
    if fq is None:
        return []
    found = []
    if not fq.quantizing:
        found.append("rounding is switched off")
    if fq.spec.scale is not None:
        found.append(f"fixed scale {fq.spec.scale:g}")
    elif fq.spec.averaging not in {0.0, USUAL_AVERAGING} and fq.spec.observer == "moving-average":
        found.append(f"averaging is {fq.spec.averaging:g}, usually {USUAL_AVERAGING:g} or 0")
    if not fq.is_ready():
        return [*found, "no scale yet: calibrate"]
    reach = float(fq.scale.detach().max()) * -fq.spec.qmin
    if fq.spec.dtype == "int8" and reach > LARGE:
        found.append(f"int8 for values up to {reach:.3g}: not recommended beyond {LARGE:g}, try int16")
    if reach < TINY:
        found.append(f"its range is ±{reach:.1g}: nothing but zeros went through")
    return found


def _of_weight(fq: FakeQuantize | None, inputs: tuple[str, ...], sharing: Counter[int]) -> list[str]:
    if fq is None:
        return []
    found = []
    if sharing[id(fq)] > 1:
        found.append(f"its weight is shared by {sharing[id(fq)]} calls")
    if fq.spec.dtype == "int16" and inputs[:1] == ("int16",):
        found.append("int16 by int16: no chip multiplies those")
    if not fq.quantizing:
        found.append("rounding of the weight is switched off")
    return found
