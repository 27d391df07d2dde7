"""What hbc says when something is wrong, and the tree of what it raises.

    HbcError                 cannot go on; carries a Diagnostic
    ├── FrontendError        the model file cannot be read or taken in
    ├── ParseError           `.hbir` text is malformed
    ├── VerifyError          an op breaks a constraint of the op table
    ├── PassError            a pass failed on a graph
    ├── EmitError            a graph cannot become a program
    └── OptionError          an option has an impossible value

A rule that says "not on the BPU" returns a `Rejection`; it is not an error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rejection:
    """Why an op may not run on the BPU, and what would let it."""

    reason: str
    hint: str = ""


class HbcError(Exception):
    """Base of everything hbc raises on purpose."""


class FrontendError(HbcError):
    """The model file cannot be read or taken in."""


class ParseError(HbcError):
    """`.hbir` text is malformed."""


class VerifyError(HbcError):
    """An op breaks a constraint of the op table."""

    def __init__(self, *, op: str, node: str, constraint: str, message: str) -> None:
        super().__init__(f"{op} ({node!r}) breaks {constraint}: {message}")


class PassError(HbcError):
    """A pass failed on a graph."""


class EmitError(HbcError):
    """A graph cannot become a program."""


class OptionError(HbcError):
    """An option has an impossible value."""
