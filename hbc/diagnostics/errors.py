"""The tree of what hbc raises; every error has a code, its own or its family's."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from .codes_compile import ConstraintBroken, NotEmitted, PassRefused
from .codes_model import BadModel
from .codes_quantization import CannotCapture
from .codes_text import BadText
from .codes_usage import BadOption, Failed
from .message import Diagnostic, _body, from_text


class HbcError(Exception):
    """Base of everything hbc raises on purpose. Made from a Diagnostic, or a text whose first line is its title.

    FAMILY: the diagnostic that a text becomes, and so the code of an error that names no other.
    """

    FAMILY: ClassVar[type[Diagnostic]] = Failed

    def __init__(self, what: str | Diagnostic) -> None:
        super().__init__(what)
        self.diagnostic = what if isinstance(what, Diagnostic) else from_text(what, self.FAMILY)

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

    FAMILY = BadModel


class ParseError(HbcError):
    """`.hbir` text is malformed."""

    FAMILY = BadText


class VerifyError(HbcError):
    """An op breaks a constraint of the op table."""

    FAMILY = ConstraintBroken

    def __init__(self, *, op: str, node: str, constraint: str, message: str) -> None:
        super().__init__(ConstraintBroken(op=op, node=node, constraint=constraint, message=message))


class PassError(HbcError):
    """A pass failed on a graph.

    `is_bug`: the fault is hbc's, not the model's. `reproducer`: the folder that holds the graph before the pass and a
    script, or "" where none was written.
    """

    FAMILY = PassRefused

    def __init__(self, what: str | Diagnostic, *, is_bug: bool = False, reproducer: str = "") -> None:
        super().__init__(what)
        self.is_bug = is_bug
        self.reproducer = reproducer


class EmitError(HbcError):
    """A graph cannot become a program."""

    FAMILY = NotEmitted


class QuantizationError(HbcError):
    """The quantisation kit for PyTorch cannot do what was asked of it."""

    FAMILY = CannotCapture


class OptionError(HbcError):
    """An option has an impossible value."""

    FAMILY = BadOption


ErrorT = TypeVar("ErrorT", bound=HbcError)


def error(
    cls: type[ErrorT],
    title: str,
    *,
    where: str = "",
    why: str = "",
    hint: str = "",
    kind: type[Diagnostic] | None = None,
) -> ErrorT:
    """An error to raise, from its parts: `raise error(FrontendError, "…", where=…, why=…, hint=…)`.

    `kind` is the diagnostic whose code it has; by default that of the error's family.
    """
    made = cls.__new__(cls)
    HbcError.__init__(made, (kind or cls.FAMILY)(title=title, loc=where, why=why, hint=hint))
    if isinstance(made, PassError):
        made.is_bug, made.reproducer = False, ""
    return made
