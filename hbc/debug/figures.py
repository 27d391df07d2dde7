"""Pictures of a report as inline SVG: bars, per-channel ranges, small histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hbc.words import printable, shorten

WIDTH, ROW, LABEL, RIGHT, TOP = 1100, 17, 250, 200, 6
MOST = 24  # bars of one picture
RANGES = 300  # height of a picture of ranges


def bars(
    items: Sequence[tuple[str, float, str, bool]], *, limit: float | None = None, logarithmic: bool = False
) -> str:
    """Horizontal bars of (name, value ≥ 0, what stands beside it, flagged), the first `MOST`; `limit`: a line."""
    shown = items[:MOST]
    values = [_finite(v) for _, v, _, _ in shown]
    low, high = _span(values, logarithmic=logarithmic)
    height = TOP + ROW * len(shown) + 8

    def x(value: float) -> float:
        share = value / high
        if logarithmic:
            share = 0.0 if value <= 0 else (math.log10(value) - low) / (high - low)
        return LABEL + (WIDTH - LABEL - RIGHT) * min(max(share, 0.0), 1.0)

    parts = []
    for i, ((name, _, words, flagged), value) in enumerate(zip(shown, values, strict=True)):
        y = TOP + ROW * i
        kind = "bar flagged" if flagged else "bar"
        wide = max(x(value) - LABEL, 1.0)
        title = f"<title>{_text(name)}: {_text(words)}</title>"
        parts.append(f'<text x="{LABEL - 6}" y="{y + 12}" text-anchor="end">{_text(shorten(name, 38))}{title}</text>')
        box = f'x="{LABEL}" y="{y + 2}" width="{wide:.1f}" height="{ROW - 4}"'
        parts.append(f'<rect class="{kind}" {box}>{title}</rect>')
        parts.append(f'<text class="tick" x="{LABEL + wide + 4:.1f}" y="{y + 12}">{_text(words)}</text>')
    if limit is not None:
        at = x(limit)
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}"/>')
    return _svg(height, "bars", parts)


def ranges(rows: Sequence[tuple[str, float, float]], *, limit: tuple[float, float] | None = None) -> str:
    """Vertical lines from the least to the largest value of each (name, low, high); `limit`: two lines."""
    ends = [_finite(v) for _, a, b in rows for v in (a, b)] + list(limit or ())
    low, high = min([*ends, 0.0]), max([*ends, 0.0])
    high = high if high > low else low + 1.0
    foot = RANGES - 16

    def y(value: float) -> float:
        return TOP + (foot - TOP) * (high - _finite(value)) / (high - low)

    step = (WIDTH - 70) / max(len(rows), 1)
    parts = [
        f'<line class="grid" x1="60" x2="{WIDTH}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="tick" x="54" y="{y(v) + 4:.1f}" text-anchor="end">{v:.3g}</text>'
        for v in dict.fromkeys((low, 0.0, high))
    ]
    parts += [f'<line class="limit" x1="60" x2="{WIDTH}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>' for v in limit or ()]
    for i, (name, a, b) in enumerate(rows):
        at = 60 + step * (i + 0.5)
        title = f"<title>{_text(name)}: {a:.4g} … {b:.4g}</title>"
        wide = min(max(step * 0.6, 1.0), 14.0)
        parts.append(
            f'<line class="whisker" x1="{at:.1f}" x2="{at:.1f}" y1="{y(a):.1f}" y2="{y(b) - 0.5:.1f}" '
            f'style="stroke-width:{wide:.1f}">{title}</line>'
        )
    return _svg(RANGES, "ranges", parts)


def spark(counts: Sequence[float]) -> str:
    """A small histogram; heights go by the root of the count, so that few outliers stay visible."""
    if not counts:
        return ""
    top = max(counts) or 1
    wide = 96 / len(counts)
    parts = [
        f'<rect x="{i * wide:.2f}" y="{22 - h:.1f}" width="{max(wide - 0.4, 0.6):.2f}" height="{h:.1f}"/>'
        for i, n in enumerate(counts)
        if n > 0 and (h := max(1.0, 21 * (n / top) ** 0.5))
    ]
    head = '<svg class="spark" viewBox="0 0 96 22" preserveAspectRatio="none" aria-hidden="true">'
    return f"{head}{''.join(parts)}</svg>"


def _span(values: Sequence[float], *, logarithmic: bool) -> tuple[float, float]:
    """What the axis runs between: of the logarithms, where it is logarithmic."""
    if not logarithmic:
        return 0.0, max([*values, 0.0]) or 1.0
    logs = [math.log10(v) for v in values if v > 0] or [0.0]
    return min(logs) - 0.5, max(logs) + 0.1


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.copysign(1e30, value) if not math.isnan(value) else 0.0


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def _text(value: str) -> str:
    return escape(printable(value))
