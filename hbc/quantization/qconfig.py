"""Which precision an operation gets: qconfigs, and setters that give one to each unit of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hbc.diagnostics import OptionError, error

from .errors import no_such
from .fake_quantize import BITS, FakeQuantSpec

WEIGHT = FakeQuantSpec("int8", "min-max")


@dataclass(frozen=True)
class QConfig:
    """How an operation's result and weight are quantised. `output` None: its i32 accumulator, where it has one."""

    output: FakeQuantSpec | None = field(default_factory=FakeQuantSpec)
    weight: FakeQuantSpec = WEIGHT


@dataclass(frozen=True)
class UnitInfo:
    """What a setter is told of an operation.

    `name`: its module's name. `kind`: the operation. `is_weighted`: it has a weight. `is_tail`: nothing quantised reads
    its result. `can_be_wide`: it may return its i32 accumulator; `why_not` says why it can't. `feeds_grid`: it is
    on the way from a product or an input to the grid of a grid_sample. `parts`: the modules that are fused into it.
    """

    name: str
    kind: str
    is_weighted: bool = False
    is_tail: bool = False
    can_be_wide: bool = False
    why_not: str = ""
    feeds_grid: bool = False
    parts: tuple[str, ...] = ()


class QConfigSetter(Protocol):
    """Gives a qconfig to an operation, or None to leave it to the next setter."""

    def __call__(self, unit: UnitInfo) -> QConfig | None:
        """The qconfig of one operation."""


@dataclass(frozen=True)
class DefaultSetter:
    """int8 everywhere; int32 at tails that allow it; int16 from the last product to the grid of a grid_sample."""

    base: QConfig = field(default_factory=QConfig)
    wide_tails: bool = True

    def __call__(self, unit: UnitInfo) -> QConfig:
        if unit.is_tail and unit.can_be_wide and self.wide_tails:
            return QConfig(None, self.base.weight)
        if unit.feeds_grid and self.base.output is not None:
            return QConfig(self.base.output.changed(dtype="int16"), self.base.weight)
        return self.base


@dataclass(frozen=True)
class ModuleNameSetter:
    """Qconfigs by module name. A name stands for all inside of it, and for what it is fused into; the longest wins.

    A value is a QConfig, or `int8` or `int16` for the result's type.
    """

    by_name: Mapping[str, QConfig | str]
    base: QConfig = field(default_factory=QConfig)

    def __post_init__(self) -> None:
        for name, given in self.by_name.items():
            require_qconfig(given, f"of {name!r}", or_dtype=True)

    def names(self) -> list[str]:
        """The names that a model must have."""
        return list(self.by_name)

    def __call__(self, unit: UnitInfo) -> QConfig | None:
        own = (unit.name, *unit.parts)
        fitting = [n for n in self.by_name if n in {"", *own} or any(o.startswith(f"{n}.") for o in own)]
        if not fitting:
            return None
        found = self.by_name[max(fitting, key=len)]
        if isinstance(found, QConfig):
            return found
        output = (self.base.output or FakeQuantSpec()).changed(dtype=found.removeprefix("q"))
        keep = unit.is_tail and unit.can_be_wide
        return QConfig(None if keep else output, self.base.weight)


