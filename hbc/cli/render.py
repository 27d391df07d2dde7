"""Reports as tables. Text in them is the user's own names: never markup, and never able to drive the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hbc.report import NodeRow, Report
from hbc.words import plural, shape_text

from .console import printable

DEVICE_STYLES = {"bpu": "green", "host": "cyan", "cpu": "yellow", "folded": "dim"}


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


def nodes_table(report: Report) -> Table:
    """`--explain`: where each of the user's nodes runs, and why."""
    columns = ("node", "type", "runs on", "as", "fused with", "why")
    rows = [_node_cells(n) for n in report.layers]
    shown = [i for i, _ in enumerate(columns) if i < 4 or any(row[i] for row in rows)]  # no column without a word in it
    title = f"{report.model} on {report.march}"
    return table([columns[i] for i in shown], ([row[i] for i in shown] for row in rows), title=title)


def _node_cells(n: NodeRow) -> tuple[object, ...]:
    device = Text(n.device, style=DEVICE_STYLES.get(n.device, ""))
    return n.node, n.op_type, device, ", ".join(n.ops), ", ".join(n.fused_with), n.reason


def outputs_table(report: Report) -> Table:
    """Which outputs keep the accumulator's precision."""
    rows = [
        (
            o.name,
            o.dtype,
            shape_text(o.shape),
            f"i32 accumulator, {plural(o.scales, 'scale')}" if o.high_precision else "requantised",
        )
        for o in report.outputs
    ]
    return table(("output", "dtype", "shape", "precision"), rows)


def notes_table(report: Report) -> Table | None:
    """Tensors with something to say about them; None where there are none."""
    rows = [
        *((t.tensor, t.node, f"{t.detail}: a real BPU would refuse it") for t in report.affine),
        *((t.tensor, t.node, f"requantised {t.detail}") for t in report.requantized),
        *((t.tensor, t.node, f"sums of {t.detail} may pass 32 bits, and then saturate") for t in report.wide),
    ]
    return table(("tensor", "node", "note"), rows) if rows else None
