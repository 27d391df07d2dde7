"""`--report FILE`: the whole report as JSON, Markdown or one HTML page, by the file's suffix."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

import click

from hbc.catalogue import markdown
from hbc.files import check_writable, write_atomically
from hbc.report import Report

from .explain import Part, parts

STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ccc;vertical-align:top}.n{text-align:right}"
)


def check_report(path: Path) -> None:
    """UsageError where the suffix is none that is known, OptionError where the file can't be written."""
    if path.suffix.lower() not in FORMATS:
        raise click.UsageError(f"--report {path}: give a name that ends in {', '.join(FORMATS)}")
    check_writable(path)


def write_report(report: Report, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_atomically(path, FORMATS[path.suffix.lower()](report).encode())


def as_json(report: Report) -> str:
    """Everything that the report holds."""
    return json.dumps(report.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_markdown(report: Report) -> str:
    """The tables of `--explain`, with names in full."""
    text = [f"# {report.model} on {report.march}, arith {report.arith}\n", *(f"- {line}" for line in report.summary())]
    text += [f"- {w.splitlines()[0]}" for w in report.warnings()]
    return "\n".join([*text, "", *(markdown(part.columns, part.rows) for part in parts(report))])


def as_html(report: Report) -> str:
    """The same as one page that needs nothing else."""
    title = html.escape(f"{report.model} on {report.march}, arith {report.arith}")
    lines = [*report.summary(), *(w.splitlines()[0] for w in report.warnings())]
    body = "".join(f"<p>{html.escape(line)}</p>" for line in lines) + "".join(map(_html_table, parts(report)))
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body><h1>{title}</h1>{body}</body></html>\n"


def _html_table(part: Part) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in part.columns)
    rows = "".join(f"<tr>{''.join(_cell(part, i, cell) for i, cell in enumerate(row))}</tr>" for row in part.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(part: Part, index: int, cell: object) -> str:
    kind = ' class="n"' if part.columns[index] in part.right else ""
    return f"<td{kind}>{html.escape(str(cell))}</td>"


FORMATS: dict[str, Callable[[Report], str]] = {".json": as_json, ".md": as_markdown, ".html": as_html}
