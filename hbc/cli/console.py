"""Where words go: results to stdout, the story to stderr, and neither is ever markup."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from hbc.diagnostics import Diagnostic, render
from hbc.words import printable

GUTTER = 5  # columns of `  -->`, `   |` and `   =`
PIPED_WIDTH = 1000  # columns for tables that no terminal folds: a line stays a line for grep


@dataclass
class Verbosity:
    """How much of the story is told: with `-q` errors alone, with `-v` timings too, and to a pipe as well."""

    quiet: bool = False
    verbose: bool = False


class Screen:
    """The two streams of one run of the command."""

    def __init__(self, verbosity: Verbosity) -> None:
        self.verbosity = verbosity
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def tells(self) -> bool:
        """True where progress is shown: on a terminal, or when asked for; never with `-q`."""
        return not self.verbosity.quiet and (self.verbosity.verbose or self.err.is_terminal)

    def result(self, what: RenderableType) -> None:
        """A piece of the answer, to stdout; no line ends in blanks where it goes to a file or another program."""
        if self.out.is_terminal:
            self.out.print(_plain(what), soft_wrap=isinstance(what, str))
            return
        with self.out.capture() as captured:
            self.out.print(_plain(what), soft_wrap=isinstance(what, str))
        self.raw("\n".join(line.rstrip() for line in captured.get().split("\n")))

    def raw(self, text: str) -> None:
        """Text for stdout as it is: IR, JSON."""
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def json(self, value: object) -> None:
        """A JSON answer, to stdout."""
        plain = not (sys.stdout.encoding or "").lower().startswith("utf")  # escapes as JSON's, not as Python's
        self.raw(json.dumps(value, indent=2, ensure_ascii=plain, allow_nan=False))

    def story(self, what: RenderableType, style: str = "") -> None:
        """A line of the story, to stderr where it is told."""
        if self.tells:
            self.err.print(_plain(what), style=style, soft_wrap=isinstance(what, str))

    def warn(self, text: str) -> None:
        """Something that the user should know in any case but `-q`."""
        if not self.verbosity.quiet:
            self._labelled("warning:", "bold yellow", text)

    def note(self, text: str) -> None:
        """How the run ended, where that is no error; shown always."""
        self._labelled("hbc:", "bold", text)

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        """What went wrong, as hbc's own messages are worded; shown always."""
        head, *rest = render(_printable(diagnostic)).split("\n")
        label, _, title = head.partition(": ")
        line = Text.assemble((f"{label}:", "bold red"), " ", (title, "bold"))
        for more in rest:
            line.append(f"\n{more}")
            line.stylize("blue", len(line) - len(more), len(line) - len(more) + GUTTER)
        self.err.print(line, soft_wrap=True)

    def _labelled(self, label: str, style: str, text: str) -> None:
        head, *rest = printable(text).rstrip().split("\n")
        line = Text.assemble((label, style), " ", head)
        for more in rest:
            line.append(f"\n{more}")
        self.err.print(line, soft_wrap=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A spinner beside `text` on a terminal, while the body runs."""
        if not (self.tells and self.err.is_terminal):
            yield
            return
        with self.err.status(Text(text), spinner="dots"):
            yield


def _printable(d: Diagnostic) -> Diagnostic:
    notes, excerpt = (tuple(map(printable, lines)) for lines in (d.notes, d.excerpt))
    texts = {k: printable(getattr(d, k)) for k in ("title", "loc", "why", "hint", "trail")}
    return Diagnostic(code=d.code, notes=notes, excerpt=excerpt, **texts)


def _plain(what: RenderableType) -> RenderableType:
    return Text(printable(what)) if isinstance(what, str) else what


def _console(stream: TextIO) -> Console:
    terminal = stream.isatty()
    return Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        force_terminal=terminal,  # nothing in the environment makes a pipe look like a terminal
        no_color=bool(os.environ.get("NO_COLOR")) or None,
        width=None if terminal else PIPED_WIDTH,
    )
