"""`hbc quantize`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hbc.example import Example
from hbc.files import check_writable, write_atomically
from hbc.options import CompileOptions, parse_shape
from hbc.ptq import QuantizeResult
from hbc.ptq.read_config import read_config
from hbc.samples.images import SUFFIXES as IMAGE_SUFFIXES

from .console import Screen
from .inputs import preprocess_option, reader
from .params import PATH, SETTINGS, SHAPE_HELP, STDOUT, march_option, screen, threads_option, torch_options, verbosity
from .quantize_table import show

OnStep = Callable[[str, int, int], None]


@click.command(context_settings=SETTINGS)
@click.argument("model", type=PATH)
@click.option(
    "-c",
    "--calib",
    "calib",
    multiple=True,
    required=True,
    metavar="[NAME=]FILE",
    help="Samples: .npz, .npy, .png, .jpg, or a folder of them; repeatable.",
)
@preprocess_option
@click.option("--samples", type=click.IntRange(min=1), default=None, help="How many of the samples to use.")
@click.option("-o", "--output", type=PATH, help="Where to write.  [default: MODEL_quantised.onnx in this folder]")
@march_option
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help=SHAPE_HELP)
@torch_options
@click.option(
    "--config", type=PATH, metavar="FILE", help="Methods and precisions, as .yaml or .json: docs/quantize.md."
)
@click.option(
    "--auto-precision", is_flag=True, help="Raise the worst tensors to int16 until every output reaches --target."
)
@click.option("--target", type=float, metavar="DB", help="With --auto-precision: the SQNR to reach.  [default: 30]")
@click.option("--top", type=click.IntRange(min=1), help="With --auto-precision: raise this many instead.")
@click.option("--bias-correction", is_flag=True, help="Take the mean error of rounded weights out of the biases.")
@click.option(
    "--rank/--no-rank", default=True, show_default=True, help="Measure what each tensor alone does to the outputs."
)
@threads_option
@click.option("--all", "everything", is_flag=True, help="Show every tensor.")
@click.option("--json", "json_file", type=PATH, metavar="FILE", help="Write the report as JSON; - is stdout.")
@click.option("--html", "html_file", type=PATH, metavar="FILE", help="Write a page with plots and histograms.")
@verbosity
def command(
    model: Path,
    calib: tuple[str, ...],
    preprocess: str | None,
    samples: int | None,
    output: Path | None,
    march: str,
    shapes: tuple[str, ...],
    example: tuple[Example, ...],
    output_names: str | None,
    config: Path | None,
    auto_precision: bool,
    target: float | None,
    top: int | None,
    bias_correction: bool,
    rank: bool,
    threads: int,
    everything: bool,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Quantise the float model MODEL (.onnx, .pt, .pt2) by calibration, for `hbc compile`.

    Activations become int8 with a scale that the samples decide, weights int8 with a scale per channel; what a march
    computes in reals stays in reals. The result is an ONNX model with QuantizeLinear and DequantizeLinear.

    \b
    hbc quantize model.onnx --calib photos/ --preprocess mean=127,scale=1/128 -o quantised.onnx
    hbc quantize model.onnx --calib samples.npz --march bayes-e --auto-precision --html report.html
    hbc quantize model.pt --example 1x3x224x224 --calib samples/
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    from hbc.ptq.run import quantize_model

    out = screen()
    if (target is not None or top is not None) and not auto_precision:
        raise click.UsageError("--target and --top go with --auto-precision")
    if target is not None and top is not None:
        raise click.UsageError("--target and --top exclude each other")
    output = output or Path(f"{model.stem}_quantised.onnx")
    for file in (output, json_file, html_file):
        if file is not None and file != STDOUT:
            check_writable(file)
    options = CompileOptions(
        march, shapes=tuple(map(parse_shape, shapes)), example=example, output_names=output_names or ()
    )
    given: dict[str, Any] = {"samples": samples} if samples is not None else {}
    given |= {"bias_correction": True} if bias_correction else {}
    given |= {"auto": {"target": target, "top": top}} if auto_precision else {}
    rules = read_config(config)
    rules = read_config({**rules.model_dump(exclude_unset=True), **given})
    preprocess = preprocess or rules.preprocess
    if preprocess is None and _images(calib):
        out.warn("the images are read as reals from 0 to 255; --preprocess says how the model takes them")
    with _progress(out) as on_step:
        result = quantize_model(
            model,
            options,
            calib=reader(calib, preprocess) or [],
            config=rules,
            rank=rank,
            histograms=html_file is not None,
            threads=threads,
            on_step=on_step,
        )
    _write(out, result, output, json_file, html_file)
    if STDOUT not in {json_file, output}:
        show(out, result, output, everything)


def _images(calib: Sequence[str]) -> bool:
    """True where a file or a folder of the samples holds images."""
    paths = [Path(text.rpartition("=")[2] if not Path(text).exists() else text) for text in calib]
    files = [p for path in paths for p in (path.iterdir() if path.is_dir() else [path])]
    return any(p.suffix.lower() in IMAGE_SUFFIXES for p in files)


@contextmanager
def _progress(out: Screen) -> Iterator[OnStep | None]:
    """A bar per step on a terminal, gone when the body is done."""
    if not (out.tells and out.err.is_terminal):
        yield None
        return
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.err, transient=True) as bar:
        task = bar.add_task("preparing", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _write(out: Screen, result: QuantizeResult, output: Path, json_file: Path | None, html_file: Path | None) -> None:
    """The model and the files that were asked for, each whole or not at all."""
    result.save(output)
    out.story(f"wrote {output}", "bold green")
    if json_file == STDOUT:
        out.json(result.as_dict())
    elif json_file is not None:
        _save(out, json_file, json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if html_file is not None:
        from hbc.ptq.page import page

        _save(out, html_file, page(result))


def _save(out: Screen, path: Path, text: str) -> None:
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
    out.story(f"wrote {path}", "bold green")
