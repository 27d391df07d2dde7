"""Tokens of `.hbir` text, on demand, each with its offset; and the message that points at one with a caret."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hbc.diagnostics import Diagnostic, ParseError

from .naming import BARE_NAME

_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*")
_TOKEN = re.compile(
    rf"""
      (?P<value>%(?:{BARE_NAME}|[0-9]+|{_STRING}))
    | (?P<at>@(?:{BARE_NAME}|{_STRING}))
    | (?P<number>-?(?:(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|(?:inf|nan)(?![A-Za-z0-9_.]))(?:f64)?))
    | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<string>{_STRING})
    | (?P<mark>->|[(){{}}\[\]<>,:=])
    """,
    re.VERBOSE,
)
_SHOWN_BEFORE, _SHOWN_AFTER = 60, 40  # characters of a long line that are shown around the caret
_MAX_NUMBER = 64  # characters; the longest shortest decimal of a float64 has 24


@dataclass(frozen=True)
class Token:
    """`kind`: value, at, number, word, string, mark, bad or end; `text` as written, from offset `start`."""

    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        """For messages: the text, cut where it is long."""
        return self.text if len(self.text) <= 40 else f"{self.text[:37]}..."

    @property
    def quoted(self) -> str:
        """For messages: the text between quotes."""
        if self.kind == "end":
            return "the end of the text"
        return self.shown if self.kind == "string" else repr(self.shown)


class Lexer:
    """Walks over `text`: `current` is the token at hand, `advance` goes to the next."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self._end = len(text.rstrip())  # where messages about a missing rest point
        self.current = self._scan(0)

    def advance(self) -> Token:
        """The token at hand; the next one becomes current."""
        token = self.current
        self.current = self._scan(token.start + len(token.text))
        return token

    def peek(self) -> Token:
        """The token after the current one."""
        return self._scan(self.current.start + len(self.current.text))

    def advance_into(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match raw text behind the current token and go on behind it; None, and no step, where it does not match."""
        match = pattern.match(self.text, self._skip(self.current.start + len(self.current.text)))
        if match is not None:
            self.current = self._scan(match.end())
        return match

    def _skip(self, at: int) -> int:
        match = _BLANK.match(self.text, at)
        assert match is not None  # it matches nothing, too
        return match.end()

    def _scan(self, at: int) -> Token:
        at = self._skip(at)
        if at >= len(self.text):
            return Token("end", "", self._end)
        match = _TOKEN.match(self.text, at)
        if match is None:
            return Token("bad", self.text[at], at)
        if match.lastgroup == "number" and len(match[0]) > _MAX_NUMBER:
            return Token("bad", match[0], at)
        assert match.lastgroup is not None
        return Token(match.lastgroup, match[0], at)

    def fail(self, diagnostic: Diagnostic, token: Token | None = None) -> ParseError:
        """An error that points at `token` (the current one by default)."""
        token = token or self.current
        line = self.text.count("\n", 0, token.start) + 1
        begin = self.text.rfind("\n", 0, token.start) + 1
        where = f"{self.filename}:{line}:{token.start - begin + 1}"
        return ParseError(replace(diagnostic, loc=where, excerpt=self._excerpt(begin, token)))

    def _excerpt(self, begin: int, token: Token) -> tuple[str, str]:
        end = self.text.find("\n", begin)
        end = len(self.text) if end < 0 else end
        first = max(begin, token.start - _SHOWN_BEFORE)
        last = min(end, token.start + _SHOWN_AFTER)
        cut = "..." if first > begin else ""
        more = "..." if last < end else ""
        shown = "".join(c if c.isprintable() else " " for c in self.text[first:last])
        width = max(1, min(len(token.text), last - token.start))
        return f"{cut}{shown}{more}", " " * (len(cut) + token.start - first) + "^" * width
