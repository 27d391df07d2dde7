"""What an attribute may hold, read off the annotations of op classes and of the runtime's instructions."""

from __future__ import annotations

import enum
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .core import Op
from .define import AttrSpec, OperandSpec
from .ops.bpu import BpuOp
from .types import DType

ANY_SIZE = -1
_WORDS = {int: "int", float: "float", bool: "bool", str: "string", np.ndarray: "constant"}


@dataclass(frozen=True)
class Kind:
    """`base`: int, float, bool, str, np.ndarray, an IntEnum, or object for anything.

    `size`: None for one of it, else the length of a tuple of it (ANY_SIZE for every length).
    """

    base: type
    size: int | None = None

    @property
    def text(self) -> str:
        """For messages: `a float`, `a tuple of 2 ints`, `one of HALF_EVEN_F32, HALF_AWAY_F64`."""
        if self.base is object:
            return "an int, a float, a bool, a string or a tuple of them"
        word = _WORDS.get(self.base)
        if self.size is not None:
            count = "" if self.size == ANY_SIZE else f"{self.size} "
            return f"a tuple of {count}{word or self.base.__name__}s"
        if word is None:
            return f"one of {', '.join(self.members)}"
        return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"

    @property
    def members(self) -> dict[str, object]:
        """The enum's members by their name in text; empty for other bases."""
        if issubclass(self.base, DType):
            return {d.text: d for d in self.base}
        return {m.name: m for m in self.base} if issubclass(self.base, enum.IntEnum) else {}

    def conform(self, value: object) -> object:
        """`value` in its plain Python form (no NumPy scalars, no lists); TypeError where it is not of this kind."""
        if self.size is None:
            return self._conform_one(value)
        if not isinstance(value, (tuple, list)) or self.size not in {ANY_SIZE, len(value)}:
            msg = f"{value!r} is not {self.text}"
            raise TypeError(msg)
        return tuple(self._conform_one(v) for v in value)

    def _conform_one(self, value: object) -> object:
        plain = _plain(value)
        if self.base is object:
            return plain
        is_int = isinstance(plain, int) and not isinstance(plain, bool)
        if self.base is float and (is_int or isinstance(plain, float)):
            return float(typing.cast("float", plain))
        if issubclass(self.base, enum.IntEnum) and is_int and plain in list(self.base):
            return self.base(typing.cast("int", plain))
        if (self.base is int and is_int) or (self.base in {bool, str, np.ndarray} and isinstance(plain, self.base)):
            return plain
        msg = f"{value!r} is not {Kind(self.base).text}"
        raise TypeError(msg)


ANYTHING = Kind(object)


def _plain(value: object) -> object:
    if isinstance(value, (enum.IntEnum, bool, str, np.ndarray)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(v) for v in value)
    msg = f"{value!r} is not {ANYTHING.text}"
    raise TypeError(msg)


_KINDS: dict[type[Op], Mapping[str, Kind]] = {}


def attr_kinds(cls: type[Op]) -> Mapping[str, Kind]:
    """The kind of every attribute of an op class, in declaration order."""
    if cls not in _KINDS:
        _KINDS[cls] = _read_kinds(cls)
    return _KINDS[cls]


def _read_kinds(cls: type[Op]) -> Mapping[str, Kind]:
    if issubclass(cls, BpuOp):
        hints = typing.get_type_hints(cls.INSTRUCTION)
    else:
        # core.Op's own annotations name classes that it imports for type checkers alone
        hints = typing.get_type_hints(cls, localns={"OperandSpec": OperandSpec, "AttrSpec": AttrSpec})
    return {a.name: _kind_of(hints.get(a.name, object)) for a in cls.ATTRS}


def _kind_of(hint: object) -> Kind:
    if isinstance(hint, type) and (hint in _WORDS or issubclass(hint, enum.IntEnum)):
        return Kind(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and arguments and isinstance(arguments[0], type):
        if arguments[1:] == (...,):
            return Kind(arguments[0], ANY_SIZE)
        if len(set(arguments)) == 1:
            return Kind(arguments[0], len(arguments))
    return ANYTHING


def plain_attrs(op: Op) -> dict[str, object]:
    """The attributes in declaration order and plain form; what is not of its kind as it is."""
    plain = {}
    for name, kind in attr_kinds(type(op)).items():
        value = op.attrs.get(name)
        try:
            plain[name] = kind.conform(value)
        except TypeError:
            plain[name] = value
    return plain
