"""Instructions' attributes ⇄ what the container stores, by reflection on the dataclass fields of `isa`.

So a new instruction needs no line here, and a value of the wrong type never reaches a kernel.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from ..isa import INSTRUCTIONS, Instruction, Opcode

Value = int | float | str | tuple[int, ...] | tuple[float, ...]
_COMMON = {"inputs", "outputs", "loc"}  # stored as fields of the table, not as attributes


class Kind(enum.IntEnum):
    """How a value is stored; the numbers are those of AttributeKind in schema.fbs."""

    INT = 0
    FLOAT = 1
    TEXT = 2
    INTS = 3
    FLOATS = 4


@dataclass(frozen=True)
class Attribute:
    """One attribute of an instruction class. `scalar` is int, bool or an enum for Kind.INT."""

    name: str
    kind: Kind
    scalar: type
    required: bool


def attributes_of(cls: type[Instruction]) -> tuple[Attribute, ...]:
    """The attributes of an instruction class, in the order of its fields."""
    return _attributes(cls.opcode)


@functools.cache
def _attributes(opcode: Opcode) -> tuple[Attribute, ...]:
    cls = INSTRUCTIONS[opcode]
    hints = typing.get_type_hints(cls)
    return tuple(
        Attribute(f.name, *_kind(hints[f.name]), f.default is dataclasses.MISSING)
        for f in dataclasses.fields(cls)
        if f.name not in _COMMON
    )


def _kind(hint: object) -> tuple[Kind, type]:
    if hint == tuple[int, ...]:
        return Kind.INTS, int
    if hint == tuple[float, ...]:
        return Kind.FLOATS, float
    if hint is float:
        return Kind.FLOAT, float
    if hint is str:
        return Kind.TEXT, str
    if isinstance(hint, type) and issubclass(hint, int):  # int, bool, IntEnum
        return Kind.INT, hint
    msg = f"the container cannot store an attribute of type {hint}"
    raise TypeError(msg)


def encode(op: Instruction) -> list[tuple[str, Kind, Value]]:
    """Name, kind and plain value of every attribute of `op`. Raises ValueError where a value has another type."""
    out = []
    for a in attributes_of(type(op)):
        try:
            out.append((a.name, a.kind, _plain(a.kind, getattr(op, a.name))))
        except TypeError as err:
            msg = f"attribute {a.name!r}: {err}"
            raise ValueError(msg) from err
    return out


def _plain(kind: Kind, value: typing.Any) -> Value:
    if kind is Kind.INT:
        return operator.index(value)
    if kind is Kind.INTS:
        return tuple(map(operator.index, value))
    if kind is Kind.FLOAT:
        return float(value)
    if kind is Kind.FLOATS:
        return tuple(map(float, value))
    if not isinstance(value, str):
        msg = f"{value!r} is not text"
        raise TypeError(msg)
    return value


def decode(cls: type[Instruction], stored: Mapping[str, tuple[Kind, Value]]) -> dict[str, Value]:
    """The keyword arguments of `cls` that `stored` stands for.

    Raises ValueError for an unknown or missing attribute, one of another kind, or a number that its enum lacks.
    """
    known = {a.name: a for a in attributes_of(cls)}
    unknown = [name for name in stored if name not in known]
    if unknown:
        msg = f"unknown attribute {unknown[0]!r}; {cls.__name__} has {', '.join(known) or 'none'}"
        raise ValueError(msg)
    missing = [a.name for a in known.values() if a.required and a.name not in stored]
    if missing:
        msg = f"attribute {missing[0]!r} is missing"
        raise ValueError(msg)
    return {name: _typed(known[name], kind, value) for name, (kind, value) in stored.items()}


def _typed(a: Attribute, kind: Kind, value: Value) -> Value:
    if kind is not a.kind:
        msg = f"attribute {a.name!r} is stored as {kind.name}, it should be {a.kind.name}"
        raise ValueError(msg)
    if a.kind is not Kind.INT or a.scalar is int:
        return value
    if a.scalar is bool:
        if value not in {0, 1}:
            msg = f"attribute {a.name!r} is {value}, neither 0 nor 1"
            raise ValueError(msg)
        return bool(value)
    try:
        return typing.cast("int", a.scalar(value))
    except ValueError:
        msg = f"attribute {a.name!r} is {value}, which is no {a.scalar.__name__}"
        raise ValueError(msg) from None
