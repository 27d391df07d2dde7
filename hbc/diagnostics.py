"""What hbc says when something is wrong, and the tree of what it raises.

    HbcError                 cannot go on; carries a Diagnostic
    ├── FrontendError        the model file cannot be read or taken in
    ├── ParseError           `.hbir` text is malformed
    ├── VerifyError          an op breaks a constraint of the op table
    ├── PassError            a pass failed on a graph
    ├── EmitError            a graph cannot become a program
    └── OptionError          an option has an impossible value

A rule that says "not on the BPU" returns a `Rejection`; it is not an error.
Bugs stay AssertionError until a pass manager labels them as ours.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar


@dataclass(frozen=True)
class Rejection:
    """Why an op may not run on the BPU, and what would let it."""

    reason: str
    hint: str = ""


@dataclass(frozen=True)
class Diagnostic:
    """One message: what is wrong (`title`), where, why, and what to try.

    `excerpt` shows the place itself (a source line and a caret, a type); `trail` says what hbc was doing. Codes group
    by hundreds: E00 options, E01 text, E02 front end, E03 verifier, E04 passes, E05 emission; E0000 stands for none.

    A subclass stands for one code. It names its facts as typed fields and words them in TITLE, WHY and HINT, format
    strings over those fields; a `why` or `hint` that is given wins over the template.
    """

    code: str = "E0000"
    title: str = ""
    loc: str = ""
    why: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    excerpt: tuple[str, ...] = ()
    trail: str = ""

    CODE: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    WHY: ClassVar[str] = ""
    HINT: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not self.CODE:
            return
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        object.__setattr__(self, "code", self.CODE)
        for name, template in (("title", self.TITLE), ("why", self.WHY), ("hint", self.HINT)):
            if not facts[name]:
                object.__setattr__(self, name, template.format_map(facts))


# ---- the errors


class HbcError(Exception):
    """Base of everything hbc raises on purpose. Made from a Diagnostic, or a text whose first line is its title."""

    def __init__(self, what: str | Diagnostic) -> None:
        super().__init__(what)
        self.diagnostic = what if isinstance(what, Diagnostic) else from_text(what)

    def __str__(self) -> str:
        what = self.args[0]
        return what if isinstance(what, str) else "\n".join([self.diagnostic.title, *_body(self.diagnostic)])

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.args[0], dict(self.__dict__))


def _revive(cls: type[HbcError], what: str | Diagnostic, state: dict[str, object]) -> HbcError:
    error = cls.__new__(cls)
    HbcError.__init__(error, what)
    error.__dict__.update(state)
    return error


class FrontendError(HbcError):
    """The model file cannot be read or taken in."""


class ParseError(HbcError):
    """`.hbir` text is malformed."""


class VerifyError(HbcError):
    """An op breaks a constraint of the op table."""

    def __init__(self, *, op: str, node: str, constraint: str, message: str) -> None:
        super().__init__(ConstraintBroken(op=op, node=node, constraint=constraint, message=message))


class PassError(HbcError):
    """A pass failed on a graph.

    `is_bug`: the fault is hbc's, not the model's. `reproducer`: the folder that holds the graph before the pass and a
    script, or "" where none was written.
    """

    def __init__(self, what: str | Diagnostic, *, is_bug: bool = False, reproducer: str = "") -> None:
        super().__init__(what)
        self.is_bug = is_bug
        self.reproducer = reproducer


class EmitError(HbcError):
    """A graph cannot become a program."""


class OptionError(HbcError):
    """An option has an impossible value."""


ErrorT = TypeVar("ErrorT", bound=HbcError)


def error(
    cls: type[ErrorT], title: str, *, where: str = "", why: str = "", hint: str = "", code: str = "E0000"
) -> ErrorT:
    """An error to raise, from its parts: `raise error(FrontendError, "…", where=…, why=…, hint=…)`."""
    made = cls.__new__(cls)
    HbcError.__init__(made, Diagnostic(code=code, title=title, loc=where, why=why, hint=hint))
    if isinstance(made, PassError):
        made.is_bug, made.reproducer = False, ""
    return made


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """`did you mean 'x' or 'y'?` for the known names close to `name`, or "" where none is."""
    short = [k for k in itertools.islice(known, 5000) if len(k) <= 100]  # bounds the time that odd input can take
    close = difflib.get_close_matches(name[:100], short, n=limit, cutoff=0.6)
    return f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


# ---- rendering

_PLAIN_LABEL = re.compile(r"\s*=?\s*(why|try|in|note|-->):?\s*(.*)")
_BOLD_RED, _BLUE, _BOLD, _RESET = "\x1b[1;31m", "\x1b[34m", "\x1b[1m", "\x1b[0m"


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """The message as text of several lines, without a newline at the end.

    error[E0203]: weights of this convolution are not quantised
      --> yolov5s.onnx: node 'Conv_142' (Conv)
       |  tensor<255x128x1x1xf32>
       = why:  nash multiplies i8 by i8; an f32 weight has no scale
       = try:  add QuantizeLinear/DequantizeLinear on input 1
       = in:   pass 'fold-qdq' (stage quantize, 6 of 21)
    """
    head = "error" if diagnostic.code == "E0000" else f"error[{diagnostic.code}]"
    body = _body(diagnostic)
    if not color:
        return "\n".join([f"{head}: {diagnostic.title}", *body])
    marked = [f"{_BLUE}{line[:5]}{_RESET}{line[5:]}" for line in body]
    return "\n".join([f"{_BOLD_RED}{head}{_RESET}{_BOLD}: {diagnostic.title}{_RESET}", *marked])


def _body(d: Diagnostic) -> list[str]:
    lines = [f"  --> {d.loc}"] if d.loc else []
    lines += [f"   |  {line}" for line in d.excerpt]
    labelled = [("why:", d.why), ("try:", d.hint), ("in:", d.trail), *(("note:", n) for n in d.notes)]
    for label, text in labelled:
        first, *rest = text.split("\n")
        if text:
            lines.append(f"   = {label:5} {first}")
            lines += [f"     {'':5} {line}" for line in rest]
    return lines


def from_text(text: str) -> Diagnostic:
    """A diagnostic of a plain text: its first line is the title; lines `--> …`, `why: …`, `try: …` and `in: …` go to
    their fields, the other lines are notes.
    """
    title, *rest = text.split("\n")
    found: dict[str, list[str]] = {"why": [], "try": [], "-->": [], "in": [], "note": []}
    for line in rest:
        match = _PLAIN_LABEL.fullmatch(line)
        if match:
            found[match[1]].append(match[2])
        elif line.strip():
            found["note"].append(line.strip())
    why, hint, loc, trail = ("\n".join(found[k]) for k in ("why", "try", "-->", "in"))
    return Diagnostic(title=title, loc=loc, why=why, hint=hint, trail=trail, notes=tuple(found["note"]))


# ---- the codes


@dataclass(frozen=True, kw_only=True)
class UnknownName(Diagnostic):
    """A pass, an option of a pass or a stage was asked for under a name that hbc doesn't know."""

    CODE = "E0001"
    TITLE = "there is no {kind} named {name!r}"
    kind: str
    name: str


