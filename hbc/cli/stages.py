"""The driver's events as lines of the story."""

from __future__ import annotations

from contextlib import ExitStack

from hbc.driver import Event, StageBegun
from hbc.passes.manager import PassEvent
from hbc.words import human_seconds

from .console import Screen


class StageLines:
    """Called with each event: a spinner while a stage runs, a line when it is done.

    quantize    7 passes    31 rewrites     120 ms
    """

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.spinner = ExitStack()

    def __call__(self, event: Event) -> None:
        if isinstance(event, PassEvent):
            if self.screen.verbosity.verbose:
                self.screen.story(_pass_line(event), "dim")
            return
        self.spinner.close()
        if isinstance(event, StageBegun):
            self.spinner.enter_context(self.screen.working(event.name))
            return
        passes = "pass" if event.passes == 1 else "passes"
        counts = f"{event.passes:3} {passes:6} {event.rewrites:6} rewrites" if event.passes else " " * 26
        self.screen.story(f"  {event.name:<10} {counts} {human_seconds(event.seconds):>9}")

    def __enter__(self) -> StageLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.spinner.close()  # whatever happened, the cursor comes back


def _pass_line(event: PassEvent) -> str:
    seconds = human_seconds(event.seconds + event.verify_seconds)
    return f"    {event.index:3} {event.name:<20} {event.rewrites:6} rewrites {event.ops:6} ops {seconds:>9}"
