"""What can't be taken in, node by node: the walk goes on, so that one message tells everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hbc.diagnostics import FrontendError, SeveralNodes
from hbc.diagnostics.several import together


class MissingOperandError(FrontendError):
    """A tensor is read whose maker failed: that failure is noted already."""


class Failures:
    """Failed nodes so far, and the tensors that therefore don't exist. Nodes that read those are passed over."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[FrontendError] = []
        self.missing: set[str] = set()

    def add(self, failure: FrontendError, results: Iterable[str] = ()) -> None:
        """Note `failure` and that `results` will be missing."""
        if not isinstance(failure, MissingOperandError):
            self.found.append(failure)
        self.skip(results)

    def skip(self, results: Iterable[str]) -> None:
        """Note that `results` will be missing, for want of an operand."""
        self.missing.update(name for name in results if name)

    def touch(self, names: Iterable[str]) -> bool:
        """True where one of `names` is missing."""
        return not self.missing.isdisjoint(names)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a FrontendError of the block instead of raising it."""
        try:
            yield
        except FrontendError as error:
            self.add(error)

    def settle(self) -> None:
        """Raise what was found, as one error."""
        if self.found:
            what = "{} problems keep the model from being taken in"
            raise together(self.found, what, where=self.file, kind=SeveralNodes)
