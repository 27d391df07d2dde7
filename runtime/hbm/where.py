"""Where in a program something is wrong: prefixes for the text of a ValueError."""

from __future__ import annotations

from types import TracebackType


class within:  # noqa: N801 - reads as `with within("tensor 3"):`
    """Prefix the text of a ValueError raised inside with `where`.

    A class and not `contextlib.contextmanager`: the reader enters one for every tensor and instruction.
    """

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(err, ValueError):
            msg = f"{self.where}, {err}" if isinstance(err, _LocatedError) else f"{self.where}: {err}"
            raise _LocatedError(msg) from err


class _LocatedError(ValueError):
    """A ValueError whose text already begins with a place."""
