"""`hbc perf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from hbc.diagnostics import OptionError, error
from hbc.driver import compile_model
from hbc.example import Example
from hbc.files import check_writable, write_atomically
from hbc.options import CompileOptions, march_named, parse_shape
from hbc.perf import Estimate, as_json, board_named, boards, estimate, page, replay
from hbc.perf.page import stream_line, summary_rows
from hbc.perf.simulate import Timed
from hbc.words import human_bytes, human_count, shape_text
from hbc_runtime import load
from hbc_runtime.program import Program

from .console import Screen
from .params import PATH, SETTINGS, SHAPE_HELP, screen, torch_options, verbosity
from .render import table
from .stages import stage_lines

SLOWEST = 15
COLUMNS = ("layer", "op", "shape", "µs", "share", "compute µs", "DDR µs", "MACs", "DDR", "bound by")


@dataclass(frozen=True)
class Where:
    """What the estimate is for: a board, how many of its cores, and where an image comes from."""

    board: str | None
    cores: int
    source: str


@click.command(context_settings=SETTINGS)
@click.argument("model", type=PATH)
@click.option("--march", metavar="M", help="For a model: the chip family.  [default: the board's, or nash]")
@click.option("--board", metavar="B", help="x3, x5, j6e, s100 or s100p.  [default: the march's]")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="BPU cores that share the frames.")
@click.option("--fast-perf", is_flag=True, help="For a float model: quantise by made-up scales, all legal on the BPU.")
@click.option(
    "--input-source",
    type=click.Choice(["auto", "nv12", "ddr"]),
    default="auto",
    show_default=True,
    help="Where an image comes from: nv12 is 1.5 bytes a pixel; auto is nv12 with --fast-perf, else ddr.",
)
@click.option("--commands", is_flag=True, help="Replay the command stream too; a .hbm without one is tiled first.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help=SHAPE_HELP)
@torch_options
@click.option("--json", "json_file", type=PATH, metavar="FILE", help="Write the figures; - is stdout.")
@click.option("--html", "html_file", type=PATH, metavar="FILE", help="Write a page with timeline, roofline and graph.")
@verbosity
def command(
    model: Path,
    march: str | None,
    board: str | None,
    cores: int,
    fast_perf: bool,
    input_source: str,
    commands: bool,
    shapes: tuple[str, ...],
    example: tuple[Example, ...],
    output_names: str | None,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Estimate how long MODEL (.hbm, .onnx, .pt or .pt2) takes on a board, and where the time goes.

    \b
    hbc perf model.hbm                                  on its march's default board
    hbc perf model.onnx --march bayes-e --fast-perf     a float model, before any calibration
    hbc perf model.hbm --board j6e --html perf.html
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    for file in (json_file, html_file):
        if file is not None and str(file) != "-":
            check_writable(file)
    out = screen()
    given = CompileOptions(
        shapes=tuple(map(parse_shape, shapes)), example=example, output_names=output_names or (), fast_perf=fast_perf
    )
    program = _program(out, model, march, board, given)
    nv12 = input_source == "nv12" or (input_source == "auto" and fast_perf)
    found = _estimate(program, Where(board, cores, "nv12" if nv12 else "ddr"))
    with out.working("replaying commands"):
        stream = replay(program, found.board, nv12=nv12) if commands else None
    figures = as_json(found, stream)
    if json_file is not None and str(json_file) == "-":
        out.json(figures)
    else:
        _show(out, found)
        if stream is not None:
            out.result(stream_line(stream))
    if json_file is not None and str(json_file) != "-":
        write_atomically(json_file, (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode())
        out.story(f"wrote {json_file}", "bold green")
    if html_file is not None:
        write_atomically(html_file, page(found, program.models[0], stream).encode())
        out.story(f"wrote {html_file}", "bold green")


def _program(out: Screen, model: Path, march: str | None, board: str | None, given: CompileOptions) -> Program:
    if model.suffix == ".hbm":
        if march is not None or given != CompileOptions():
            what = "--march, --fast-perf, --shape and --example are for models; a .hbm is compiled already"
            raise click.UsageError(what)
        return load(model)
    name = march_named(march) if march else (board_named(board, "nash-e").march if board else "nash-e")
    out.story(f"hbc perf {model} for {name}" + (", made-up scales" if given.fast_perf else ""), "bold")
    with stage_lines(out) as tell:
        return compile_model(model, replace(given, march=name), on_event=tell).program


def _estimate(program: Program, where: Where) -> Estimate:
    board = board_named(where.board, program.march)
    if where.board is not None and board.march != program.march:
        fits = ", ".join(b.name for b in boards().values() if b.march == program.march) or "none"
        title = f"board {board.name} has {board.march}, the program is for {program.march}"
        raise error(OptionError, title, hint=f"compile for {board.march}, or take a board of {program.march}: {fits}")
    if where.cores > board.spec.cores:
        title = f"{where.cores} cores on a board that has {board.spec.cores}"
        raise error(OptionError, title, hint=f"{board.title} has --cores {board.spec.cores} at most")
    return estimate(program, board, nv12=where.source == "nv12", cores=where.cores)


def _show(out: Screen, e: Estimate) -> None:
    if e.board.march != e.march:
        out.warn(f"no board of {e.march} was fitted: the rates are those of {e.board.title} ({e.board.march})")
    out.result(table(("", ""), summary_rows(e), title=f"{e.model} on {e.board.title}"))
    slowest = sorted(e.layers, key=lambda t: t.start - t.end)[:SLOWEST]
    out.result("")
    out.result(
        table(
            COLUMNS,
            [_cells(t, e) for t in slowest if t.end > t.start],
            title=f"the slowest of {len(e.layers)} layers",
            right=("µs", "share", "compute µs", "DDR µs", "MACs", "DDR"),
        )
    )
    for line in _cpu_lines(e):
        out.warn(line)


def _cells(t: Timed, e: Estimate) -> tuple[str, ...]:
    took = t.end - t.start
    return (
        t.work.layer, t.work.kind, shape_text(t.work.shape), f"{took:.1f}", f"{100 * took / max(e.bpu_us, 1e-9):.1f} %",
        f"{t.compute:.1f}", f"{t.transfer:.1f}", human_count(t.work.macs), human_bytes(t.loaded + t.stored), t.bound,
    )  # fmt: skip


def _cpu_lines(e: Estimate) -> Iterator[str]:
    for part in e.cpu:
        ms = (part.end - part.start) / 1e3
        nodes = ", ".join(part.nodes[:3]) + (", …" if len(part.nodes) > 3 else "")
        yield f"{part.name} runs on the CPU ({nodes}); {ms:.3f} ms is a guess by its elements, not an estimate"
