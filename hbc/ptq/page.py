"""The report as one HTML page, made of the parts of `hbc verify`'s: plot over depth, table, histograms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from html import escape

from hbc.verify import TensorRow
from hbc.verify.measure import Distance
from hbc.verify.page import CLASSES, document
from hbc.verify.plot import depth_plot
from hbc.verify.text import decibel, scale_text
from hbc.words import plural, printable, shape_text

from .result import QuantizeResult, TensorLoss

WORST = 10  # tensors in the list of the worst
COLUMNS = ("#", "tensor", "made by", "type", "shape", "scale", "method", "clipped")
BORDERS = (len(COLUMNS), len(COLUMNS) + 3)  # columns before which a line is drawn
GROUPS = ("own SQNR", "own cosine", "own verdict", "total SQNR", "total cosine", "outputs")


def page(result: QuantizeResult) -> str:
    """The whole document."""
    rows = ordered(result)
    activations = [as_row(t) for t in rows if t.total is not None]
    plot = f"<section><h2>Error over depth</h2>{_legend()}{depth_plot(activations)}</section>" if activations else ""
    sections = [_header(result), _summary(result), _worst(result, rows), plot, _table(rows), _left(result), _help()]
    return document(f"hbc quantize: {_text(_file_name(result))}", sections, _data(result, rows))


def ordered(result: QuantizeResult) -> list[TensorLoss]:
    """Activations in running order, then weights: the plot's points lead to the rows by their number."""
    return sorted(result.tensors, key=lambda t: t.total is None)


def as_row(t: TensorLoss) -> TensorRow:
    """A tensor as the plot knows them: what is flagged is marked."""
    total = t.own if t.total is None else t.total
    return TensorRow(
        t.name,
        "",
        t.op,
        t.nodes,
        t.dtype,
        t.shape,
        t.scale,
        t.channels,
        t.clipped,
        t.own,
        total,
        not t.flagged,
        t.flagged,
    )


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _file_name(result: QuantizeResult) -> str:
    return result.model.rsplit("/", 1)[-1]


def _header(result: QuantizeResult) -> str:
    count = len(result.flagged)
    said = f"{count} flagged" if count else "none flagged"
    badge = f'<span class="badge {"different" if count else "equal"}">{said}</span>'
    about = f"quantised for {_text(result.march)} with {plural(result.samples, 'sample')}"
    return f"<header><h1>{_text(_file_name(result))} {badge}</h1><p>{about}</p></header>"


def _summary(result: QuantizeResult) -> str:
    kinds = [t.dtype for t in result.tensors]
    facts = {
        "model": result.model,
        "march": result.march,
        "samples": f"{result.samples}, losses measured on {result.measured}",
        "tensors": ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)),
        "notes": "; ".join(result.notes) or "none",
    }
    rows = "".join(f"<dt>{k}</dt><dd>{_text(v)}</dd>" for k, v in facts.items())
    head = "<tr><th>output</th><th>SQNR</th><th>cosine</th><th>largest difference</th></tr>"
    outputs = "".join(
        f"<tr><td>{_text(o.name)}</td><td>{decibel(o.distance.sqnr)}</td><td>{o.distance.cosine:.6f}</td>"
        f"<td>{o.distance.max_abs:.4g}</td></tr>"
        for o in result.outputs
    )
    table = f"<table><thead>{head}</thead><tbody>{outputs}</tbody></table>"
    return f'<section class="summary"><dl>{rows}</dl><div><h3>against the float model</h3>{table}</div></section>'


def _worst(result: QuantizeResult, rows: list[TensorLoss]) -> str:
    at = {t.name: i for i, t in enumerate(rows)}
    by = "what it alone does to the outputs" if any(t.output is not None for t in rows) else "its own SQNR"
    items = "".join(
        f'<li><a href="#t{at[t.name]}">{_text(t.name)}</a> {_text(t.op)} {_badge(t.own)} '
        f'<span class="dim">{_loss_words(t)}; nodes {_text(", ".join(t.nodes))}</span></li>'
        for t in result.ranking[:WORST]
    )
    return f"<section><h2>The worst tensors, by {by}</h2><ol>{items}</ol></section>"


def _loss_words(t: TensorLoss) -> str:
    output = "" if t.output is None else f", outputs {decibel(t.output)} dB"
    return f"own {decibel(t.own.sqnr)} dB{output}"


def _badge(d: Distance) -> str:
    return f'<span class="tag {CLASSES[d.verdict]}">{_text(d.verdict)}</span>'


def _legend() -> str:
    return (
        '<p class="legend"><span class="key own"></span>own: this tensor rounded, nothing else '
        '<span class="key total"></span>total: everything rounded '
        '<span class="key start"></span>flagged: below 27 dB by itself. Higher is worse.</p>'
    )


