"""Reading tokens by expectation: what the parsers of `.hbir` text share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hbc.diagnostics import Diagnostic, ParseError, Unexpected

from .lexer import Lexer, Token
from .naming import unquote

T = TypeVar("T")
INT = re.compile(r"-?[0-9]{1,20}")  # every i64 and u64, and nothing that takes long to read


class Cursor:
    """A place in a text. Methods named after a thing read it, or raise a ParseError that points at what is there."""

    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer

    def fail(self, diagnostic: Diagnostic, token: Token | None = None) -> ParseError:
        return self.lexer.fail(diagnostic, token)

    def unexpected(self, expected: str) -> ParseError:
        return self.fail(Unexpected(expected=expected, found=self.lexer.current.quoted))

    def at(self, text: str) -> bool:
        return self.lexer.current.text == text

    def accept(self, text: str) -> bool:
        if not self.at(text):
            return False
        self.lexer.advance()
        return True

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.unexpected(repr(text))
        return self.lexer.advance()

    def take(self, kind: str, expected: str) -> Token:
        if self.lexer.current.kind != kind:
            raise self.unexpected(expected)
        return self.lexer.advance()

    def integer(self, expected: str) -> int:
        if self.lexer.current.kind != "number" or not INT.fullmatch(self.lexer.current.text):
            raise self.unexpected(expected)
        return int(self.lexer.advance().text)

    def string(self, expected: str) -> str:
        return self.unquoted(self.take("string", expected))

    def unquoted(self, token: Token) -> str:
        try:
            return unquote(token.text)
        except ValueError as error:
            raise self.fail(Unexpected(expected="a string", found="a bad escape", why=str(error)), token) from None

    def symbol(self, expected: str) -> str:
        """The name behind an `@`."""
        token = self.take("at", expected)
        name = token.text[1:]
        return self.unquoted(replace(token, text=name)) if name.startswith('"') else name

    def listed(self, item: Callable[[], T], close: str) -> list[T]:
        """Items between here and `close`, with commas between them; `close` is consumed."""
        items: list[T] = []
        if self.accept(close):
            return items
        items.append(item())
        while not self.accept(close):
            if not self.accept(","):
                raise self.unexpected(f"',' or {close!r}")
            items.append(item())
        return items
