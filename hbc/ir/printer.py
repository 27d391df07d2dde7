"""IR → `.hbir` text: one op, one line, one form for all ops. Equal modules print as equal bytes (docs/ir.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import numpy as np

from . import dense
from .core import Graph, Module, Op, Placement, Value
from .kinds import ANYTHING, attr_kinds, plain_attrs
from .location import FileLoc, FusedLoc, Loc, NodeLoc
from .naming import Namer, bare_or_quoted, quote, value_names, value_text
from .types import DYNAMIC, DType, Quant, TensorType

HEADER = "// hbir 1"
_WORD = re.compile(r"(?!(?:inf|nan)$)[A-Za-z_][A-Za-z0-9_.]*")
_NOT_BARE = re.compile(r"[^A-Za-z0-9_.$-]")
_NPZ_WORDS = ("file", "allow_pickle")  # parameters of numpy.savez, which takes arrays by keyword
Consts = Literal["inline", "elide"]


def print_module(module: Module, *, locs: bool = False, consts: Consts = "inline") -> str:
    """The module as text that `parse_module` reads back.

    `locs` adds the source location of every op. `consts="elide"` shortens constants without a short form to
    `dense<elided>`, for reading only.
    """
    return "\n".join(_Printer(module.graph, locs=locs, consts=consts).module(module)) + "\n"


def print_with_arrays(module: Module, *, locs: bool = True) -> tuple[str, dict[str, np.ndarray]]:
    """The module as text, and beside it the large constants, by the names that the text gives them."""
    printer = _Printer(module.graph, locs=locs, consts="beside")
    text = "\n".join(printer.module(module)) + "\n"
    return text, printer.arrays


def print_op(graph: Graph, op: Op, *, locs: bool = False) -> str:
    """The line of one op of `graph`, for messages; large constants are elided."""
    return _Printer(graph, locs=locs, consts="elide").op(op)


def print_type(t: TensorType) -> str:
    """`tensor<1x3x8x8xi8, q<0.05:-3>>`; a size that is known only after a run is `?`."""
    dims = "".join("?x" if d == DYNAMIC else f"{d}x" for d in t.shape)
    quant = "" if t.quant is None else f", {print_quant(t.quant)}"
    return f"tensor<{dims}{t.dtype.text}{quant}>"


@lru_cache(maxsize=1024)
def print_quant(q: Quant) -> str:
    """`q<0.05:-3>`, or `q<axis=0, [0.1, 0.2]:[0, 0]>`.

    Kept, as the verifier words what it expects after every pass, and a weight has a scale per channel.
    """
    scales = [dense.quant_float_text(s) for s in q.scale]
    if q.axis is None:
        return f"q<{scales[0]}:{q.zero_point[0]}>"
    return f"q<axis={q.axis}, [{', '.join(scales)}]:[{', '.join(map(str, q.zero_point))}]>"


def print_attr(value: object) -> str:
    """An attribute in its plain form (see kinds.py) that is not an array."""
    match value:
        case bool():
            return "true" if value else "false"
        case DType():
            return value.text
        case int():
            return getattr(value, "name", None) or str(value)  # an enum's name
        case float():
            return repr(value)
        case str():
            return quote(value)
        case tuple():
            return f"[{', '.join(map(print_attr, value))}]"
        case _:
            msg = f"{value!r} is not {ANYTHING.text}"
            raise TypeError(msg)


def print_loc(loc: Loc) -> str:
    """`loc("node", "Conv", "m.onnx")`, `loc(file "m.onnx")` or `loc(fused["a", ("b", "Relu")])`."""
    if isinstance(loc, FusedLoc):
        parts = ", ".join(_part(p, grouped=True) for p in loc.parts)
        return f"loc(fused[{parts}])"
    return f"loc({_part(loc, grouped=False)})"


def _part(loc: NodeLoc | FileLoc, *, grouped: bool) -> str:
    if isinstance(loc, FileLoc):
        return f"file {quote(loc.file)}"
    words = [loc.node, loc.op_type, loc.file]
    while len(words) > 1 and not words[-1]:
        words.pop()
    text = ", ".join(map(quote, words))
    return f"({text})" if grouped and len(words) > 1 else text


class _Printer:
    def __init__(self, graph: Graph, *, locs: bool, consts: Literal["inline", "elide", "beside"]) -> None:
        self.graph = graph
        self.locs = locs
        self.consts = consts
        self.names = value_names(graph)
        self.arrays: dict[str, np.ndarray] = {}
        self._array_namer = Namer(_NPZ_WORDS)

    def module(self, module: Module) -> list[str]:
        attrs = {}
        if module.march != Module.march:
            attrs["march"] = quote(module.march)
        if module.arith != Module.arith:
            attrs["arith"] = quote(module.arith)
        if module.metadata:
            pairs = (f"{quote(k)} = {quote(v)}" for k, v in sorted(module.metadata.items()))
            attrs["metadata"] = f"{{{', '.join(pairs)}}}"
        head = f"module @{bare_or_quoted(module.name)}{_braced(attrs)} {{"
        return [HEADER, head, *(f"  {line}" for line in self.graph_lines()), "}"]

    def graph_lines(self) -> list[str]:
        g = self.graph
        args = ", ".join(f"{self.value(a)}: {print_type(a.type)}{_mem([a])}" for a in g.args)
        outs = ", ".join(self._output(o.name, o.value) for o in g.outputs)
        attrs = {} if g.arena_size is None else {"arena_size": str(g.arena_size)}
        head = f"graph @{bare_or_quoted(g.name)}({args}) -> ({outs}){_braced(attrs)} {{"
        return [head, *(f"  {self.op(op)}" for op in g.ops), "}"]

    def value(self, value: Value | None) -> str:
        if value is None:
            return "_"
        return value_text(self.names[value]) if value in self.names else '%"(not in this graph)"'

    def _output(self, name: str, value: Value) -> str:
        if self.names.get(value) == name:
            return self.value(value)
        return f"{name if _WORD.fullmatch(name) else quote(name)} = {self.value(value)}"

    def op(self, op: Op) -> str:
        results = ", ".join(map(self.value, op.results))
        operands = ", ".join(map(self.value, without_trailing_none(op.operands)))
        types = ", ".join(print_type(r.type) for r in op.results)
        head = f"{results} = {op.NAME}" if results else op.NAME
        text = f"{head} {operands}".rstrip() + _braced(self._attrs(op))
        text += f" : {types}" if types else ""
        text += _mem(op.results) + _placement(op.placement)
        return f"{text} {print_loc(op.loc)}" if self.locs else text

    def _attrs(self, op: Op) -> dict[str, str]:
        values = plain_attrs(op)
        kinds = attr_kinds(type(op))
        texts = {}
        for spec in op.ATTRS:
            value = values[spec.name]
            if isinstance(value, np.ndarray):
                texts[spec.name] = self._constant(op, value)
            elif spec.required or not _is_default(kinds[spec.name].conform(spec.default), value):
                texts[spec.name] = print_attr(value)
        return texts

    def _constant(self, op: Op, value: np.ndarray) -> str:
        if self.consts != "inline" and dense.is_large(value):
            if self.consts == "elide":
                return "dense<elided>"
            hint = (op.results[0].name if op.results else None) or "constant"
            name = self._array_namer.name(_NOT_BARE.sub("_", hint if hint[0].isalpha() else f"c{hint}"))
            self.arrays[name] = value
            return f"@{name}"
        form = dense.dense_of(value)
        match form.form:
            case "list":
                return f"dense<[{', '.join(form.items)}]>"
            case "hex":
                return f'dense<hex "{form.items[0]}">'
            case _:
                return f"dense<{form.form} {form.items[0]}>"


def without_trailing_none(operands: Iterable[Value | None]) -> list[Value | None]:
    """Operands as they are written: missing ones at the end are left out."""
    kept = list(operands)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def _is_default(default: object, value: object) -> bool:
    return type(default) is type(value) and print_attr(default) == print_attr(value)  # text tells −0.0 from 0.0


def _braced(attrs: Mapping[str, str]) -> str:
    return f" {{{', '.join(f'{k} = {v}' for k, v in attrs.items())}}}" if attrs else ""


def _mem(values: list[Value]) -> str:
    if all(v.offset is None for v in values):
        return ""
    return f" mem({', '.join('_' if v.offset is None else str(v.offset) for v in values)})"


def _placement(placement: Placement | None) -> str:
    if placement is None:
        return ""
    reason = f", {quote(placement.reason)}" if placement.reason else ""
    return f" @{bare_or_quoted(placement.device)}({placement.segment}{reason})"