def _table(rows: list[TensorLoss]) -> str:
    from hbc.verify import Verdict

    options = "".join(f'<option value="{CLASSES[v]}">{_text(v)}</option>' for v in Verdict)
    controls = (
        '<div class="controls"><input id="filter" type="search" placeholder="tensor, op, node or type" '
        f'aria-label="filter"><label>own <select id="own"><option value="">any</option>{options}</select></label>'
        f'<label>total <select id="total"><option value="">any</option>{options}</select></label>'
        '<label><input type="checkbox" id="only"> only flagged</label><span id="count"></span></div>'
    )
    groups = f'<th colspan="{len(COLUMNS)}"></th><th colspan="3" class="g">own</th><th colspan="3" class="g">total</th>'
    names = [*COLUMNS, *(g.removeprefix("own ").removeprefix("total ") for g in GROUPS)]
    heads = "".join(
        f'<th scope="col"{_edge(i)}><button data-column="{i}">{n}</button></th>' for i, n in enumerate(names)
    )
    body = "".join(_row(i, t) for i, t in enumerate(rows))
    return (
        f'<section><h2>{plural(len(rows), "tensor")}</h2>{controls}<div class="scroll"><table id="tensors"><thead>'
        f"<tr>{groups}</tr><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _edge(i: int) -> str:
    return ' class="g"' if i in BORDERS else ""


def _row(i: int, t: TensorLoss) -> str:
    mark = '<span class="start-mark" title="flagged">►</span> ' if t.flagged else ""
    total = t.own if t.total is None else t.total
    cells = [
        (f"{mark}{i}", str(i), "n"),
        (f'<button class="open" aria-expanded="false">{_text(t.name)}</button>', printable(t.name), "name"),
        (_text(t.op), t.op, ""),
        (_text(t.dtype) + (" raised" if t.raised else ""), t.dtype, ""),
        (_text(shape_text(t.shape)), str(math.prod(t.shape)), ""),
        (scale_text(t.scale, t.channels), repr(t.scale), "n"),
        (_text(t.method), t.method, ""),
        (f"{t.clipped:.3%}", repr(t.clipped), "n"),
        *_figures(t.own),
        (_badge(t.own), "", ""),
        *(_figures(t.total) if t.total is not None else [("–", "", "n")] * 2),
        ("" if t.output is None else decibel(t.output), "" if t.output is None else repr(-t.output), "n"),
    ]
    made = "".join(
        f'<td class="{kind}{" g" if k in BORDERS else ""}" data-key="{_text(key)}">{shown}</td>'
        for k, (shown, key, kind) in enumerate(cells)
    )
    words = " ".join([t.name, t.op, t.kind, t.dtype, t.method, *t.nodes]).lower()
    data = f'data-own="{CLASSES[t.own.verdict]}" data-total="{CLASSES[total.verdict]}"'
    return f'<tr id="t{i}" {data} data-starts="{"1" if t.flagged else ""}" data-words="{_text(words)}">{made}</tr>'


def _figures(d: Distance) -> Iterable[tuple[str, str, str]]:
    noise = -d.sqnr if math.isfinite(d.sqnr) else (-1e9 if d.sqnr > 0 else 1e9)
    return [(decibel(d.sqnr), repr(noise), "n"), (f"{d.cosine:.6f}", repr(-d.cosine), "n")]


def _data(result: QuantizeResult, rows: list[TensorLoss]) -> dict[str, object]:
    found = [
        {
            "name": printable(t.name),
            "source": printable(t.name),
            "nodes": [printable(n) for n in t.nodes],
            "saturated": t.clipped,
            "max_abs": t.own.max_abs if t.total is None else t.total.max_abs,
            "own_max_abs": t.own.max_abs,
            "histogram": dataclasses.asdict(result.histograms[t.name]) if t.name in result.histograms else None,
        }
        for t in rows
    ]
    return {"from": "float", "to": "rounded", "rows": found}


def _left(result: QuantizeResult) -> str:
    if not result.left:
        return ""
    rows = "".join(f"<tr><td>{_text(n)}</td><td>{_text(why)}</td></tr>" for n, why in result.left.items())
    count = plural(len(result.left), "node")
    return (
        f"<section><details><summary>{count} off integers</summary><table><thead><tr><th>node</th><th>why</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></details></section>"
    )


def _help() -> str:
    return (
        "<section><details><summary>What the words mean</summary><dl class=words>"
        "<dt>own</dt><dd>What rounding this tensor, and nothing else, does to it.</dd>"
        "<dt>total</dt><dd>How far it is from the float model’s with everything rounded. A weight has none.</dd>"
        "<dt>outputs</dt><dd>The SQNR of the model’s outputs where this tensor alone is rounded.</dd>"
        "<dt>clipped</dt><dd>The share of elements beyond the threshold: they saturate.</dd>"
        "<dt>SQNR</dt><dd>Signal against noise, 10·log10(Σ reference² / Σ difference²), in dB.</dd>"
        "<dt>flagged</dt><dd>Its own SQNR, or that of the outputs, is below 27 dB: try int16 for it, or another "
        "method.</dd>"
        "</dl></details></section>"
    )
