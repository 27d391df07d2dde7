"""`.hbir` text → IR (grammar: docs/ir.md). Whatever the text, the result is a module or a ParseError with the place.

The text is not trusted, so the module is well formed (names, operands, attributes of the declared kinds) but not
verified: `verify` checks what ops ask of their operands and attributes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hbc.diagnostics import (
    BadAttribute,
    BadConstant,
    BadOperands,
    BadValueName,
    Unexpected,
    UnknownOp,
    nearest,
)

from . import dense
from .builder import make_op
from .core import Graph, Module, Op, Placement, Value
from .kinds import attr_kinds
from .lexer import Lexer, Token
from .location import Loc, NodeLoc
from .ops import TABLE, CallGraph
from .parse_values import Literal, ValueParser
from .types import TensorType

_VERSION = re.compile(r"// hbir ([0-9]+)\s")


def parse_module(text: str, *, filename: str = "<string>", sidecar: Mapping[str, np.ndarray] | None = None) -> Module:
    """The module that `text` describes: a `module`, or a `graph` alone, which becomes a module of the defaults.

    `sidecar` holds the arrays that `@name` constants stand for. An op without `loc(…)` is located by its result's name.
    Raises ParseError with line, column and caret, and nothing else, for any text.
    """
    return _Parser(Lexer(text, filename), sidecar or {}).file()


def parse(text: str) -> Module:
    """`parse_module` of a text on its own."""
    return parse_module(text)


@dataclass
class _Suffixes:
    """What may stand behind the types of an op."""

    offsets: list[int | None] | None = None
    placement: Placement | None = None
    loc: Loc | None = None


class _Parser(ValueParser):
    def __init__(self, lexer: Lexer, sidecar: Mapping[str, np.ndarray]) -> None:
        super().__init__(lexer)
        self.sidecar = sidecar
        self.values: dict[str | int, Value] = {}  # numbers are the names of values without one
        self.made_bytes = 0  # of splat and seed constants

    # ---- module and graph

    def file(self) -> Module:
        version = _VERSION.match(self.lexer.text)
        if version and version[1] != "1":
            why = f"the text is of version {version[1][:20]}; this hbc reads version 1"
            first = Token("number", version[1], version.start(1))
            raise self.fail(Unexpected(expected="'hbir 1'", found=f"hbir {first.shown}", why=why), first)
        module = Module(self.graph()) if self.at("graph") else self.module()
        if self.lexer.current.kind != "end":
            raise self.unexpected("the end of the text")
        return module

    def module(self) -> Module:
        if not self.accept("module"):
            raise self.unexpected("'module' or 'graph'")
        module = Module(Graph(), self.symbol("the module's name, as in @model"))
        if self.at("{") and self.lexer.peek().text != "graph":
            self.lexer.advance()
            self.listed(lambda: self.module_attr(module), "}")
        self.expect("{")
        module.graph = self.graph()
        self.expect("}")
        return module

    def module_attr(self, module: Module) -> None:
        name = self.take("word", "march, arith or metadata")
        self.expect("=")
        if name.text in {"march", "arith"}:
            setattr(module, name.text, self.string("a string"))
        elif name.text == "metadata":
            self.expect("{")
            module.metadata = dict(self.listed(self.metadata_entry, "}"))
        else:
            message = f"no attribute {name.shown!r}, only march, arith and metadata"
            raise self.fail(BadAttribute(op="module", message=message), name)

    def metadata_entry(self) -> tuple[str, str]:
        key = self.string("a key between quotes")
        self.expect("=")
        return key, self.string("a string")

    def graph(self) -> Graph:
        self.expect("graph")
        graph = Graph(self.symbol("the graph's name, as in @main"))
        self.expect("(")
        self.listed(lambda: self.argument(graph), ")")
        self.expect("->")
        self.expect("(")
        outputs = self.listed(self.output, ")")
        self.expect("{")
        if self.at("arena_size"):
            self.lexer.advance()
            self.expect("=")
            graph.arena_size = self.integer("a number of bytes")
            self.expect("}")
            self.expect("{")
        while not self.accept("}"):
            graph.ops.append(self.op())
        for name, token in outputs:
            graph.add_output(name, self.lookup(token, "in this graph"))
        return graph

    def argument(self, graph: Graph) -> None:
        token = self.take("value", "an argument, as in %x: tensor<1x8xf32>")
        key = self.value_key(token)
        self.expect(":")
        value = graph.add_arg(str(key), self.tensor_type())
        self.define(key, value, token)
        if self.at("mem"):
            (value.offset,) = self.offsets(1)

    def output(self) -> tuple[str, Token]:
        current = self.lexer.current
        if current.kind == "value":
            return str(self.value_key(current)), self.lexer.advance()
        if current.kind not in {"word", "string"}:
            raise self.unexpected("an output, as in %y or name = %y")
        self.lexer.advance()
        name = self.unquoted(current) if current.kind == "string" else current.text
        self.expect("=")
        return name, self.take("value", "a value, as in %y")

    # ---- values

    def value_key(self, token: Token) -> str | int:
        name = token.text[1:]
        if name[0] == '"':
            return self.unquoted(replace(token, text=name))
        if not name[0].isdigit():
            return name
        if len(name) > 18:
            raise self.fail(BadValueName(message="a value number has 18 digits at most"), token)
        return int(name)

    def define(self, key: str | int, value: Value, token: Token) -> None:
        if key in self.values:
            raise self.fail(BadValueName(message=f"{token.shown} is defined twice"), token)
        self.values[key] = value

    def lookup(self, token: Token, where: str = "above this line") -> Value:
        key = self.value_key(token)
        if key not in self.values:
            hint = nearest(f"%{key}", (f"%{k}" for k in self.values))
            raise self.fail(BadValueName(message=f"{token.shown} is not defined {where}", hint=hint), token)
        return self.values[key]

    # ---- ops

    def op(self) -> Op:
        start = self.lexer.current
        names = self.result_names()
        token = self.take("word", "an op, as in %y = add %a, %b : tensor<8xf32>, or '}'")
        cls = TABLE.get(token.text)
        if cls is None:
            raise self.fail(UnknownOp(name=token.shown, hint=nearest(token.text, TABLE)), token)
        operands = self.operands(cls, token)
        attrs = self.attrs(cls, token)
        types = self.types(len(names), may_be_dynamic=cls is CallGraph)
        suffixes = self.suffixes(len(names))
        for name, value in attrs.items():
            if isinstance(value, Literal):
                attrs[name] = self.constant(value, types)
        keys = [self.value_key(n) for n in names]
        loc = suffixes.loc or NodeLoc(start.text if names else token.text)
        op = make_op(cls, operands, attrs, loc, types, [k if isinstance(k, str) else None for k in keys])
        op.placement = suffixes.placement
        for value, offset in zip(op.results, suffixes.offsets or [], strict=False):
            value.offset = offset
        for key, value, name_token in zip(keys, op.results, names, strict=True):
            self.define(key, value, name_token)
        return op

    def result_names(self) -> list[Token]:
        names = []
        while self.lexer.current.kind == "value":
            names.append(self.lexer.advance())
            if not self.accept(","):
                self.expect("=")
                break
        return names

    def operands(self, cls: type[Op], op: Token) -> list[Value | None]:
        operands: list[Value | None] = []
        while self.lexer.current.kind == "value" or self.at("_"):
            token = self.lexer.advance()
            operands.append(None if token.text == "_" else self.lookup(token))
            if not self.accept(","):
                break
        variadic = any(o.variadic for o in cls.OPERANDS)
        if len(operands) > len(cls.OPERANDS) and not variadic:
            message = f"{len(operands)} operands, but it takes {len(cls.OPERANDS)}"
            raise self.fail(BadOperands(op=cls.NAME, message=message), op)
        for i, spec in enumerate(cls.OPERANDS):
            values = operands[i:] if spec.variadic else operands[i : i + 1] or [None]
            if not spec.optional and None in values:
                raise self.fail(BadOperands(op=cls.NAME, message=f"operand {i} ({spec.name!r}) is missing"), op)
        return operands

    def types(self, count: int, *, may_be_dynamic: bool) -> list[TensorType]:
        if count == 0:
            return []
        self.expect(":")
        types = [self.tensor_type(may_be_dynamic=may_be_dynamic)]
        while len(types) < count:
            if not self.accept(","):
                raise self.unexpected(f"',' and a type: there are {count} results")
            types.append(self.tensor_type(may_be_dynamic=may_be_dynamic))
        return types

    def suffixes(self, results: int) -> _Suffixes:
        found = _Suffixes()
        while True:
            if found.offsets is None and self.at("mem"):
                found.offsets = self.offsets(results)
            elif found.placement is None and self.lexer.current.kind == "at":
                found.placement = self.placement()
            elif found.loc is None and self.at("loc"):
                found.loc = self.loc()
            else:
                return found

    def offsets(self, count: int) -> list[int | None]:
        self.expect("mem")
        token = self.expect("(")
        offsets = self.listed(lambda: None if self.accept("_") else self.integer("an offset or '_'"), ")")
        if len(offsets) != count:
            raise self.fail(Unexpected(expected=f"{count} offsets", found=f"{len(offsets)}"), token)
        return offsets

    def placement(self) -> Placement:
        device = self.symbol("a device, as in @bpu(0)")
        self.expect("(")
        segment = self.integer("a segment's number")
        reason = self.string("a reason") if self.accept(",") else ""
        self.expect(")")
        return Placement(device, reason, segment)

    # ---- attributes

    def attrs(self, cls: type[Op], op: Token) -> dict[str, object]:
        attrs: dict[str, object] = {}
        if self.accept("{"):
            self.listed(lambda: self.attr(cls, attrs), "}")
        for spec in cls.ATTRS:
            if spec.required and spec.name not in attrs:
                raise self.fail(BadAttribute(op=cls.NAME, message=f"attribute {spec.name!r} is missing"), op)
        return attrs

    def attr(self, cls: type[Op], attrs: dict[str, object]) -> None:
        token = self.take("word", "an attribute's name")
        kinds = attr_kinds(cls)
        if token.text not in kinds:
            why = f"its attributes are {', '.join(kinds)}" if kinds else "it takes no attributes"
            unknown = BadAttribute(
                op=cls.NAME, message=f"no attribute {token.shown!r}", why=why, hint=nearest(token.text, kinds)
            )
            raise self.fail(unknown, token)
        if token.text in attrs:
            raise self.fail(BadAttribute(op=cls.NAME, message=f"attribute {token.text!r} is given twice"), token)
        self.expect("=")
        attrs[token.text] = self.attr_value(cls, token.text, kinds[token.text])

    # ---- constants

    def constant(self, literal: Literal, types: list[TensorType]) -> np.ndarray:
        if len(types) != 1:
            raise self.fail(BadConstant(message="a constant has one result"), literal.token)
        try:
            if literal.dense.form == "name":
                return self.beside(literal.dense.items[0], types[0])
            if literal.dense.form in {"splat", "seed"}:
                self.made_bytes += types[0].nbytes
                dense.check_made_bytes(self.made_bytes)
            return dense.array_of(literal.dense, types[0])
        except ValueError as error:
            raise self.fail(BadConstant(message=str(error)), literal.token) from None

    def beside(self, name: str, type_: TensorType) -> np.ndarray:
        array = self.sidecar.get(name)
        if array is None:
            hint = nearest(name, self.sidecar) or "load the file with its .npz"
            msg = f"there is no array {name!r} beside this text; {hint}"
            raise ValueError(msg)
        if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
            found, want = f"{array.dtype}{list(array.shape)}", f"{type_.dtype.numpy}{list(type_.shape)}"
            msg = f"the array {name!r} is {found}, but the type is {want}"
            raise ValueError(msg)
        return array
