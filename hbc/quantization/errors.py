"""Errors of the kit: each names the user's module, says why, and what to try."""

from __future__ import annotations

from collections.abc import Iterable

from hbc.diagnostics import Diagnostic, HbcError, OptionError, QuantizationError, UnknownName, error, nearest

SHOWN = 12  # names that a message lists


def trouble(title: str, *, where: str = "", why: str = "", hint: str = "", kind: type[Diagnostic]) -> QuantizationError:
    """A QuantizationError from its parts."""
    return error(QuantizationError, title, where=where, why=why, hint=hint, kind=kind)


def no_such(what: str, name: str, known: Iterable[str]) -> HbcError:
    """OptionError for a name that nothing has: the nearest names, or the first ones that there are."""
    names = sorted(n for n in set(known) if n and not n.startswith("_"))
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    ends = [n for n in names if name.endswith(f".{n}") or n.endswith(f".{name}")]  # a prefix too much
    meant = " or ".join(repr(n) for n in sorted(ends, key=len, reverse=True)[:3])
    hint = f"did you mean {meant}?" if meant else nearest(name, names) or f"there are {listed}"
    return OptionError(UnknownName(kind=what, name=name, title=f"there is no {what} {name!r}", hint=hint))
