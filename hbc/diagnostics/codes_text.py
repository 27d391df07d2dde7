"""E01: the text of the IR."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, case


@dataclass(frozen=True, kw_only=True)
class BadText(Diagnostic):
    """`.hbir` text is malformed in a way that has no code of its own."""

    CODE = "E0100"
    EXAMPLE = case(title="the text can't be read", loc="model.hbir:3:7")


@dataclass(frozen=True, kw_only=True)
class Unexpected(Diagnostic):
    """The `.hbir` text has something else where the grammar (docs/ir.md) wants a certain thing."""

    CODE = "E0101"
    TITLE = "expected {expected}, found {found}"
    EXAMPLE = case(expected="an op", found="'}'", loc="model.hbir:3:7")
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class UnknownOp(Diagnostic):
    """The `.hbir` text has an op that is not in the op table (`hbc ops` prints it)."""

    CODE = "E0102"
    TITLE = "no op is named {name!r}"
    HINT = "`hbc ops` lists every op"
    EXAMPLE = case(name="cnov2d", hint="did you mean 'conv2d'?", loc="model.hbir:3:12")
    name: str


@dataclass(frozen=True, kw_only=True)
class BadAttribute(Diagnostic):
    """An attribute in the `.hbir` text is unknown to its op, given twice, missing, or of the wrong kind."""

    CODE = "E0103"
    TITLE = "{op}: {message}"
    EXAMPLE = case(op="conv2d", message="attribute 'stride' is unknown", hint="did you mean 'strides'?")
    op: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BadValueName(Diagnostic):
    """A value of the `.hbir` text is read before it is defined, or two values have one name."""

    CODE = "E0104"
    TITLE = "{message}"
    EXAMPLE = case(message="%3 is defined twice", loc="model.hbir:5:5")
    message: str


@dataclass(frozen=True, kw_only=True)
class BadType(Diagnostic):
    """A tensor type in the `.hbir` text has an unknown dtype, an impossible size or an inconsistent quantisation."""

    CODE = "E0105"
    TITLE = "{message}"
    EXAMPLE = case(message="no dtype is named 'i9'", loc="model.hbir:2:31")
    message: str


@dataclass(frozen=True, kw_only=True)
class BadConstant(Diagnostic):
    """A `dense<…>` literal of the `.hbir` text, or its array in the `.npz` beside it, does not fit its type."""

    CODE = "E0106"
    TITLE = "{message}"
    EXAMPLE = case(message="a constant has one result", loc="model.hbir:2:9")
    message: str


@dataclass(frozen=True, kw_only=True)
class BadOperands(Diagnostic):
    """An op of the `.hbir` text has too many operands, or lacks one that it needs."""

    CODE = "E0107"
    TITLE = "{op}: {message}"
    EXAMPLE = case(op="conv2d", message="operand 1 ('weight') is missing", loc="model.hbir:4:10")
    op: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BadFile(Diagnostic):
    """An `.hbir` file, or the `.npz` beside it, cannot be read: it is missing, not UTF-8, or damaged."""

    CODE = "E0108"
    TITLE = "{message}"
    EXAMPLE = case(message="cannot read 'model.hbir': No such file or directory")
    message: str
