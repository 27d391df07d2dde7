"""`hbc passes`."""

from __future__ import annotations

import dataclasses

import click

from hbc.catalogue import PassRow, markdown, pass_rows
from hbc.options import march_named

from .params import SETTINGS, json_flag, march_option, screen, verbosity
from .render import table

COLUMNS = ("stage", "pass", "options", "what it does")


@click.command(context_settings=SETTINGS)
@march_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown, for the docs.")
@json_flag
@verbosity
def command(march: str, as_markdown: bool, as_json: bool) -> None:
    """List the stages and passes of a march, in the order in which they run."""
    if as_markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    name, out = march_named(march), screen()
    rows = pass_rows(name)
    if as_json:
        out.json({"march": name, "passes": [dataclasses.asdict(r) for r in rows]})
    elif as_markdown:
        out.raw(markdown(COLUMNS, _cells(rows, repeat=True)))
    else:
        out.result(table(COLUMNS, _cells(rows, repeat=False), title=f"the passes of {name}, in running order"))


def _cells(rows: list[PassRow], *, repeat: bool) -> list[tuple[str, ...]]:
    """Cells by row; a stage's name stands beside its first pass alone unless `repeat`."""
    cells: list[tuple[str, ...]] = []
    last = None
    for r in rows:
        stage = r.stage or "(no stage)"
        cells.append((stage if repeat or stage != last else "", r.name, r.options, r.summary))
        last = stage
    return cells
