"""`hbc help`."""

from __future__ import annotations

import click

from hbc.diagnostics import OptionError, UnknownName, describe, entries, nearest

from .params import SETTINGS, screen, verbosity


@click.command(context_settings=SETTINGS)
@click.argument("code", required=False)
@verbosity
def command(code: str | None) -> None:
    """Explain an error by its CODE, or list the codes.

    \b
    hbc help E0207
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    out = screen()
    if code is None:
        for entry in entries().values():
            out.result(f"{entry.code}  {entry.name}: {entry.meaning}")
        return
    text = describe(code)
    if text is None:
        known = list(entries())
        hint = f"{nearest(code.upper(), known)} `hbc help` lists them".strip()
        raise OptionError(UnknownName(kind="error code", name=code, hint=hint))
    out.result(text)
