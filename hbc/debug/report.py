"""A report: rows for programs, and the same as a table on the terminal, as CSV and as a page."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from hbc.diagnostics import OptionError, UnknownName, nearest
from hbc.files import write_atomically
from hbc.verify.measure import finite
from hbc.words import printable

from .cells import SHOWN, csv_value

Row = TypeVar("Row")
DETAIL = 9  # rank of a column that a terminal's table leaves out
TEXT = 40  # columns that a long text is reckoned with: it folds
GAP = 3  # between two columns
WIDTH = 150  # columns of a report that is printed as a string


@dataclass(frozen=True)
class Column:
    """One column: its heading, the field of a row, how a value is shown (`hbc.debug.cells`), and what it means.

    `rank`: on a terminal that is too narrow the highest go first; `DETAIL` is shown only if everything is asked for.
    """

    name: str
    field: str
    kind: str = "text"
    about: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Figure:
    """A picture of a page: inline SVG."""

    title: str
    svg: str
    about: str = ""


@dataclass(frozen=True)
class Report(Generic[Row]):
    """`rows` are frozen values, one per line of the table; a row whose `flagged` is true is marked.

    `notes`: what to read first, a line each. `about`: what was looked at.
    """

    title: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = field(default=(), repr=False)

    def row(self, name: str) -> Row:
        """The first row of this name; OptionError, with the nearest names, where there is none."""
        names = [str(getattr(row, "name", "")) for row in self.rows]
        if name in names:
            return self.rows[names.index(name)]
        raise OptionError(
            UnknownName(kind="row", name=name, title=f"there is no row {name!r}", hint=nearest(name, names))
        )

    @property
    def flagged(self) -> tuple[Row, ...]:
        """The rows that something is wrong with."""
        return tuple(r for r in self.rows if getattr(r, "flagged", False))

    def table(self, *, everything: bool = False, limit: int | None = None, width: int | None = None) -> Table:
        """For rich's `print`; `everything`: with every column, `limit`: the first so many rows, `width`: room."""
        columns = list(self.columns) if everything else self._fitting(width, limit)
        made = Table(box=box.SIMPLE_HEAD, show_edge=False, title=Text(printable(self.title), "bold"), pad_edge=False)
        made.title_justify = "left"
        for column in columns:
            kind = SHOWN[column.kind]
            made.add_column(column.name, justify="right" if kind.right else "left", overflow="fold", no_wrap=kind.right)
        for row in self.rows[:limit]:
            style = "bold yellow" if getattr(row, "flagged", False) else ""
            made.add_row(*(Text(self.shown(row, c), style) for c in columns))
        return made

    def _fitting(self, width: int | None, limit: int | None) -> list[Column]:
        """Columns for a terminal: those of the highest ranks go until the rest has room."""
        columns = [c for c in self.columns if c.rank < DETAIL]
        if width is None:
            return columns
        wide = {c: max([len(c.name), *(len(self.shown(r, c)) for r in self.rows[:limit])]) for c in columns}
        while sum(min(wide[c], TEXT) + GAP for c in columns) > width and any(c.rank for c in columns):
            columns.remove(max(columns, key=lambda c: c.rank))
        return columns

    @staticmethod
    def shown(row: object, column: Column) -> str:
        """A cell as a person reads it."""
        value = getattr(row, column.field)
        return "" if value is None else printable(SHOWN[column.kind].text(value))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield self.table(width=options.max_width)

    def __str__(self) -> str:
        out = io.StringIO()
        console = Console(file=out, width=WIDTH, markup=False, highlight=False, emoji=False)
        console.print(self)
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join([*lines, *(printable(n) for n in self.notes)])

    def to_csv(self, path: str | Path) -> None:
        """Write every row with every column, numbers in full; the headings are the rows' fields. Raises OSError."""
        write_atomically(Path(path), self.csv_text().encode("utf-8", "backslashreplace"))

    def csv_text(self) -> str:
        """The CSV file's text."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.field for c in self.columns])
        writer.writerows([csv_value(getattr(row, c.field)) for c in self.columns] for row in self.rows)
        return out.getvalue()

    def to_html(self, path: str | Path) -> None:
        """Write one page that needs no other file and no network. Raises OSError."""
        write_page(path, [self])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        rows = [{c.field: getattr(row, c.field) for c in self.columns} for row in self.rows]
        plain = [{k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in r.items()} for r in rows]  # type: ignore[arg-type]
        found: dict[str, Any] = {"title": self.title, "about": self.about, "notes": list(self.notes), "rows": plain}
        return finite(found)


def listed(lines: Sequence[str], limit: int = 8) -> tuple[str, ...]:
    """The first of many notes, and how many more there are."""
    more = (f"and {len(lines) - limit} more",) if len(lines) > limit else ()
    return (*lines[:limit], *more)


def write_page(path: str | Path, reports: Sequence[Report[Any]], title: str = "") -> None:
    """Write several reports as one page. Raises OSError."""
    from .page import page

    write_atomically(Path(path), page(reports, title).encode("utf-8", "backslashreplace"))
