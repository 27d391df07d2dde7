"""A whole program's command streams, checked; what is wrong is said with its model and segment."""

from __future__ import annotations

from ..hbm.where import within
from ..program import BpuSegment, Program
from .check import check_commands


def check_streams(program: Program, limit: int | None = None) -> None:
    """Raise ValueError, naming segment and command, unless every command stream of `program` is sound.

    `limit`: bytes of on-chip memory that the march has. Expects a program that passed `hbm.checks`.
    """
    for model in program.models:
        for number, segment in enumerate(model.segments):
            if isinstance(segment, BpuSegment) and segment.commands is not None:
                with within(f"model {model.name!r}"), within(f"segment {number} ({segment.name!r})"):
                    check_commands(model, number, limit)
