"""The driver's events as lines of the story."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hbc.driver import Event, OnEvent, StageBegun, StageDone
from hbc.passes.manager import PassEvent
from hbc.words import human_seconds

from .console import Screen


@contextmanager
def stage_lines(screen: Screen) -> Iterator[OnEvent]:
    """What to hand to the driver: a spinner while a stage runs, a line when it is done, with `-v` one per pass too.

    quantize     7 passes     31 rewrites    120 ms
    """
    with ExitStack() as spinner:  # whatever happens, the cursor comes back

        def tell(event: Event) -> None:
            if isinstance(event, PassEvent):
                if screen.verbosity.verbose:
                    screen.story(_pass_line(event), "dim")
                return
            spinner.close()
            if isinstance(event, StageBegun):
                spinner.enter_context(screen.working(event.name))
            else:
                screen.story(_stage_line(event))

        yield tell


def _stage_line(event: StageDone) -> str:
    passes = "pass" if event.passes == 1 else "passes"
    counts = f"{event.passes:3} {passes:6} {event.rewrites:6} rewrites" if event.passes else " " * 26
    return f"  {event.name:<10} {counts} {human_seconds(event.seconds):>9}"


def _pass_line(event: PassEvent) -> str:
    seconds = human_seconds(event.seconds + event.verify_seconds)
    return f"    {event.index:3} {event.name:<20} {event.rewrites:6} rewrites {event.ops:6} ops {seconds:>9}"
