"""How the front end words what is wrong: what, where, why, what to try."""

from __future__ import annotations

from collections.abc import Iterable

from hbc.diagnostics import BadModel, Diagnostic, FrontendError, VerifyError, error

# What malformed nodes make of rules and of NumPy: told as the node's fault. AssertionErrors are hbc's own and pass.
NODE_FAULTS = (
    ArithmeticError,
    LookupError,
    ValueError,
    TypeError,
    RuntimeError,
    MemoryError,
    AttributeError,
    VerifyError,
)

SHOWN = 8  # how many names a message lists before it counts the rest
NAME_LIMIT = 120  # characters of one name: exporters write scopes of thousands


def problem(
    what: str, *, where: str, why: str = "", hint: str = "", kind: type[Diagnostic] = BadModel
) -> FrontendError:
    """A FrontendError in the house's form; `where` names the user's file, node or tensor, `kind` gives the code."""
    return error(FrontendError, what, where=where, why=why, hint=hint, kind=kind)


def quoted(name: str) -> str:
    """`'name'`, shortened in the middle where it is very long, control characters escaped."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
    if len(text) > NAME_LIMIT:
        text = f"{text[: NAME_LIMIT // 2]}…{text[-NAME_LIMIT // 2 :]}"
    return f"'{text}'"


def listing(items: Iterable[str]) -> str:
    """The first items, comma separated, and how many more there are."""
    every = list(items)
    shown = ", ".join(every[:SHOWN])
    return shown if len(every) <= SHOWN else f"{shown} and {len(every) - SHOWN} more"
