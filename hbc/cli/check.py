"""`hbc check`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from hbc.check import TOLERANCE, CheckResult, Difference, OutputResult, check_program
from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc.opwise import OpResult, check_ops
from hbc.samples import random_samples
from hbc.verify.run import as_compiled
from hbc.words import plural
from hbc_runtime import load
from hbc_runtime.program import Program

from .app import DIFFERENT
from .console import Screen
from .inputs import reader, sample_options
from .params import PATH, SETTINGS, json_flag, model_options, screen, threads_option, verbosity
from .render import table
from .stages import stage_lines

OWN = "ORT's own"
SHOWN = 10  # inner tensors shown with --tensors, the farthest first


@click.command(context_settings=SETTINGS)
@click.argument("model", type=PATH)
@model_options
@click.option("--hbm", type=PATH, help="Check this program instead of compiling MODEL.")
@sample_options(default=2)
@click.option(
    "--tolerance",
    type=click.FloatRange(-1, 1),
    default=TOLERANCE,
    show_default=True,
    help="The least cosine to ONNX Runtime's unoptimised run, or to PyTorch.",
)
@click.option(
    "--by",
    type=click.Choice(["output", "op"]),
    default="output",
    show_default=True,
    help="What the verdict is about: the outputs, or every op fed the framework's own integers (at most 1 quantum).",
)
@threads_option
@click.option("--tensors", is_flag=True, help=f"Show the {SHOWN} inner tensors that are farthest off.")
@click.option("--no-tensors", is_flag=True, help="Don't look inside: quicker, for large models.")
@json_flag
@verbosity
def command(
    model: Path,
    options: CompileOptions,
    hbm: Path | None,
    inputs: tuple[str, ...],
    preprocess: str | None,
    samples: int | None,
    seed: int,
    tolerance: float,
    by: str,
    threads: int,
    tensors: bool,
    no_tensors: bool,
    as_json: bool,
) -> int:
    """Compile MODEL, run it, and compare with ONNX Runtime, or a PyTorch model with PyTorch.

    An output passes where its cosine to ONNX Runtime's unoptimised run is at least the tolerance, or at least that of
    ONNX Runtime's own optimised run. Exit status 3 where one doesn't. A deep net can amplify single roundings until its
    outputs differ: --by op judges every op on the framework's own integers instead.

    \b
    hbc check model.onnx --march nash
    hbc check model.onnx --input samples.npz --tensors
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    if math.isnan(tolerance):
        raise click.UsageError("--tolerance is not a number")
    if tensors and no_tensors:
        raise click.UsageError("--tensors and --no-tensors exclude each other")
    if by == "op" and no_tensors:
        raise click.UsageError("--by op looks inside; --no-tensors doesn't")
    out = screen()
    read = reader(inputs, preprocess)
    program = load(hbm) if hbm is not None else _compiled(out, model, options)
    main = program.models[0]
    drawn = read(main.inputs)[:samples] if read else random_samples(main, samples or 2, seed)
    same = as_compiled(options, program)
    with out.working(f"comparing {plural(len(drawn), 'sample')} with the model's own framework"):
        result = check_program(
            program, model, drawn, tolerance=tolerance, threads=threads, look_inside=not no_tensors, options=same
        )
    if not no_tensors:
        with out.working("comparing op by op"):
            result = dataclasses.replace(result, ops=check_ops(model, same, drawn[0], threads))
    passed = result.passed if by == "output" else result.ops_passed
    if as_json:
        head = {"model": str(model), "march": program.march, "arith": program.arith, "by": by}
        out.json({**head, **result.as_dict(), "passed": passed})
    else:
        _show(out, result, tensors, by)
    return 0 if passed else DIFFERENT


def _compiled(out: Screen, model: Path, options: CompileOptions) -> Program:
    with stage_lines(out) as tell:
        return compile_model(model, options, on_event=tell).program


def _show(out: Screen, result: CheckResult, tensors: bool, by: str) -> None:
    out.result(_outputs(result))
    if tensors:
        out.result(_tensors(result))
    worst = result.worst
    if worst is not None:
        made = f", made by {', '.join(repr(n) for n in worst.nodes)}" if worst.nodes else ""
        out.result(f"farthest tensor: {worst.name!r} ({worst.op}{made}): {_words(worst.difference)}")
    if result.worst_op is not None:
        out.result(f"op by op, on {result.reference}'s own integers: {_op_words(result, result.worst_op)}")
    passed = result.passed if by == "output" else result.ops_passed
    verdict, style = ("passed", "bold green") if passed else ("DIFFERENT", "bold red")
    how = f"cosine at least {result.tolerance:g}"
    if result.reference == "ONNX Runtime":
        how += ", or no farther than ONNX Runtime's optimiser moves it"
    if by == "op":
        how = f"every op within 1 quantum of {result.reference} on the same integers"
    out.result(Text(f"{verdict}: {plural(result.samples, 'sample')}, {how}", style=style))
    if by == "output" and not passed and result.ops and result.ops_passed:
        out.result("no op is at fault: the net amplifies single roundings; see --by op, --arith onnx and --tolerance")


def _op_words(result: CheckResult, worst: OpResult) -> str:
    count, exact = len(result.ops), sum(o.quanta == 0 for o in result.ops)
    if exact == count:
        return f"all {count} ops equal"
    at = f"{worst.op} made by {', '.join(repr(n) for n in worst.nodes)}"
    most = f"largest difference {plural(worst.quanta, 'quantum', 'quanta')} in {1 - worst.equal:.2%} of {at}"
    return f"{exact} of {count} ops equal, {most}"


def _outputs(result: CheckResult) -> Table:
    columns = ["output", "equal", "max diff", "in quanta", "cosine", OWN, "argmax/IoU", "verdict"]
    rows = [dict(zip(columns, _output_cells(o), strict=True)) for o in result.outputs]
    if result.reference != "ONNX Runtime":  # nobody else has an optimiser to compare with
        columns.remove(OWN)
    return table(columns, ([row[c] for c in columns] for row in rows), right=columns[1:-1])


def _output_cells(o: OutputResult) -> tuple[object, ...]:
    verdict = Text("ok", style="green") if o.passed else Text("different", style="bold red")
    own = "" if o.ort_cosine is None else f"{o.ort_cosine:.6f}"
    agree = o.difference.argmax if o.difference.argmax is not None else o.difference.iou
    return o.name, *_figures(o.difference), own, _share(agree), verdict


def _tensors(result: CheckResult) -> Table:
    columns = ("tensor", "made by", "as", "equal", "max diff", "in quanta", "cosine")
    worst = sorted(result.tensors, key=lambda t: t.difference.cosine)[:SHOWN]
    rows = ((t.name, ", ".join(t.nodes), t.op, *_figures(t.difference)) for t in worst)
    title = f"{plural(len(result.tensors), 'inner tensor')} compared, on the first sample"
    return table(columns, rows, right=columns[3:], title=title)


def _figures(d: Difference) -> tuple[str, str, str, str]:
    return f"{d.equal:.2%}", f"{d.max_abs:.4g}", _quanta(d), f"{d.cosine:.6f}"


def _words(d: Difference) -> str:
    quanta = "" if d.max_quanta is None else " (1 quantum)" if _quanta(d) == "1" else f" ({_quanta(d)} quanta)"
    return f"cosine {d.cosine:.6f}, {d.equal:.2%} equal, largest difference {d.max_abs:.4g}{quanta}"


def _quanta(d: Difference) -> str:
    return "" if d.max_quanta is None else f"{d.max_quanta:.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
