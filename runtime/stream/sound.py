"""A whole program's command streams, checked; what is wrong is said with its model and segment."""

from __future__ import annotations

from ..program import BpuSegment, Program
from .check import check_commands


def check_streams(program: Program, limit: int | None = None) -> None:
    """Raise ValueError, naming model, segment and command, unless every command stream of `program` is sound.

    `limit`: bytes of on-chip memory that the march has. Expects a program that passed `hbm.checks`.
    """
    for model in program.models:
        for number, segment in enumerate(model.segments):
            if not isinstance(segment, BpuSegment) or segment.commands is None:
                continue
            try:
                check_commands(model, number, limit)
            except ValueError as err:
                msg = f"model {model.name!r}, segment {number} ({segment.name!r}): {err}"
                raise ValueError(msg) from err
