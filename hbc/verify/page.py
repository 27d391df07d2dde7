"""The result as one HTML page that needs nothing else: no network, no other file. Works without scripts, too.

Names come from a model file, so they are text everywhere: escaped here, and `textContent` in the script.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from hbc.words import plural, printable, shape_text

from .measure import Distance, Verdict, finite
from .plot import depth_plot
from .result import TensorRow, VerifyResult
from .text import decibel, quanta_text, scale_text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
CLASSES = {
    Verdict.EQUAL: "equal",
    Verdict.ONE_QUANTUM: "one",
    Verdict.CLOSE: "close",
    Verdict.DIFFERENT: "different",
}
COLUMNS = ("#", "tensor", "made by", "type", "shape", "scale")
FIGURES = ("exact", "quanta", "cosine", "SQNR", "verdict")


def page(result: VerifyResult) -> str:
    """The whole document."""
    title = f"hbc verify: {_text(result.model.rsplit('/', 1)[-1])}"
    body = [
        _header(result),
        _summary(result),
        _starts(result),
        f"<section><h2>Error over depth</h2>{_legend()}{depth_plot(result.rows)}</section>" if result.rows else "",
        _table(result),
        _absent(result),
        _help(),
    ]
    return document(title, body, _data(result))


def document(title: str, sections: Iterable[str], data: object, script: str = "") -> str:
    """A document of these sections, of which one holds the table `tensors` and its controls; `data`: for the script.

    `script`: another one than that of such a table.
    """
    body = [
        *sections,
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f"<script>{script or _file('page.js')}</script>",
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_file('page.css')}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """JSON that no markup can end."""
    text = json.dumps(finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _data(result: VerifyResult) -> dict[str, object]:
    """Histograms and names for the script, in an order that is the rows'."""
    rows = [
        {
            "name": printable(r.name),
            "source": printable(r.source or r.name),
            "nodes": [printable(n) for n in r.nodes],
            "saturated": r.saturated,
            "max_abs": r.total.max_abs,
            "own_max_abs": None if r.own is None else r.own.max_abs,
            "histogram": dataclasses.asdict(result.histograms[r.name]) if r.name in result.histograms else None,
        }
        for r in result.rows
    ]
    return {"from": result.source, "to": result.to, "rows": rows}


def _header(result: VerifyResult) -> str:
    said = "within tolerance" if result.passed else "outside tolerance" if result.rows else "nothing compared"
    kind = "equal" if result.passed else "different"
    return (
        f'<header><h1>{_text(result.model.rsplit("/", 1)[-1])} <span class="badge {kind}">{said}</span></h1>'
        f"<p><b>{_text(result.to)}</b> ({_text(result.about[1])}) against "
        f"<b>{_text(result.source)}</b> ({_text(result.about[0])})</p></header>"
    )


def _summary(result: VerifyResult) -> str:
    facts = {
        "model": result.model,
        "march": result.march,
        "arithmetic": result.arith,
        "samples": f"{result.samples} ({result.inputs})",
        "tolerance": f"{result.tolerance}, by {'each op itself' if result.by == 'op' else 'the whole way'}",
        "first difference": "none" if result.first is None else result.first.name,
    }
    rows = "".join(f"<dt>{k}</dt><dd>{_text(v)}</dd>" for k, v in facts.items())
    bars = _bar("each op by itself", result.counts(own=True)) + _bar("with what it inherits", result.counts())
    return f'<section class="summary"><dl>{rows}</dl><div>{bars}</div></section>'


def _bar(title: str, counts: Mapping[Verdict, int]) -> str:
    total = sum(counts.values()) or 1
    parts = "".join(
        f'<span class="{CLASSES[v]}" style="width:{100 * n / total:.2f}%" title="{n} {v}"></span>'
        for v, n in counts.items()
        if n
    )
    words = " ".join(f'<span class="tag {CLASSES[v]}">{n} {_text(v)}</span>' for v, n in counts.items() if n)
    return f'<h3>{title}</h3><div class="bar">{parts}</div><p class="tags">{words}</p>'


def _starts(result: VerifyResult) -> str:
    at = {r.name: i for i, r in enumerate(result.rows)}
    if not result.starts:
        return "<section><h2>Where errors start</h2><p>Nowhere: every compared tensor is equal.</p></section>"
    title = "Where errors start"
    if all(result.tolerance.passes(r.judged) for r in result.starts):
        title = "The first difference, within the tolerance"
    items = "".join(
        f'<li><a href="#t{at[r.name]}">{_text(r.name)}</a> {_text(r.op)} {_badge(r.judged)} '
        f'<span class="dim">{quanta_text(r.judged)}; nodes {_text(", ".join(r.nodes))}</span></li>'
        for r in result.starts
    )
    return f"<section><h2>{title}</h2><ol>{items}</ol></section>"


def _legend() -> str:
    return (
        '<p class="legend"><span class="key own"></span>own: the op on the reference’s operands '
        '<span class="key total"></span>total: the whole way from the inputs '
        '<span class="key start"></span>an error starts. Higher is worse; what is equal lies on the floor.</p>'
    )