@dataclass(frozen=True, kw_only=True)
class BadPipeline(Diagnostic):
    """The text of a pass pipeline is malformed, or gives an option a value of the wrong kind."""

    CODE = "E0002"
    TITLE = "{message}"
    HINT = "write passes as in: fuse-conv{{max-users=1}},dce"
    message: str


@dataclass(frozen=True, kw_only=True)
class Unexpected(Diagnostic):
    """The `.hbir` text has something else where the grammar (docs/ir.md) wants a certain thing."""

    CODE = "E0101"
    TITLE = "expected {expected}, found {found}"
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class UnknownOp(Diagnostic):
    """The `.hbir` text has an op that is not in the op table (`hbc ops` prints it)."""

    CODE = "E0102"
    TITLE = "no op is named {name!r}"
    HINT = "`hbc ops` lists every op"
    name: str


@dataclass(frozen=True, kw_only=True)
class BadAttribute(Diagnostic):
    """An attribute in the `.hbir` text is unknown to its op, given twice, missing, or of the wrong kind."""

    CODE = "E0103"
    TITLE = "{op}: {message}"
    op: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BadValueName(Diagnostic):
    """A value of the `.hbir` text is read before it is defined, or two values have one name."""

    CODE = "E0104"
    TITLE = "{message}"
    message: str


