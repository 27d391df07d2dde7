"""Many errors as one: everything that stands in the way of a model is told at once."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ErrorT, error
from .message import Diagnostic

SHOWN = 20  # how many a message lists before it counts the rest


def parts(err: ErrorT) -> tuple[ErrorT, ...]:
    """The errors that `err` was made of by `together`; itself, where it is one."""
    return getattr(err, "parts", (err,))


def together(errors: Sequence[ErrorT], what: str, *, where: str, kind: type[Diagnostic]) -> ErrorT:
    """One error that lists all, each with its place, its reason and what to try; the error itself where it is one.

    `what` is the title, with `{}` for their number. `where` is left out of the places of the single errors. Equal ones
    count once.
    """
    if len(errors) == 1:
        return errors[0]
    single = list({str(e): e for err in errors for e in parts(err)}.values())
    if len(single) == 1:
        return single[0]
    hints = {e.diagnostic.hint for e in single}
    common = hints.pop() if len(hints) == 1 else ""
    lines = [_line(e.diagnostic, where, with_hint=not common) for e in single[:SHOWN]]
    if len(single) > SHOWN:
        lines.append(f"and {len(single) - SHOWN} more")
    made = error(type(single[0]), what.format(len(single)), where=where, why="\n".join(lines), hint=common, kind=kind)
    made.__dict__["parts"] = tuple(single)
    return made


def _line(d: Diagnostic, where: str, *, with_hint: bool) -> str:
    """`node 'a' (Conv): what is wrong: why; try: this`, on one line."""
    place = d.loc.removeprefix(where).removeprefix(": ")
    words = ": ".join("; ".join(text.splitlines()) for text in (place, d.title, d.why) if text)
    return f"{words}; try: {'; '.join(d.hint.splitlines())}" if with_hint and d.hint else words
