"""The result of `hbc quantize` in words and tables, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from hbc.ptq import QuantizeResult, TensorLoss
from hbc.verify.text import decibel, scale_text
from hbc.words import human_bytes, plural, printable, some

from .console import Screen
from .render import table
from .verify_table import shortened

SHOWN = 40  # tensors that are shown without --all; with more, the worst
WORST = 20
GAP = 3  # columns between two cells
LEGIBLE = 20  # columns of a name for which other columns give way
# Which columns there are, by how much room there is; later ones give way first.
COLUMNS = ("", "tensor", "made by", "type", "SQNR", "total", "method", "clipped", "scale", "cosine", "nodes")
FEWEST = 6


def show(out: Screen, result: QuantizeResult, output: Path, everything: bool) -> None:
    """The table, the outputs, what stays off integers, and what to do next."""
    out.result(f"{printable(result.model)} for {result.march}: {_head(result)}")
    out.result("")
    chosen = _chosen(result, everything)
    few = len(chosen) < len(result.tensors)
    title = f"the {len(chosen)} that lose most, in running order" if few else "in running order"
    out.result(_rows(chosen, out.out.width, title))
    if few:
        out.result(f"{len(result.tensors) - len(chosen)} more tensors: --all, --json or --html")
    out.result("")
    rows = [
        (o.name, decibel(o.distance.sqnr), f"{o.distance.cosine:.6f}", f"{o.distance.max_abs:.4g}")
        for o in result.outputs
    ]
    columns = ("output", "SQNR", "cosine", "max diff")
    title = f"against the float model, {plural(result.measured, 'sample')}"
    out.result(table(columns, rows, right=columns[1:], title=title))
    _rest(out, result, output)


def _head(result: QuantizeResult) -> str:
    kinds = [t.dtype for t in result.tensors]
    counts = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    return f"{plural(len(result.tensors), 'tensor')} ({counts}), {plural(result.samples, 'sample')}"


def _chosen(result: QuantizeResult, everything: bool) -> Sequence[TensorLoss]:
    if everything or len(result.tensors) <= SHOWN:
        return result.tensors
    names = {t.name for t in result.ranking[:WORST]}
    return [t for t in result.tensors if t.name in names]


def _rows(rows: Sequence[TensorLoss], width: int, title: str) -> Table:
    """The table with as many columns as leave its names legible."""
    ranked = any(t.output is not None for t in rows)
    for count in range(len(COLUMNS), FEWEST - 1, -1):
        columns = [*COLUMNS[:count], *(["outputs"] if ranked else [])]
        cells = [_cells(t, count, ranked=ranked) for t in rows]
        room = width - sum(_width(c, cells, i) + GAP for i, c in enumerate(columns) if c != "tensor")
        if room >= min(LEGIBLE, max(len(printable(t.name)) for t in rows)):
            break
    for row in cells:
        row[1] = shortened(str(row[1]), max(LEGIBLE // 2, room))
    return table(columns, cells, right=("SQNR", "total", "clipped", "scale", "cosine", "outputs"), title=title)


def _cells(t: TensorLoss, count: int, *, ranked: bool) -> list[object]:
    cells: list[object] = [
        Text("►" if t.flagged else "", style="bold red"),
        t.name,
        t.op if t.kind == "activation" else f"weight of {t.op}",
        f"{t.dtype} raised" if t.raised else t.dtype,
        Text(decibel(t.own.sqnr), style="bold red" if t.flagged else ""),
        "" if t.total is None else decibel(t.total.sqnr),
        t.method,
        f"{t.clipped:.3%}" if t.clipped else "0",
        scale_text(t.scale, t.channels),
        f"{t.own.cosine:.5f}",
        ", ".join(t.nodes),
    ]
    return [*cells[:count], *([decibel(t.output) if t.output is not None else ""] if ranked else [])]


def _width(column: str, rows: Sequence[Sequence[object]], index: int) -> int:
    return max(len(column), *(len(str(r[index])) for r in rows))


def _rest(out: Screen, result: QuantizeResult, output: Path) -> None:
    if result.left:
        names = some([repr(n) for n in result.left])
        out.result(f"{plural(len(result.left), 'node')} off integers: {names} (--json says why)")
    for note in result.notes:
        out.result(f"note: {note}")
    flagged = [t for t in result.flagged if t.dtype == "i8"]
    if flagged:
        names = some([repr(printable(t.name)) for t in flagged])
        text = f"{plural(len(flagged), 'tensor')} flagged (below 27 dB): {names}; try --auto-precision"
        out.result(Text(text, style="yellow"))
    out.result(
        Text(
            f"{output}: {human_bytes(len(result.data))}; next: hbc compile {output} --march {result.march}",
            style="bold green",
        )
    )
