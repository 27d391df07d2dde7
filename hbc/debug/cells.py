"""How values of a report are shown: as text, on the page, and in CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hbc.verify.text import decibel
from hbc.words import shape_text

BLOCKS = "▁▂▃▄▅▆▇█"
CELLS = 12  # characters of a histogram in a terminal


@dataclass(frozen=True)
class Kind:
    """One way to show a value. `key`: what a page sorts by, `right`: numbers stand on the right."""

    text: Callable[[Any], str]
    right: bool = True
    key: Callable[[Any], str] = repr


def number(value: float) -> str:
    """Four digits: `0.01234`, `1.2e-07`, `∞`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:.4g}"


def quanta(value: float) -> str:
    """`3` or `3.93`."""
    if not math.isfinite(value):
        return "∞"
    whole = round(value)
    return str(whole) if math.isclose(value, whole, abs_tol=1e-3) else f"{value:.2f}"


def blocks(counts: Sequence[float]) -> str:
    """Counts as a row of blocks; whatever isn't 0 is seen."""
    if not counts:
        return ""
    step = -(-len(counts) // CELLS)
    sums = [sum(counts[i : i + step]) for i in range(0, len(counts), step)]
    top = max(sums) or 1
    return "".join(" " if n <= 0 else BLOCKS[min(7, int(8 * (n / top) ** 0.5))] for n in sums)


def _sortable(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else repr(math.copysign(1e300, value))


SHOWN: dict[str, Kind] = {
    "text": Kind(str, right=False, key=str),
    "count": Kind(str, key=str),
    "number": Kind(number, key=_sortable),
    "decibel": Kind(decibel, key=_sortable),
    "cosine": Kind(lambda v: f"{v:.6f}", key=_sortable),
    "share": Kind(lambda v: f"{v:.2%}", key=_sortable),
    "quanta": Kind(quanta, key=_sortable),
    "bits": Kind(lambda v: f"{v:.1f}", key=_sortable),
    "shape": Kind(shape_text, right=False, key=lambda v: str(math.prod(v))),
    "words": Kind("; ".join, right=False, key=lambda v: str(len(v))),
    "names": Kind(", ".join, right=False, key=", ".join),
    "histogram": Kind(blocks, right=False, key=lambda v: str(len(v))),
}


def csv_value(value: Any) -> Any:
    """A value of a row as a spreadsheet takes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (tuple, list)):
        joint = "x" if value and all(isinstance(v, int) for v in value) else "; "
        return joint.join(map(str, value))
    return value