def _table(result: VerifyResult) -> str:
    options = "".join(f'<option value="{CLASSES[v]}">{_text(v)}</option>' for v in Verdict)
    controls = (
        '<div class="controls"><input id="filter" type="search" placeholder="tensor, op or node" aria-label="filter">'
        f'<label>own <select id="own"><option value="">any</option>{options}</select></label>'
        f'<label>total <select id="total"><option value="">any</option>{options}</select></label>'
        '<label><input type="checkbox" id="only"> only where errors start</label><span id="count"></span></div>'
    )
    groups = f'<th colspan="{len(COLUMNS)}"></th><th colspan="5" class="g">own</th><th colspan="5" class="g">total</th>'
    names = [*COLUMNS, *FIGURES, *FIGURES]
    heads = "".join(
        f'<th scope="col"{_edge(i)}><button data-column="{i}">{n}</button></th>' for i, n in enumerate(names)
    )
    rows = "".join(_row(i, r) for i, r in enumerate(result.rows))
    return (
        f'<section><h2>{plural(len(result.rows), "tensor")}, in running order</h2>{controls}<div class="scroll">'
        f'<table id="tensors"><thead><tr>{groups}</tr><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        "</div></section>"
    )


def _edge(i: int) -> str:
    return ' class="g"' if i in {len(COLUMNS), len(COLUMNS) + len(FIGURES)} else ""


def _row(i: int, r: TensorRow) -> str:
    own = "" if r.own is None else CLASSES[r.own.verdict]
    words = " ".join([r.name, r.source, r.op, *r.nodes]).lower()
    mark = '<span class="start-mark" title="an error starts here">►</span> ' if r.starts else ""
    cells = [
        (f"{mark}{i}", str(i), "n"),
        (f'<button class="open" aria-expanded="false">{_text(r.name)}</button>', printable(r.name), "name"),
        (_text(r.op), r.op, ""),
        (_text(r.dtype), r.dtype, ""),
        (_text(shape_text(r.shape)), str(math.prod(r.shape)), ""),
        (scale_text(r.scale, r.channels), "" if r.scale is None else repr(r.scale), "n"),
        *_figures(r.own),
        *_figures(r.total),
    ]
    made = "".join(_cell(k, *c) for k, c in enumerate(cells))
    starts = "1" if r.starts else ""
    data = (
        f'data-own="{own}" data-total="{CLASSES[r.total.verdict]}" data-starts="{starts}" data-words="{_text(words)}"'
    )
    return f'<tr id="t{i}" {data}>{made}</tr>'


def _cell(i: int, shown: str, key: str, kind: str) -> str:
    classes = " ".join(filter(None, [kind, "g" if i in {len(COLUMNS), len(COLUMNS) + len(FIGURES)} else ""]))
    return f'<td class="{classes}" data-key="{_text(key)}">{shown}</td>'


def _figures(d: Distance | None) -> Iterable[tuple[str, str, str]]:
    """Shown text, sorting key and class of the five figures; keys sort the worst last."""
    if d is None:
        return [("–", "", "n")] * 4 + [('<span class="dim">not alone</span>', "", "")]
    noise = -d.sqnr if math.isfinite(d.sqnr) else (-1e9 if d.sqnr > 0 else 1e9)
    quanta = d.max_abs if d.max_quanta is None else d.max_quanta
    return [
        (f"{d.equal:.2%}", repr(-d.equal), "n"),
        (quanta_text(d), repr(quanta if math.isfinite(quanta) else 1e300), "n"),
        (f"{d.cosine:.6f}", repr(-d.cosine), "n"),
        (decibel(d.sqnr), repr(noise), "n"),
        (_badge(d), str(list(Verdict).index(d.verdict)), ""),
    ]


def _badge(d: Distance) -> str:
    return f'<span class="tag {CLASSES[d.verdict]}">{_text(d.verdict)}</span>'


def _absent(result: VerifyResult) -> str:
    if not result.absent:
        return ""
    rows = "".join(f"<tr><td>{_text(a.name)}</td><td>{_text(a.op)}</td><td>{_text(a)}</td></tr>" for a in result.absent)
    count = plural(len(result.absent), "tensor")
    head = f"<tr><th>tensor of {_text(result.source)}</th><th>made by</th><th>in {_text(result.to)}</th></tr>"
    return (
        f"<section><details><summary>{count} of {_text(result.source)} without a row of their own</summary>"
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></details></section>"
    )


def _help() -> str:
    return (
        "<section><details><summary>What the words mean</summary><dl class=words>"
        "<dt>own</dt><dd>The error of one op: it is run on the reference’s operands, so nothing is inherited.</dd>"
        "<dt>total</dt><dd>The error of the whole way from the inputs.</dd>"
        "<dt>quanta</dt><dd>The largest difference in steps of the tensor’s scale; ± marks a plain difference.</dd>"
        "<dt>SQNR</dt><dd>Signal against noise, 10·log10(Σ reference² / Σ difference²), in dB.</dd>"
        "<dt>EQUAL</dt><dd>Every element is equal.</dd><dt>≤1 QUANTUM</dt><dd>No difference is over one step.</dd>"
        "<dt>CLOSE</dt><dd>SQNR at least 27 dB; the cosine is then at least 0.999.</dd>"
        "<dt>DIFFERENT</dt><dd>Anything else.</dd></dl></details></section>"
    )
