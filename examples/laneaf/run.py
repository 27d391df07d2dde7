"""LaneAF from float training to `.hbm`, with its F1 on held-out scenes at every stage.

    pip install 'hbc[torch,images]'
    python examples/laneaf/run.py

Less than three minutes on two cores for the compact network.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import torch
from laneaf.drawing import draw_lanes, sheet
from laneaf.evaluating import lanes_of
from laneaf.files import write_image
from laneaf.network import PLANS
from laneaf.stages import Project, Settings
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hbc.perf import board_named, estimate

PICTURES = 8


@click.command()
@click.option("--net", type=click.Choice(list(PLANS)), default="compact", show_default=True)
@click.option("--march", default="nash-e", show_default=True, help="The chip: bernoulli2, bayes, nash-e …")
@click.option("--size", default="96x256", show_default=True, help="Rows x columns of the scenes, multiples of 8.")
@click.option("--steps", default=Settings.steps, show_default=True, help="Steps of float training.")
@click.option("--qat-steps", default=Settings.qat_steps, show_default=True, help="Steps of QAT.")
@click.option("--exact-steps", default=Settings.exact_steps, show_default=True, help="Then steps in exact forward.")
@click.option("--training", default=Settings.training, show_default=True, help="Scenes to train on.")
@click.option("--test", default=Settings.held_out, show_default=True, help="Held-out scenes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=1, show_default=True, help="PyTorch's threads.")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("build/laneaf"))
def main(
    net: str, march: str, size: str, steps: int, qat_steps: int, exact_steps: int, training: int, test: int,
    seed: int, threads: int, output: Path,
) -> None:  # fmt: skip
    """Train, calibrate, train quantised, convert, compile, and evaluate at every stage."""
    rows, columns = _size(size)
    torch.set_num_threads(threads)
    settings = Settings(
        net=net, march=march, rows=rows, columns=columns, training=training, held_out=test,
        steps=steps, qat_steps=qat_steps, exact_steps=exact_steps, seed=seed,
    )  # fmt: skip
    begin = time.perf_counter()
    with Watch() as watch:
        project = Project(settings, watch.told)
        project.train_float()
        project.calibrate()
        project.train_quantised()
        project.convert()
        paths = project.save(output)
    pictures = output / "lanes.png"
    _draw(project, pictures)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(_table(project))
    _print_estimate(project)
    for path in (*paths.values(), pictures):
        print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")
    seconds, cpu = time.perf_counter() - begin, time.process_time()
    print(f"{seconds:.0f} s, {cpu:.0f} s of CPU time")
    if project.differences:
        raise click.ClickException(f"heads differ from the exact forward's: {', '.join(project.differences)}")


def _size(text: str) -> tuple[int, int]:
    try:
        rows, columns = (int(v) for v in text.split("x"))
    except ValueError:
        raise click.BadParameter(f"{text!r} isn't ROWSxCOLUMNS, such as 96x256", param_hint="--size") from None
    if rows < 48 or columns < 64 or rows % 8 or columns % 8:
        raise click.BadParameter("rows (48 or more) and columns (64 or more) are multiples of 8", param_hint="--size")
    return rows, columns


class Watch(Progress):
    """A bar a step on the terminal; where stderr is a file, a line a step."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        super().__init__(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
        self.found: dict[str, TaskID] = {}

    def told(self, what: str, done: int, total: int) -> None:
        """`done` of `total`; what comes behind a comma may change."""
        name, _, _ = what.partition(", loss")
        if name not in self.found:
            self.found[name] = self.add_task(what, total=total)
            if self.disable:
                print(name, file=sys.stderr, flush=True)
        self.update(self.found[name], description=what, completed=done)


def _table(project: Project) -> Table:
    s = project.settings
    table = Table(title=f"{s.net} LaneAF, {s.rows}x{s.columns}, {s.march}: lanes in held-out scenes")
    for name in ("stage", "F1 %", "found", "wrong", "missed", "scenes", "s", "heads are"):
        table.add_column(name, justify="left" if name in {"stage", "heads are"} else "right")
    for stage in project.stages:
        counts = stage.score
        figures = (f"{100 * counts.f1:.2f}", counts.right, counts.wrong, counts.missed)
        if stage.on < s.held_out:
            figures = ("", "", "", "")  # of fewer scenes: not comparable
        table.add_row(stage.name, *map(str, figures), str(stage.on), f"{stage.seconds:.1f}", stage.equal)
    return table


def _draw(project: Project, path: Path) -> None:
    scenes = project.held_out[:PICTURES]
    found = [lanes_of(project.exact, i) for i in range(len(scenes))]
    write_image(path, sheet([draw_lanes(s.image, f, s.lanes) for s, f in zip(scenes, found, strict=True)]))


def _print_estimate(project: Project) -> None:
    program = project.fixed.compiled.program
    e = estimate(program, board_named(None, program.march))
    ms, busy, macs = e.latency_us / 1e3, e.bpu_us, e.macs / 1e6
    print(f"on an {e.board.title} (an estimate): {ms:.2f} ms a scene, {busy:.0f} µs on its BPU, {macs:.0f} M MACs")


if __name__ == "__main__":
    main()