@dataclass(frozen=True, kw_only=True)
class BadType(Diagnostic):
    """A tensor type in the `.hbir` text has an unknown dtype, an impossible size or an inconsistent quantisation."""

    CODE = "E0105"
    TITLE = "{message}"
    message: str


@dataclass(frozen=True, kw_only=True)
class BadConstant(Diagnostic):
    """A `dense<…>` literal of the `.hbir` text, or its array in the `.npz` beside it, does not fit its type."""

    CODE = "E0106"
    TITLE = "{message}"
    message: str


@dataclass(frozen=True, kw_only=True)
class BadOperands(Diagnostic):
    """An op of the `.hbir` text has too many operands, or lacks one that it needs."""

    CODE = "E0107"
    TITLE = "{op}: {message}"
    op: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BadFile(Diagnostic):
    """An `.hbir` file, or the `.npz` beside it, cannot be read: it is missing, not UTF-8, or damaged."""

    CODE = "E0108"
    TITLE = "{message}"
    message: str


@dataclass(frozen=True, kw_only=True)
class ConstraintBroken(Diagnostic):
    """An op breaks a numbered constraint of its class (docs/ops.md), or the graph breaks a law that all graphs obey:
    FORM (operands, attributes and results are as declared), SSA (defined before used), USES, TYPE, NAMES, OUTPUTS.
    """

    CODE = "E0301"
    TITLE = "{op} ({node!r}) breaks {constraint}: {message}"
    op: str
    node: str
    constraint: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PassFailed(Diagnostic):
    """A pass met something that it should never meet: a bug in hbc, which a reproducer helps to find."""

    CODE = "E0401"
    TITLE = "pass {name!r} failed: {message}"
    WHY = "this is a bug in hbc, not in the model"
    name: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PromiseBroken(Diagnostic):
    """A stage of the pipeline ended without what it promises (`ensures`, `forbids`): a bug in hbc."""

    CODE = "E0402"
    TITLE = "stage {stage!r} broke its promise: {message}"
    WHY = "this is a bug in hbc, not in the model"
    stage: str
    message: str


def codes() -> list[type[Diagnostic]]:
    """The diagnostics with a code of their own, by code."""
    own = [c for c in Diagnostic.__subclasses__() if c.__module__ == __name__]
    return sorted(own, key=lambda c: c.CODE)


def catalogue() -> str:
    """`docs/diagnostics.md`: every code with its wording and meaning."""
    parts = [
        "# Diagnostics\n",
        "Generated by `hbc.diagnostics.catalogue()`. Words in braces stand for names and values of your model.\n",
        "An error without a code says all there is to say in its own text.\n",
    ]
    for cls in codes():
        meaning = " ".join((cls.__doc__ or "").split())
        parts.append(f"## {cls.CODE} {cls.__name__}\n\n    error[{cls.CODE}]: {_shown(cls.TITLE)}\n\n{meaning}\n")
        parts += [f"*{label}:* {_shown(text)}\n" for label, text in (("Why", cls.WHY), ("Try", cls.HINT)) if text]
    return "\n".join(parts)


def _shown(template: str) -> str:
    return template.replace("!r}", "}").replace("{{", "{").replace("}}", "}")
