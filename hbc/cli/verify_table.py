"""The result of `hbc verify` in words and tables, as wide as the terminal."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from hbc.verify import Distance, TensorRow, Verdict, VerifyResult
from hbc.verify.facts import stripped
from hbc.verify.text import decibel, quanta_text, scale_text
from hbc.words import plural, printable, shorten, some

from .console import Screen
from .render import table

SHOWN = 40  # rows that are shown without --all; with more, the ones where errors start and the farthest
STARTS = 20
STYLES = {
    Verdict.EQUAL: "green",
    Verdict.ONE_QUANTUM: "green",
    Verdict.CLOSE: "yellow",
    Verdict.DIFFERENT: "bold red",
}
MARK = "►"  # before a tensor where an error starts
GAP = 3  # columns between two cells
NARROWEST = 12  # columns that a name has at least
LEGIBLE = 20  # columns of a name for which figures give way


class Wealth(enum.IntEnum):
    """How many columns a table has."""

    NARROW = 0
    MEDIUM = 1  # types, scales, exact share
    WIDE = 2  # cosine
    ALL = 3  # source nodes


def show(out: Screen, result: VerifyResult, everything: bool) -> None:
    """What was compared, where errors start, the table, and the verdict."""
    out.result(_head(result))
    width = out.out.width
    starts = result.starts
    if starts:
        failing = any(not result.tolerance.passes(r.judged) for r in starts)
        title = "errors start here" if failing else "the first difference, within the tolerance"
        out.result(_rows(starts if everything else starts[:STARTS], width, title))
        if len(starts) > STARTS and not everything:
            out.result(f"and {len(starts) - STARTS} more where errors start: --all")
    chosen = result.rows if everything or len(result.rows) <= SHOWN else _farthest(result)
    if chosen:
        title = (
            "in running order"
            if len(chosen) == len(result.rows)
            else f"the {len(chosen)} farthest off, in running order"
        )
        out.result("")
        out.result(_rows(chosen, width, title))
    if len(chosen) < len(result.rows):
        out.result(f"{len(result.rows) - len(chosen)} more tensors: --all, --csv or --html")
    _absent(out, result, everything)
    _verdict(out, result)


def _head(result: VerifyResult) -> str:
    stages = f"{result.to} ({result.about[1]}) against {result.source} ({result.about[0]})"
    lines = [
        f"{result.model} on {result.march}, arith {result.arith}",
        stages,
        f"{plural(result.samples, 'sample')} ({result.inputs}), {plural(len(result.rows), 'tensor')}",
        f"  each op by itself   {_counts(result.counts(own=True))}",
        f"  with what it inherits   {_counts(result.counts())}",
        "",
    ]
    return "\n".join(lines)


def _counts(counts: dict[Verdict, int]) -> str:
    return ", ".join(f"{n} {v}" for v, n in counts.items() if n) or "none"


def _farthest(result: VerifyResult) -> Sequence[TensorRow]:
    far = sorted(result.rows, key=lambda r: (r.total.verdict is Verdict.EQUAL, r.total.sqnr))[: SHOWN // 2]
    names = {r.name for r in (*far, *result.starts[:STARTS], *result.rows[-1:])}
    return [r for r in result.rows if r.name in names]


def _rows(rows: Sequence[TensorRow], width: int, title: str) -> Table:
    """The table with as many figures as leave its names legible."""
    for wealth in (Wealth.ALL, Wealth.WIDE, Wealth.MEDIUM, Wealth.NARROW):
        columns, cells = _columns(wealth), [_cells(r, wealth) for r in rows]
        room = width - sum(_width(c, cells, i) + GAP for i, c in enumerate(columns) if c != "tensor")
        if room >= min(LEGIBLE, max(len(printable(r.name)) for r in rows)):
            break
    for row in cells:
        row[1] = shortened(str(row[1]), max(NARROWEST, room))
    right = ("scale", "own", "total", "exact", "cosine", "SQNR")
    return table(columns, cells, right=right, title=title)


def _columns(wealth: Wealth) -> list[str]:
    columns = ["", "tensor", "made by", *(["type", "scale"] if wealth >= Wealth.MEDIUM else [])]
    columns += ["own", "verdict", "total", *(["exact"] if wealth >= Wealth.MEDIUM else [])]
    columns += [*(["cosine"] if wealth >= Wealth.WIDE else []), "SQNR", "verdict"]
    return columns + (["nodes"] if wealth is Wealth.ALL else [])


def _cells(r: TensorRow, wealth: Wealth) -> list[object]:
    cells: list[object] = [Text(MARK if r.starts else "", style="bold red" if not r.passed else "yellow")]
    cells += [r.name, r.op, *([r.dtype, scale_text(r.scale, r.channels)] if wealth >= Wealth.MEDIUM else [])]
    cells += ["–" if r.own is None else quanta_text(r.own), verdict_text(r.own), quanta_text(r.total)]
    cells += [f"{r.total.equal:.2%}"] if wealth >= Wealth.MEDIUM else []
    cells += [f"{r.total.cosine:.5f}"] if wealth >= Wealth.WIDE else []
    cells += [decibel(r.total.sqnr), verdict_text(r.total)]
    return cells + ([", ".join(r.nodes)] if wealth is Wealth.ALL else [])


def _width(column: str, rows: Sequence[Sequence[object]], index: int) -> int:
    return max(len(column), *(len(str(r[index])) for r in rows))


def shortened(name: str, width: int) -> str:
    """The name; where it is longer than `width`, without what its generator appended, then without its middle."""
    text = printable(name)
    if len(text) <= width:
        return text
    bare = stripped(text)
    return shorten(text, width) if bare == text else f"{shorten(bare, width - 1)}…"


def verdict_text(d: Distance | None) -> Text:
    """The verdict in its colour."""
    return Text("not alone", style="dim") if d is None else Text(str(d.verdict), style=STYLES[d.verdict])


def _absent(out: Screen, result: VerifyResult, everything: bool) -> None:
    if not result.absent:
        return
    if everything:
        rows = [(a.name, a.op, str(a)) for a in result.absent]
        title = f"in {result.source} only"
        out.result("")
        out.result(table(("tensor", "made by", f"in {result.to}"), rows, title=title))
        return
    words = {
        "copy": "copies of compared ones",
        "inside": "inside fused ops",
        "gone": "folded away",
        "shape": "of another shape",
    }
    counts = {w: sum(a.why == k for a in result.absent) for k, w in words.items()}
    parts = ", ".join(f"{n} {w}" for w, n in counts.items() if n)
    out.result(f"{plural(len(result.absent), 'tensor')} of {result.source} without a row of their own: {parts} (--all)")


def _verdict(out: Screen, result: VerifyResult) -> None:
    judged = "every op by itself" if result.by == "op" else "every tensor"
    failed = [r for r in result.rows if not r.passed]
    out.result("")
    if not result.rows:
        out.result(Text("nothing was compared: the stages share no tensor", style="bold yellow"))
        return
    if not failed:
        out.result(Text(f"passed: {judged}, {result.tolerance}", style="bold green"))
        if result.by == "op" and any(r.total.verdict is Verdict.DIFFERENT for r in result.rows):
            out.result("no op is at fault where totals differ: the net amplifies single roundings (docs/verify.md)")
        return
    first = (result.starts or failed)[0]
    at = f"{first.op} {printable(first.name)!r} (nodes {some([repr(n) for n in first.nodes])})"
    line = f"DIFFERENT: {len(failed)} of {plural(len(result.rows), 'tensor')} outside {result.tolerance}; first at {at}"
    out.result(Text(line, style="bold red"))
    full = [r for r in result.starts if (r.saturated or 0) > 0.001]
    if full:
        worst = max(full, key=lambda r: r.saturated or 0)
        out.result(
            f"{worst.saturated:.2%} of the reference's values are outside what {printable(worst.name)!r} can hold"
        )
