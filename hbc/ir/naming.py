"""Names in `.hbir` text: quoting, and one name for each value of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .core import Graph, Value

BARE_NAME = r"[A-Za-z_][A-Za-z0-9_.$-]*"  # of values and `@` names; op and attribute names have no `-` and `$`
_BARE = re.compile(BARE_NAME)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPED = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.)|$)", re.DOTALL)


def quote(text: str) -> str:
    r"""`text` between double quotes: printable characters as they are, the others as `\n`, `\t`, `\r` or `\u{hex}`."""
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text if plain else "".join(map(_escape, text))}"'


def _escape(c: str) -> str:
    return _ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}")


def unquote(text: str) -> str:
    """The string that `"…"` stands for; ValueError for an escape that there is none of."""
    return _ESCAPED.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    if match[1] is not None and int(match[1], 16) <= 0x10FFFF:
        return chr(int(match[1], 16))
    if match[2] in _UNESCAPES:
        return _UNESCAPES[match[2]]
    msg = f'the escape {match[0]} is none of \\" \\\\ \\n \\t \\r \\u{{hex}}'
    raise ValueError(msg)


def bare_or_quoted(name: str) -> str:
    """`name` as it is where it is an identifier, else quoted."""
    return name if _BARE.fullmatch(name) else quote(name)


class Namer:
    """Hands out distinct names: a hint as it is where it is free, else with `_1`, `_2`, … behind it."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def name(self, hint: str) -> str:
        """A name like `hint` that was not handed out before."""
        chosen, n = hint, self._next.get(hint, 1)
        while chosen in self._taken:
            chosen, n = f"{hint}_{n}", n + 1
        self._next[hint] = n
        self._taken.add(chosen)
        return chosen


def value_names(graph: Graph) -> dict[Value, str | int]:
    """Every value's name in text and reports: its hint, made distinct (arguments first), or a number if it has none."""
    namer = Namer()
    names: dict[Value, str | int] = {}
    numbers = 0
    for value in [*graph.args, *(r for op in graph.ops for r in op.results)]:
        if value.name is None:
            names[value] = numbers
            numbers += 1
        else:
            names[value] = namer.name(value.name)
    return names


def value_text(name: str | int) -> str:
    """`%name`, `%"any text"` or `%12`."""
    return f"%{name}" if isinstance(name, int) else f"%{bare_or_quoted(name)}"
