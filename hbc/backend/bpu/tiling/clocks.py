"""What has ended for certain when a command begins, so that no command waits for what is certain anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hbc_runtime.commands import Engine

ENGINES = len(Engine)


class Clocks:
    """Per command and engine the last command of that engine that has ended when the command has."""

    def __init__(self) -> None:
        self.ended: list[list[int]] = []
        self.engines: list[int] = []
        self.last = [-1] * ENGINES  # the last command of each engine

    def add(self, engine: Engine, needs: Iterable[int]) -> tuple[int, ...]:
        """A new command of `engine` that must begin after `needs`; returns the waits that it takes, ascending."""
        known = [-1] * ENGINES
        own = self.last[engine]
        if own >= 0:
            known = list(self.ended[own])
        waits = []
        for need in sorted(set(needs), reverse=True):  # the later ones tell most
            if need > known[self.engines[need]]:
                waits.append(need)
                known = _later(known, self.ended[need])
        number = len(self.ended)
        known[engine] = number
        self.ended.append(known)
        self.engines.append(engine)
        self.last[engine] = number
        return tuple(sorted(waits))


def _later(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [max(y, x) for x, y in zip(a, b, strict=True)]
