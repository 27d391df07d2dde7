"""The op table's machinery: `@define_op` turns a class body of `operand()` and `attr()` into an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from .core import Op, Value

OpClass = TypeVar("OpClass", bound=type[Op])
OP_TABLE: dict[str, type[Op]] = {}
_REQUIRED = object()


@dataclass(frozen=True)
class OperandSpec:
    """One operand: its name, whether it may be missing, whether it takes all the rest."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class AttrSpec:
    """One attribute: its name and its default (`required` where it has none)."""

    name: str
    default: object = None
    required: bool = True


class _Operand:
    def __init__(self, *, optional: bool, variadic: bool) -> None:
        self.optional, self.variadic, self.index = optional, variadic, -1

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type) -> _Operand: ...
    @overload
    def __get__(self, op: Op, owner: type) -> Any: ...
    def __get__(self, op: Op | None, owner: type) -> Any:
        if op is None:
            return self
        return tuple(op.operands[self.index :]) if self.variadic else op.operands[self.index]


class _Attr:
    def __init__(self, default: object) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type) -> _Attr: ...
    @overload
    def __get__(self, op: Op, owner: type) -> Any: ...
    def __get__(self, op: Op | None, owner: type) -> Any:
        return self if op is None else op.attrs[self.name]


def operand(*, optional: bool = False, variadic: bool = False) -> Any:
    """Declare an operand: `x: Value = operand()`; optional ones read as None, a variadic one (last) as a tuple."""
    return _Operand(optional=optional, variadic=variadic)


def attr(default: object = _REQUIRED) -> Any:
    """Declare an attribute: int, float, bool, str, IntEnum, tuple of those, or a NumPy array (`const` alone)."""
    return _Attr(default)


def define_op(name: str) -> Callable[[OpClass], OpClass]:
    """Enter a class into the op table under its `.hbir` name. Inherited declarations come first."""

    def enter(cls: OpClass) -> OpClass:
        fields: dict[str, object] = {}
        for base in reversed(cls.__mro__):
            fields.update({k: v for k, v in vars(base).items() if isinstance(v, (_Operand, _Attr))})
        operands = [v for v in fields.values() if isinstance(v, _Operand)]
        for i, v in enumerate(operands):
            assert v.index in {-1, i}, f"{name}: operand {v.name} is inherited at another position"
            v.index = i
        cls.NAME = name
        cls.OPERANDS = tuple(OperandSpec(v.name, v.optional, v.variadic) for v in operands)
        cls.ATTRS = tuple(
            AttrSpec(v.name, None if v.default is _REQUIRED else v.default, v.default is _REQUIRED)
            for v in fields.values()
            if isinstance(v, _Attr)
        )
        assert name not in OP_TABLE, f"two ops named {name}"
        OP_TABLE[name] = cls
        return cls

    return enter


def bind_attrs(cls: type[Op], given: Mapping[str, object]) -> dict[str, object]:
    """`given` in declaration order with defaults filled in; TypeError for unknown or missing names."""
    unknown = set(given) - {a.name for a in cls.ATTRS}
    if unknown:
        msg = f"{cls.NAME} has no attribute {min(unknown)!r}"
        raise TypeError(msg)
    bound = {}
    for a in cls.ATTRS:
        if a.required and a.name not in given:
            msg = f"{cls.NAME} needs attribute {a.name!r}"
            raise TypeError(msg)
        bound[a.name] = given.get(a.name, a.default)
    return bound


def bind_operands(cls: type[Op], given: tuple[Value | None, ...]) -> list[Value | None]:
    """`given` padded with None for missing optional operands; TypeError where the count or a required one is wrong."""
    values = list(given)
    fixed = [o for o in cls.OPERANDS if not o.variadic]
    if len(values) > len(fixed) and len(fixed) == len(cls.OPERANDS):
        msg = f"{cls.NAME} takes {len(fixed)} operands, not {len(values)}"
        raise TypeError(msg)
    values += [None] * (len(fixed) - len(values))
    for spec, value in zip(fixed, values, strict=False):
        if value is None and not spec.optional:
            msg = f"{cls.NAME} needs operand {spec.name!r}"
            raise TypeError(msg)
    return values
