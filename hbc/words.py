"""Small words for messages and tables."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 node`, `2 nodes`; `many` where an s is not the plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def some(names: Sequence[str], limit: int = 4) -> str:
    """The first names, comma separated, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` characters, with … in its middle where it is longer: names differ at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def shape_text(shape: Sequence[int]) -> str:
    """`(1, 3, 8, 8)` → `1x3x8x8`; `?` for a size that is known only after a run."""
    return "x".join("?" if d < 0 else str(d) for d in shape) or "scalar"


def human_bytes(n: int) -> str:
    """`1536` → `1.5 kB`."""
    size = float(n)
    for unit in ("B", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def human_count(n: int) -> str:
    """`12345678` → `12.3 M`."""
    size = float(n)
    for unit in ("", " k", " M"):
        if size < 1000:
            return f"{size:.1f}{unit}" if unit else str(n)
        size /= 1000
    return f"{size:.1f} G"


def human_seconds(seconds: float) -> str:
    """`0.0123` → `12 ms`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def printable(text: str) -> str:
    """`text` with control characters escaped, so that a name in a model file cannot drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