@dataclass(frozen=True)
class SensitiveOpSetter:
    """int16 for the most sensitive operations of a table.

    `table`: (name, loss) rows, or a mapping, in any order: the larger, the more sensitive. `topk`: how many; `ratio`:
    which share of the table (one of the two).
    """

    table: Mapping[str, float] | Sequence[tuple[str, float]]
    topk: int | None = None
    ratio: float | None = None
    base: QConfig = field(default_factory=QConfig)

    def __post_init__(self) -> None:
        if (self.topk is None) == (self.ratio is None):
            raise error(OptionError, "give topk or ratio to a sensitive-op setter, one of the two")
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise error(OptionError, f"the ratio of sensitive operations is {self.ratio:g}", hint="give 0 to 1")
        if self.topk is not None and self.topk < 0:
            raise error(OptionError, f"topk is {self.topk}", hint="give 0 or more")

    def names(self) -> list[str]:
        """The operations that get int16."""
        rows = list(self.table.items()) if isinstance(self.table, Mapping) else [(r[0], r[1]) for r in self.table]
        count = self.topk if self.topk is not None else round(len(rows) * (self.ratio or 0))
        return [name for name, _ in sorted(rows, key=lambda row: -row[1])[:count]]

    def __call__(self, unit: UnitInfo) -> QConfig | None:
        if unit.name not in self.names() or (unit.is_tail and unit.can_be_wide):
            return None
        return QConfig((self.base.output or FakeQuantSpec()).changed(dtype="int16"), self.base.weight)


def require_qconfig(given: object, whose: str, *, or_dtype: bool = False) -> None:
    """OptionError for what is no QConfig, nor, where that is allowed, the name of a type of integers."""
    if isinstance(given, QConfig):
        return
    if or_dtype and isinstance(given, str):
        if given.removeprefix("q") not in BITS:
            raise no_such("dtype", given, BITS)
        return
    hint = "give QConfig(FakeQuantSpec('int16'))" + (", or 'int8' or 'int16' for the result's type" if or_dtype else "")
    raise error(OptionError, f"the qconfig {whose} is {given!r}", hint=hint)


Setters = QConfigSetter | Sequence[QConfigSetter] | None


def as_list(setters: Setters) -> list[QConfigSetter]:
    """Setters in their order, the default one last."""
    given: list[Any] = [] if setters is None else list(setters) if isinstance(setters, (list, tuple)) else [setters]
    for setter in given:
        if not callable(setter):
            hint = "give a setter, such as ModuleNameSetter({'head': 'int16'}), or a tuple of them"
            raise error(OptionError, f"the qconfig setter is {setter!r}", hint=hint)
    return [*given, DefaultSetter()]


def check_names(setters: Iterable[QConfigSetter], known: Iterable[str]) -> None:
    """OptionError for a name that the model doesn't have."""
    names = set(known)
    for setter in setters:
        for name in getattr(setter, "names", list)():
            if name and name not in names:
                raise no_such("module", name, names)


def without_effect(setters: Iterable[QConfigSetter], units: Sequence[UnitInfo]) -> list[str]:
    """A line for every name that a setter gives a qconfig to and that no operation belongs to."""
    own = [name for unit in units for name in (unit.name, *unit.parts)]
    names = [name for setter in setters for name in getattr(setter, "names", list)()]
    idle = [n for n in names if n and not any(o == n or o.startswith(f"{n}.") for o in own)]
    return [f"{name}: its qconfig has no effect, as nothing is quantised there" for name in idle]


def pick(setters: Iterable[QConfigSetter], unit: UnitInfo) -> QConfig:
    """The first setter's answer that isn't None."""
    return next(q for q in (s(unit) for s in setters) if q is not None)


def get_default_qat_qconfig(
    observer: str = "moving-average", kind: str = "plain", *, fix_scale: bool = False
) -> QConfig:
    """The qconfig that training starts from. `fix_scale`: activations keep the calibrated scale."""
    return QConfig(FakeQuantSpec("int8", observer, kind, averaging=0.0 if fix_scale else 0.01), WEIGHT)


def calibration_setter(observer: str = "mix", **fields: object) -> DefaultSetter:
    """The default template with a histogram observer for activations: percentile, mse, kl or mix."""
    return DefaultSetter(QConfig(FakeQuantSpec("int8", observer).changed(**fields), WEIGHT))


default_qat_qconfig_setter = DefaultSetter()
default_calibration_qconfig_setter = calibration_setter()
default_qat_fixed_act_qconfig_setter = DefaultSetter(get_default_qat_qconfig(fix_scale=True))
