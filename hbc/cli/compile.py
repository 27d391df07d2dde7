"""`hbc compile`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from hbc.driver import Compiled, compile_model, lower_model
from hbc.files import check_writable
from hbc.ir import print_module
from hbc.options import CompileOptions
from hbc.report import Report
from hbc.words import human_bytes

from .console import Screen
from .opt import write_text
from .params import PATH, SETTINGS, STDOUT, json_flag, model_options, screen, verbosity
from .render import explain as explanation
from .report_file import check_report, write_report
from .stages import stage_lines

LEVEL_HELP = "Work on command streams: O0 none, O1 overlap, O2 stay on chip, O3 search."
OBJECTIVE_HELP = "What command streams should save: latency, bandwidth or balance."


@click.command(context_settings=SETTINGS)
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, help="Where to write.  [default: MODEL.hbm in this folder; - is stdout]")
@model_options
@click.option("--aot", is_flag=True, help="Add machine code for this CPU, which `hbc run --trust` takes.")
@click.option("--optimize-level", metavar="O0..O3", default="O2", show_default=True, help=LEVEL_HELP)
@click.option("--objective", metavar="WHAT", default="latency", show_default=True, help=OBJECTIVE_HELP)
@click.option("--explain", is_flag=True, help="Show where each node runs and why.")
@click.option(
    "--report", "report_file", type=PATH, metavar="FILE", help="Write all of that as FILE.json, .md or .html."
)
@click.option("--emit", type=click.Choice(["hbm", "hbir"]), default="hbm", help="Write the program, or the IR's text.")
@click.option(
    "--stop-after", metavar="STAGE", help="With --emit hbir: the stage after which to stop; see `hbc passes`."
)
@click.option("--locs", is_flag=True, help="With --emit hbir: with source locations.")
@json_flag
@verbosity
def command(
    model: Path,
    output: Path | None,
    options: CompileOptions,
    aot: bool,
    optimize_level: str,
    objective: str,
    explain: bool,
    report_file: Path | None,
    emit: str,
    stop_after: str | None,
    locs: bool,
    as_json: bool,
) -> None:
    """Compile MODEL (.onnx, .pt, .pt2) into a .hbm program.

    \b
    hbc compile model.onnx                            model.hbm, for nash-e
    hbc compile model.onnx --march bayes-e --explain  and where each node runs
    hbc compile model.onnx --emit hbir --stop-after quantize
    hbc compile model.pt --example 1x3x288x832        TorchScript, which tells no sizes
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    options = replace(options, aot=aot, optimize_level=optimize_level, objective=objective)
    if emit == "hbir":
        if explain or as_json or aot or report_file is not None:
            what = "--aot, --explain, --report and --json belong to a compiled program; leave out --emit hbir"
            raise click.UsageError(what)
        _emit_text(screen(), model, options, output, stop_after, locs)
        return
    if stop_after is not None or locs:
        raise click.UsageError("--stop-after and --locs need --emit hbir")
    output = output or Path(f"{model.stem}.hbm")
    if output == STDOUT and (explain or as_json):
        raise click.UsageError("stdout can't hold both the program and a report; give -o FILE")
    if report_file is not None:
        check_report(report_file)
    report = _compile(screen(), model, options, output)
    if report_file is not None:
        write_report(report, report_file)
    if as_json:
        screen().json({"output": str(output), **report.as_dict()})
    elif explain:
        _explain(screen(), report)
    _tell(screen(), report, output, explain)


def _compile(out: Screen, model: Path, options: CompileOptions, output: Path) -> Report:
    if output != STDOUT:
        _guard(model, output)
    out.story(f"hbc compile {model} for {options.march}" + (", arith onnx" if options.arith == "onnx" else ""), "bold")
    with stage_lines(out) as tell:
        compiled = compile_model(model, options, on_event=tell)
    return compiled.report.with_file_bytes(_write(compiled, output))


def _guard(model: Path, output: Path) -> None:
    """Refuse, before the work, an output that can't be written or that is the model itself."""
    check_writable(output)
    if output.exists() and model.exists() and output.samefile(model):
        raise click.UsageError(f"{output} is the model itself; give another -o")


def _write(compiled: Compiled, output: Path) -> int:
    if output != STDOUT:
        return compiled.save(output)
    data = compiled.to_bytes()
    sys.stdout.buffer.write(data)
    return len(data)


def _explain(out: Screen, report: Report) -> None:
    for part in explanation(report, out.out.width):
        out.result(part)
        out.result("")
    for line in report.summary():
        out.result(line)


def _tell(out: Screen, report: Report, output: Path, explained: bool) -> None:
    for line in () if explained else report.summary():
        out.story(f"  {line}", "dim")
    for text in report.warnings():
        out.warn(text)
    out.story(f"wrote {output} ({human_bytes(report.file_bytes or 0)})", "bold green")


def _emit_text(
    out: Screen, model: Path, options: CompileOptions, output: Path | None, stop_after: str | None, locs: bool
) -> None:
    if output is not None and output != STDOUT:
        _guard(model, output)
    with stage_lines(out) as tell:
        module = lower_model(model, options, stop_after=stop_after, on_event=tell)
    if output is None or output == STDOUT:
        out.raw(print_module(module, locs=locs, consts="elide" if sys.stdout.isatty() else "inline"))
    else:
        write_text(module, output, locs)
