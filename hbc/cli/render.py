"""Reports as tables. Text in them is the user's own names: never markup, and never able to drive the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hbc.report import NodeRow, Report
from hbc.words import human_bytes, human_count, plural, shape_text, some

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
    return table(
        ("node", "type", "runs on", "as", "fused with", "why"),
        (_node_cells(n) for n in report.layers),
        title=f"{report.model} on {report.march}",
    )


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


def summary(report: Report) -> list[str]:
    """The report in a few lines."""
    placed = ", ".join(f"{count} {device}" for device, count in report.placed.items()) or "none"
    work = [plural(sum(report.instructions.values()), "instruction"), plural(len(report.segments), "segment")]
    return [
        f"nodes      {placed}",
        f"work       {human_count(report.macs)} MACs, {', '.join(work)}",
        f"memory     {human_bytes(report.arena_bytes)} arena, {human_bytes(report.constant_bytes)} constants",
    ]


def warnings(report: Report) -> list[str]:
    """What the user should know without asking."""
    found = []
    if report.affine:
        names = some([repr(t.tensor) for t in report.affine])
        found.append(
            f"{plural(len(report.affine), 'tensor')} with a zero point; a real BPU would refuse this model: {names}\n"
            "   = try:  quantise activations symmetrically; --strict makes this an error, --explain lists them all"
        )
    if report.wide:
        names = some([repr(t.tensor) for t in report.wide])
        found.append(f"{plural(len(report.wide), 'sum')} may pass 32 bits and then saturate: {names}")
    on_cpu = [n for n in report.layers if n.device == "cpu"]
    if on_cpu:
        names = some([f"{n.node!r} ({n.op_type})" if n.op_type else repr(n.node) for n in on_cpu])
        found.append(f"{plural(len(on_cpu), 'node')} on the CPU, not the BPU: {names}\n   = try:  --explain says why")
    return found
