"""The parts of `.hbir` text below an op: locations, types, attribute values, constants."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hbc.diagnostics import BadAttribute, BadType, ParseError, Unexpected, nearest

from . import dense
from .core import Op
from .cursor import INT, Cursor, T
from .dense import Dense
from .kinds import ANY_SIZE, Kind
from .lexer import Token
from .location import FileLoc, FusedLoc, Loc, NodeLoc
from .types import DYNAMIC, DType, Quant, TensorType

_SHAPE_AND_DTYPE = re.compile(r"((?:(?:[0-9]+|\?)x)*)([A-Za-z_][A-Za-z0-9_]*)")
_WORD_OF_TYPE = re.compile(r"[^<>,\s]+")
_MAX_RANK = 32
_MAX_DIM = (1 << 31) - 1
_DTYPES = {d.text: d for d in DType}


@dataclass(frozen=True)
class Literal:
    """A constant whose type is still to come, and where it stands."""

    dense: Dense
    token: Token


class ValueParser(Cursor):
    """Reads types, attribute values and locations."""

    # ---- locations

    def loc(self) -> Loc:
        self.expect("loc")
        self.expect("(")
        if self.accept("fused"):
            self.expect("[")
            loc: Loc = FusedLoc(tuple(self.listed(self.loc_part, "]")))
            self.expect(")")
        elif self.at("file"):
            loc = self.file_loc()
            self.expect(")")
        else:
            loc = self.node_loc()
        return loc

    def loc_part(self) -> NodeLoc | FileLoc:
        if self.at("file"):
            return self.file_loc()
        if self.accept("("):
            return self.node_loc()
        return NodeLoc(self.string("a node's name"))

    def file_loc(self) -> FileLoc:
        self.expect("file")
        return FileLoc(self.string("a file's name"))

    def node_loc(self) -> NodeLoc:
        words = [self.string("a node's name")]
        while not self.accept(")"):
            if len(words) == 3:
                raise self.unexpected("')'")
            self.expect(",")
            words.append(self.string("a string"))
        return NodeLoc(*words)

    # ---- types

    def tensor_type(self, *, may_be_dynamic: bool = False) -> TensorType:
        self.expect("tensor")
        if not self.at("<"):
            raise self.unexpected("'<'")
        match = self.lexer.advance_into(_SHAPE_AND_DTYPE)
        if match is None:
            raise self.not_a_shape()
        place = Token("word", match[0], match.start())
        shape = self.shape(match[1], place)
        if DYNAMIC in shape and not may_be_dynamic:
            why = "only results of call_graph may have open sizes"
            raise self.fail(BadType(message=f"{place.quoted} has an open size", why=why), place)
        if match[2] not in _DTYPES:
            hint = nearest(match[2], _DTYPES) or f"dtypes are {', '.join(_DTYPES)}"
            word = Token("word", match[2], match.start(2))
            raise self.fail(BadType(message=f"no dtype is named {word.shown!r}", hint=hint), word)
        quant = self.quant() if self.accept(",") else None
        self.expect(">")
        return TensorType(shape, _DTYPES[match[2]], quant)

    def not_a_shape(self) -> ParseError:
        match = self.lexer.advance_into(_WORD_OF_TYPE)
        if match is None:
            self.lexer.advance()
            return self.unexpected("sizes and a dtype, as in 1x3x8x8xi8")
        place = Token("word", match[0], match.start())
        message = f"{place.quoted} is not sizes and a dtype, as in 1x3x8x8xi8"
        return self.fail(BadType(message=message, why="every size is a number, or ? in results of call_graph"), place)

    def shape(self, text: str, place: Token) -> tuple[int, ...]:
        dims = text.split("x")[:-1]
        if len(dims) > _MAX_RANK:
            raise self.fail(BadType(message=f"a rank of {len(dims)}; {_MAX_RANK} is the most"), place)
        if any(len(d) > 10 or (d != "?" and int(d) > _MAX_DIM) for d in dims):
            raise self.fail(BadType(message=f"a size is over {_MAX_DIM}"), place)
        return tuple(DYNAMIC if d == "?" else int(d) for d in dims)

    def quant(self) -> Quant:
        start = self.expect("q")
        self.expect("<")
        axis = None
        if self.accept("axis"):
            self.expect("=")
            axis = self.integer("an axis")
            self.expect(",")
        scales = self.one_or_list(self.scale)
        self.expect(":")
        zero_points = self.one_or_list(lambda: self.integer("a zero point"))
        self.expect(">")
        try:
            return Quant(tuple(scales), tuple(zero_points), axis)
        except ValueError as error:
            hint = "name the axis, as in q<axis=0, [0.1, 0.2]:[0, 0]>" if axis is None else ""
            raise self.fail(BadType(message=str(error), hint=hint), start) from None

    def one_or_list(self, item: Callable[[], T]) -> list[T]:
        return self.listed(item, "]") if self.accept("[") else [item()]

    def scale(self) -> float:
        return dense.read_quant_float(self.take("number", "a scale").text)

    # ---- attributes

    def attr_value(self, cls: type[Op], name: str, kind: Kind) -> object:
        start = self.lexer.current
        if kind.base is np.ndarray:
            return Literal(self.dense(), start)
        if self.accept("["):
            value: object = tuple(self.listed(lambda: self.scalar(kind), "]"))
        else:
            value = self.scalar(kind)
        try:
            return kind.conform(value)
        except TypeError:
            found = f"a tuple of {len(value)}" if isinstance(value, tuple) and kind.size != ANY_SIZE else start.quoted
            message = f"attribute {name!r} is {kind.text}, not {found}"
            raise self.fail(BadAttribute(op=cls.NAME, message=message), start) from None

    def scalar(self, kind: Kind) -> object:
        token = self.lexer.current
        if token.kind == "number" and INT.fullmatch(token.text):
            return int(self.lexer.advance().text)
        if token.kind == "number" and not token.text.endswith("f64") and not token.text.lstrip("-").isdigit():
            return float(self.lexer.advance().text)
        if token.kind == "string":
            return self.string("a string")
        if token.text in {"true", "false"}:
            return self.lexer.advance().text == "true"
        if token.text in kind.members:
            return kind.members[self.lexer.advance().text]
        hint = nearest(token.text, kind.members)
        raise self.fail(Unexpected(expected=kind.text, found=token.quoted, hint=hint))

    # ---- constants

    def dense(self) -> Dense:
        if self.lexer.current.kind == "at":
            return Dense("name", (self.symbol("a name"),))
        self.expect("dense")
        self.expect("<")
        if self.accept("["):
            form = Dense("list", tuple(self.listed(self.element, "]")))
        elif self.accept("splat") or (self.lexer.current.kind == "number"):
            form = Dense("splat", (self.element(),))
        elif self.accept("seed"):
            form = Dense("seed", (self.take("number", "a seed, as in seed 7").text,))
        elif self.accept("hex"):
            form = Dense("hex", (self.take("string", "hex digits between quotes").text[1:-1],))
        elif self.accept("elided"):
            form = Dense("elided")
        else:
            raise self.unexpected('one of [elements], splat 0, seed 7, hex "00ff"')
        self.expect(">")
        return form

    def element(self) -> str:
        if self.lexer.current.kind != "number" and not (self.at("true") or self.at("false")):
            raise self.unexpected("a number, true or false")
        return self.lexer.advance().text
