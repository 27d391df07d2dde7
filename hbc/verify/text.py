"""Figures of a comparison as the table and the page show them."""

from __future__ import annotations

import math

from .measure import Distance


def decibel(sqnr: float) -> str:
    """`53.4`, `∞`."""
    return f"{sqnr:.1f}" if math.isfinite(sqnr) else "∞" if sqnr > 0 else "−∞"


def quanta_text(d: Distance) -> str:
    """The largest difference in quanta, `3` or `3.93`; where there are none, the difference itself, as `±0.36`."""
    if d.max_quanta is None:
        return "0" if d.max_abs == 0 else f"±{d.max_abs:.2g}"
    if not math.isfinite(d.max_quanta):
        return "∞"
    rounded = round(d.max_quanta)
    return f"{rounded}" if math.isclose(d.max_quanta, rounded, abs_tol=1e-3) else f"{d.max_quanta:.2f}"


def scale_text(scale: float | None, channels: int) -> str:
    """`0.0165`, or the largest of several as `0.0165 ×64`; empty for plain numbers."""
    if scale is None:
        return ""
    return f"{scale:.4g}" + (f" ×{channels}" if channels > 1 else "")
