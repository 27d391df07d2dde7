"""Reports as tables. Text in them is the user's own names: never markup, and never able to drive the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hbc.report import Report
from hbc.words import printable, shorten

from .explain import DEVICE, parts

DEVICE_STYLES = {"bpu": "green", "host": "cyan", "cpu": "yellow"}
LEAST = 12  # characters of a name that are shown on the narrowest screen


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", right: Sequence[str] = ()
) -> Table:
    """A plain table: the columns in `right` are numbers and stand on the right."""
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row))
    return made


def explain(report: Report, width: int) -> Iterator[Table]:
    """`--explain`: the tables of a report that have rows, for a screen of `width` columns."""
    room = max(LEAST, width // 4)
    for part in parts(report, lambda name: shorten(name, room)):
        rows = [[_styled(c, cell) for c, cell in zip(part.columns, row, strict=True)] for row in part.rows]
        yield table(part.columns, rows, title=part.title, right=part.right)


def _styled(column: str, cell: object) -> object:
    return Text(str(cell), style=DEVICE_STYLES.get(str(cell), "")) if column == DEVICE else cell
