"""`hbc verify`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hbc.files import check_writable, write_atomically
from hbc.options import CompileOptions
from hbc.verify import Tolerance, VerifyResult, verify_model
from hbc.verify.compare import OnTensor
from hbc.verify.result import table_rows
from hbc.words import printable
from hbc_runtime import load

from .app import DIFFERENT
from .console import Screen
from .inputs import reader, sample_options
from .params import PATH, SETTINGS, STDOUT, model_options, screen, threads_option, verbosity
from .verify_table import show


@click.command(context_settings=SETTINGS)
@click.argument("model", type=PATH)
@click.option("--from", "source", default=None, metavar="STAGE", help="The reference.  [default: ort, or torch]")
@click.option("--to", default="jit", metavar="STAGE", help="What is judged.  [default: jit]")
@model_options
@click.option("--hbm", type=PATH, help="Verify this program instead of compiling MODEL.")
@click.option("--float", "float_model", type=PATH, help="The float ONNX model, for stage `float`.  [default: derived]")
@sample_options(default=1)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="The largest difference in quanta.  [default: 1; against float: CLOSE]",
)
@click.option("--cosine", type=click.FloatRange(-1, 1), help="The least cosine.  [default: none]")
@click.option(
    "--by",
    type=click.Choice(["op", "total"]),
    default="op",
    show_default=True,
    help="What the verdict is about: each op's own error, or that of the whole way from the inputs.",
)
@threads_option
@click.option("--all", "everything", is_flag=True, help="Show every tensor, and those without a counterpart.")
@click.option("--json", "json_file", type=PATH, metavar="FILE", help="Write everything as JSON; - is stdout.")
@click.option("--csv", "csv_file", type=PATH, metavar="FILE", help="Write the table as CSV; - is stdout.")
@click.option("--html", "html_file", type=PATH, metavar="FILE", help="Write a page with plots and histograms.")
@verbosity
def command(
    model: Path,
    source: str | None,
    to: str,
    options: CompileOptions,
    hbm: Path | None,
    float_model: Path | None,
    inputs: tuple[str, ...],
    preprocess: str | None,
    samples: int | None,
    seed: int,
    tolerance: float | None,
    cosine: float | None,
    by: str,
    threads: int,
    everything: bool,
    json_file: Path | None,
    csv_file: Path | None,
    html_file: Path | None,
) -> int:
    """Compare two stages of MODEL tensor by tensor, and show where an error starts.

    Stages: float, ort, ort-optimized, ir:STAGE, ir:STAGE/PASS, reference, jit; of a PyTorch model torch in place of
    ort. Each op is also run on the reference's
    own operands, so that an error is told from one that is only inherited. Exit status 3 where the judged stage is
    outside the tolerance.

    \b
    hbc verify model.onnx
    hbc verify model.onnx --from float --input photos/ --html report.html
    hbc verify model.onnx --from ir:fuse --to ir:quantize/fold-qdq
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    out = screen()
    limit = _tolerance(tolerance, cosine)
    files = [f for f in (json_file, csv_file, html_file) if f is not None]
    if len(set(files)) < len(files):
        raise click.UsageError("--json, --csv and --html need a file each")
    for file in files:
        if file != STDOUT:
            check_writable(file)
    read = reader(inputs, preprocess)
    program = None if hbm is None else load(hbm)
    with _progress(out) as on_tensor:
        result = verify_model(
            model,
            options,
            source=source,
            to=to,
            inputs=read,
            count=samples,
            seed=seed,
            hbm=program,
            float_model=float_model,
            tolerance=limit,
            by=by,
            histograms=html_file is not None,
            threads=threads,
            said=", ".join(inputs),
            on_stage=lambda stage: out.story(f"  {stage}"),
            on_tensor=on_tensor,
        )
    _write(out, result, json_file, csv_file, html_file)
    if STDOUT not in files:
        show(out, result, everything)
    return 0 if result.passed else DIFFERENT


def _tolerance(quanta: float | None, cosine: float | None) -> Tolerance | None:
    for option, value in (("--tolerance", quanta), ("--cosine", cosine)):
        if value is not None and math.isnan(value):
            raise click.UsageError(f"{option} is not a number")
    return None if quanta is None and cosine is None else Tolerance(quanta, cosine)


@contextmanager
def _progress(out: Screen) -> Iterator[OnTensor | None]:
    """A bar on a terminal, gone when the body is done."""
    if not (out.tells and out.err.is_terminal):
        yield None
        return
    columns = (
        TextColumn("  comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tensor]}", style="dim", markup=False),
    )
    with Progress(*columns, console=out.err, transient=True) as bar:
        task = bar.add_task("", total=None, tensor="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, tensor=printable(name)[:30])


def _write(
    out: Screen, result: VerifyResult, json_file: Path | None, csv_file: Path | None, html_file: Path | None
) -> None:
    """The files that were asked for, each whole or not at all."""
    if json_file == STDOUT:
        out.json(result.as_dict())
    elif json_file is not None:
        _save(out, json_file, json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if csv_file is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table_rows(result))
        if csv_file == STDOUT:
            out.raw(text.getvalue())
        else:
            _save(out, csv_file, text.getvalue())
    if html_file is not None:
        from hbc.verify.page import page

        _save(out, html_file, page(result))


def _save(out: Screen, path: Path, text: str) -> None:
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
    out.story(f"wrote {path}", "bold green")
