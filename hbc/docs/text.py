"""Docstrings as Markdown, with links in place of citations."""

from __future__ import annotations

import inspect
import re
import textwrap

NOTICE = "*Written by `scripts/docs` from {}. Change it there; a test compares.*\n"

# Docstrings cite sections of the numerics by number; docs/numerics.md has them under these headings.
SECTIONS = {
    "1": "#reals-and-integers",
    "2": "#the-border-quantize-and-dequantize",
    "3": "#accumulators-and-biases",
    "4": "#requantize",
    "5": "#elementwise",
    "6": "#high-precision-outputs",
    "7": "#look-up-tables",
    "8": "#composites",
    "9": "#resizing",
    "10": "#what-is-promised",
}
PICTURE = ("%", "graph(")  # how the text of the IR begins


def doc(thing: object) -> str:
    """A docstring, a line per paragraph; pictures are indented, also those that `cleandoc` dedents for ending it."""
    paragraphs = inspect.cleandoc(getattr(thing, "__doc__", None) or "").split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else _paragraph(p) for p in paragraphs) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.indent(text, "    ") if text.startswith(PICTURE) else one_line(text)


def one_line(text: str) -> str:
    return " ".join(text.split())


def linked(text: str) -> str:
    """`text` with links in place of citations of the numerics; pictures (indented lines) stay as they are."""
    lines = text.splitlines(keepends=True)
    return "".join(line if line.startswith("    ") else _cite(line) for line in lines)


def _cite(line: str) -> str:
    line = re.sub(r"NUMERICS (?=D\d)", "", line)
    line = re.sub(r"NUMERICS (\d+)", lambda m: f"[numerics](numerics.md{SECTIONS.get(m[1], '')})", line)
    return re.sub(r"\bD(\d+)\b", r"[D\1](numerics.md#decisions)", line)
