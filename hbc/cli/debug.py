"""`hbc debug`: what is hard on a quantised model's integers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hbc.diagnostics import nearest
from hbc.files import check_writable, write_atomically
from hbc.options import CompileOptions
from hbc.words import plural

from .app import USAGE, BadCommand
from .console import Screen
from .inputs import reader, sample_options
from .params import PATH, SETTINGS, STDOUT, model_options, screen, threads_option, verbosity

SHOWN = 40  # rows that are shown without --all
METRIC = click.Choice(["cosine", "mse", "l1", "kl", "sqnr"])
OnStep = Callable[[str, int, int], None]


class Analyses(click.Group):
    """Names the nearest analysis where there is none of the name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named analysis; a usage error that offers the nearest one otherwise."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            known = sorted(self.commands)
            hint = f"{nearest(args[0], known, limit=1) or 'hbc debug --help'} Analyses are {', '.join(known)}"
            raise BadCommand(f"there is no analysis {args[0]!r}", hint, ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Analyses, context_settings=SETTINGS, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """See what is hard on a quantised model's integers, and what to do about it.

    For errors tensor by tensor there is `hbc verify MODEL --from float`; for a PyTorch model in memory,
    `from hbc.quantization import debug` (docs/debug.md).

    \b
    hbc debug statistics model.onnx --input photos/
    hbc debug weights model.onnx --float float.onnx --html weights.html
    hbc debug sensitivity model.onnx --input samples.npz
    hbc debug badcases model.onnx --input photos/
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--all`, `--json`, `--csv`, `--html`; the verb returns its report, which is written and shown."""

    @wraps(function)
    def verb(
        *args: Any, everything: bool, json_file: Path | None, csv_file: Path | None, html_file: Path | None, **rest: Any
    ) -> None:
        out = screen()
        files = [f for f in (json_file, csv_file, html_file) if f is not None]
        if len(set(files)) < len(files):
            raise click.UsageError("--json, --csv and --html need a file each")
        for file in files:
            if file != STDOUT:
                check_writable(file)
        with _progress(out) as on_step:
            report = function(*args, on_step=on_step, **rest)
        _write(out, report, json_file, csv_file, html_file)
        if STDOUT not in files:
            _show(out, report, everything)

    made: Any = verb
    for option in (
        click.option("--html", "html_file", type=PATH, metavar="FILE", help="Write a page with plots."),
        click.option("--csv", "csv_file", type=PATH, metavar="FILE", help="Write the table as CSV; - is stdout."),
        click.option("--json", "json_file", type=PATH, metavar="FILE", help="Write everything as JSON; - is stdout."),
        click.option("--all", "everything", is_flag=True, help="Show every row and column."),
    ):
        made = option(made)
    return made


@contextmanager
def _progress(out: Screen) -> Iterator[OnStep | None]:
    """A bar on a terminal, gone when the body is done."""
    if not (out.tells and out.err.is_terminal):
        yield None
        return
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.err, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _write(out: Screen, report: Any, json_file: Path | None, csv_file: Path | None, html_file: Path | None) -> None:
    from hbc.debug.page import page

    if json_file == STDOUT:
        out.json(report.as_dict())
    elif json_file is not None:
        _save(out, json_file, json.dumps(report.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if csv_file == STDOUT:
        out.raw(report.csv_text())
    elif csv_file is not None:
        _save(out, csv_file, report.csv_text())
    if html_file is not None:
        _save(out, html_file, page([report]))


def _save(out: Screen, path: Path, text: str) -> None:
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
    out.story(f"wrote {path}", "bold green")


def _show(out: Screen, report: Any, everything: bool) -> None:
    out.result(report.about)
    limit = None if everything else SHOWN
    out.result(report.table(everything=everything, limit=limit, width=out.out.width))
    if limit is not None and len(report.rows) > limit:
        out.result(f"{plural(len(report.rows) - limit, 'more row')}: --all, --csv or --html")
    for note in report.notes:
        out.result(note)


@command.command(context_settings=SETTINGS, short_help="Feature maps before rounding: what few bits do not hold.")
@click.argument("model", type=PATH)
@model_options
@sample_options(default=1)
@threads_option
@report_options
@verbosity
def statistics(
    model: Path, options: CompileOptions, inputs: tuple[str, ...], preprocess: str | None, samples: int | None,
    seed: int, threads: int, on_step: OnStep | None,
) -> Any:  # fmt: skip
    """Feature maps of MODEL before they are rounded: ranges, saturation, bits left; what few bits don't hold."""
    from hbc.debug.file_statistics import file_statistics
    from hbc.debug.model_files import opened

    with opened(model, options, reader(inputs, preprocess), samples, seed, threads, said=", ".join(inputs)) as case:
        return file_statistics(case, on_step)


@command.command(context_settings=SETTINGS, short_help="Weights channel by channel: scales, outliers, losses.")
@click.argument("model", type=PATH)
@model_options
@click.option("--float", "float_model", type=PATH, help="The float model, for weights that MODEL has as integers.")
@report_options
@verbosity
def weights(model: Path, options: CompileOptions, float_model: Path | None, on_step: OnStep | None) -> Any:
    """Weights of MODEL channel by channel: scales, spread, outliers, and what rounding took from them."""
    from hbc.debug.file_weights import file_weights

    return file_weights(model, options, float_model, on_step)


@command.command(context_settings=SETTINGS, short_help="What rounding each tensor alone does to the outputs.")
@click.argument("model", type=PATH)
@model_options
@sample_options(default=1)
@click.option("--metric", type=METRIC, default="sqnr", show_default=True, help="What the ranking goes by.")
@click.option(
    "--alone", type=click.Choice(["quantized", "float"]), default="quantized", show_default=True,
    help="Round one tensor and nothing else, or everything but one.",
)  # fmt: skip
@threads_option
@report_options
@verbosity
def sensitivity(
    model: Path, options: CompileOptions, inputs: tuple[str, ...], preprocess: str | None, samples: int | None,
    seed: int, metric: str, alone: Any, threads: int, on_step: OnStep | None,
) -> Any:  # fmt: skip
    """Rank the tensors of MODEL by what rounding each alone does to the outputs: one run for each."""
    from hbc.debug.file_sensitivity import file_sensitivity
    from hbc.debug.model_files import opened

    with opened(model, options, reader(inputs, preprocess), samples, seed, threads, said=", ".join(inputs)) as case:
        return file_sensitivity(case, metric, alone, on_step)


@command.command(context_settings=SETTINGS, short_help="The samples on which two stages differ most.")
@click.argument("model", type=PATH)
@model_options
@sample_options(default=16)
@click.option("--from", "source", default="float", show_default=True, metavar="STAGE", help="The reference.")
@click.option("--to", default="jit", show_default=True, metavar="STAGE", help="What is judged.")
@click.option("--float", "float_model", type=PATH, help="The float ONNX model, for stage `float`.  [default: derived]")
@click.option("--metric", type=METRIC, default="cosine", show_default=True, help="What the ranking goes by.")
@threads_option
@report_options
@verbosity
def badcases(
    model: Path, options: CompileOptions, inputs: tuple[str, ...], preprocess: str | None, samples: int | None,
    seed: int, source: str, to: str, float_model: Path | None, metric: str, threads: int, on_step: OnStep | None,
) -> Any:  # fmt: skip
    """Find the samples on which two stages of MODEL differ most at the outputs."""
    from hbc.debug.file_cases import file_cases
    from hbc.debug.model_files import opened

    count = samples if inputs or samples else 16
    read, said = reader(inputs, preprocess), ", ".join(inputs)
    with opened(model, options, read, count, seed, threads, float_model=float_model, said=said) as case:
        return file_cases(case, source, to, metric, on_step)
