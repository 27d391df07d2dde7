"""The plot of error over depth, as inline SVG: every tensor's own and total noise, in running order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from hbc.words import printable

from .measure import CLOSE_SQNR
from .result import TensorRow
from .text import decibel

WIDTH, HEIGHT = 1100, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
FLOOR, CEILING, STEP = -100, 10, 20  # dB of noise against signal; what is equal lies on the floor


def depth_plot(rows: Sequence[TensorRow]) -> str:
    """An `<svg>`: x is the tensor's number, y its noise against its signal in dB (the SQNR, upside down)."""
    parts = [*_grid(len(rows)), _line(rows), *_dots(rows)]
    label = "Noise against signal of every tensor, in running order"
    return f'<svg class="depth" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _x(count: int) -> Callable[[int], float]:
    return lambda i: LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / max(count, 1)


def _y(noise: float) -> float:
    share = (min(max(noise, FLOOR), CEILING) - FLOOR) / (CEILING - FLOOR)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(count: int) -> list[str]:
    parts = []
    for level in range(FLOOR, CEILING + 1, STEP):
        y = _y(level)
        name = "equal" if level == FLOOR else f"{level} dB".replace("-", "−")
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    close = _y(-CLOSE_SQNR)
    parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{close:.1f}" y2="{close:.1f}"/>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{close - 4:.1f}" text-anchor="end">CLOSE</text>')
    at = _x(count)
    numbers = sorted({round(k * max(count - 1, 0) / 6) for k in range(7)})
    parts += [f'<text class="tick" x="{at(i):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{i}</text>' for i in numbers]
    parts.append(f'<text class="tick" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 1}" text-anchor="middle">tensor</text>')
    return parts


def _line(rows: Sequence[TensorRow]) -> str:
    at = _x(len(rows))
    points = " ".join(f"{at(i):.1f},{_y(-r.total.sqnr):.1f}" for i, r in enumerate(rows))
    return f'<polyline class="total" points="{points}"/>'


def _dots(rows: Sequence[TensorRow]) -> list[str]:
    at = _x(len(rows))
    parts = []
    for i, r in enumerate(rows):
        x, y = at(i), _y(-r.judged.sqnr)
        own = "own" if r.own is not None else "own unknown"
        noise = f"own {decibel(r.judged.sqnr)}, total {decibel(r.total.sqnr)}"
        text = f"{i}: {printable(r.name)} ({r.op})\nSQNR in dB: {noise}"
        mark = f'<path class="start" d="M{x - 5:.1f},{y - 14:.1f}h10l-5,8z"/>' if r.starts else ""
        stem = f'<line class="stem" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(FLOOR):.1f}" y2="{y:.1f}"/>'
        dot = f'<circle class="{own}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        reach = f'<rect class="reach" x="{x - 4:.1f}" y="{TOP}" width="8" height="{HEIGHT - TOP - BOTTOM}"/>'
        title = f"<title>{escape(text)}</title>"
        parts.append(f'<a class="point" href="#t{i}">{title}{stem}{dot}{mark}{reach}</a>')
    return parts
