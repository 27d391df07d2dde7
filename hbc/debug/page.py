"""Reports as one HTML page that needs nothing else: no network, no other file. Tables sort and filter.

Names come from a model, so they are text everywhere: escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from hbc.verify.page import document
from hbc.words import plural, printable

from .cells import SHOWN
from .figures import spark
from .report import Column, Report


def page(reports: Sequence[Report[Any]], title: str = "") -> str:
    """The whole document."""
    head = title or reports[0].title
    sections = [f"<style>{_file('page.css')}</style>", _header(head, reports)]
    sections += [_section(i, r, alone=len(reports) == 1) for i, r in enumerate(reports)]
    return document(f"hbc debug: {_text(head)}", sections, {}, script=_file("page.js"))


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _header(title: str, reports: Sequence[Report[Any]]) -> str:
    flagged = sum(len(r.flagged) for r in reports)
    badge = f'<span class="badge {"different" if flagged else "equal"}">{flagged or "none"} flagged</span>'
    links = " · ".join(f'<a href="#r{i}">{_text(r.title)}</a>' for i, r in enumerate(reports))
    said = links if len(reports) > 1 else _text(reports[0].about)
    return f"<header><h1>{_text(title)} {badge}</h1><p>{said}</p></header>"


def _section(number: int, report: Report[Any], *, alone: bool) -> str:
    head = "" if alone else f"<h2>{_text(report.title)}</h2><p class=dim>{_text(report.about)}</p>"
    notes = "".join(f"<li>{_text(n)}</li>" for n in report.notes)
    listed = f"<ul class=notes>{notes}</ul>" if notes else ""
    first = f"<section id=r{number}>{head}{listed}</section>" if head or listed else f"<div id=r{number}></div>"
    pictures = "".join(
        f"<section><h2>{_text(f.title)}</h2>{f'<p class=dim>{_text(f.about)}</p>' if f.about else ''}"
        f"{f.svg.replace('#t', f'#r{number}-t')}</section>"
        for f in report.figures
    )
    return first + pictures + (_table(number, report) + _words(report) if report.rows else "")


def _table(number: int, report: Report[Any]) -> str:
    heads = "".join(
        f'<th scope="col"{" class=n" if SHOWN[c.kind].right else ""} title="{_text(c.about)}">'
        f"<button>{_text(c.name)}</button></th>"
        for c in report.columns
    )
    rows = "".join(_row(f"r{number}-t{i}", r, report) for i, r in enumerate(report.rows))
    only = '<label><input type="checkbox" class="only"> only flagged</label>' if report.flagged else ""
    return (
        f"<section><h2>{plural(len(report.rows), 'row')}</h2>"
        f'<div class="controls"><input class="filter" type="search" placeholder="filter" aria-label="filter">{only}'
        f'<span class="count"></span></div><div class="scroll"><table class="report"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(anchor: str, row: object, report: Report[Any]) -> str:
    flagged = bool(getattr(row, "flagged", False))
    cells = "".join(_cell(row, c, report) for c in report.columns)
    return f'<tr id="{anchor}"{" class=flagged" if flagged else ""}>{cells}</tr>'


def _cell(row: object, column: Column, report: Report[Any]) -> str:
    value, kind = getattr(row, column.field), SHOWN[column.kind]
    if value is None:
        return '<td data-key=""></td>'
    shown = spark(value) if column.kind == "histogram" else _text(report.shown(row, column))
    style = "n" if kind.right else "words-cell" if column.kind == "words" else ""
    return f'<td class="{style}" data-key="{_text(kind.key(value))}">{shown}</td>'


def _words(report: Report[Any]) -> str:
    told = [c for c in report.columns if c.about]
    if not told:
        return ""
    items = "".join(f"<dt>{_text(c.name)}</dt><dd>{_text(c.about)}</dd>" for c in told)
    return f"<section><details><summary>What the columns mean</summary><dl class=words>{items}</dl></details></section>"
