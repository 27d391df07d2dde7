"""`hbc opt`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import numpy as np

from hbc import frontend
from hbc.backend.bpu.target import Target
from hbc.example import Example
from hbc.files import check_writable, write_atomically
from hbc.ir import load_module, print_module, verify
from hbc.ir.core import Module
from hbc.ir.printer import print_with_arrays
from hbc.ir.semantics import ARITHS
from hbc.options import CompileOptions, march_named, parse_shape, pick
from hbc.passes.manager import PassEvent, PassManager, Stage
from hbc.passes.pipeline_text import parse_pipeline
from hbc.passes.registry import PASSES
from hbc.words import human_seconds

from .params import PATH, SETTINGS, screen, torch_options, verbosity

TEXT_STARTS = (b"//", b"module", b"graph")  # what `.hbir` begins with; a model never does


@click.command(context_settings=SETTINGS)
@click.argument("source", type=PATH)
@click.option(
    "-p", "--passes", "passes_text", metavar="PASSES", help="Passes to run, such as fuse-conv,dce; see `hbc passes`."
)
@click.option("--stage", metavar="STAGE", help="A whole stage to run.")
@click.option("--march", metavar="M", help="The march.  [default: the module's own]")
@click.option("--arith", metavar="A", help="The arithmetic.  [default: the module's own]")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help="Shape of an input that a model leaves open."
)
@torch_options
@click.option(
    "-o", "--output", type=PATH, help="Write here in place of stdout; large constants go to the .npz beside it."
)
@click.option("--print-after", metavar="PASS", help="Show the module on stderr each time after this pass (or `all`).")
@click.option("--verify-only", is_flag=True, help="Check the module and print nothing.")
@click.option("--locs", is_flag=True, help="Print source locations.")
@click.option("--elide", is_flag=True, help="Shorten large constants, for reading; done by itself on a terminal.")
@verbosity
def command(
    source: Path,
    passes_text: str | None,
    stage: str | None,
    march: str | None,
    arith: str | None,
    shapes: tuple[str, ...],
    example: tuple[Example, ...],
    output_names: str | None,
    output: Path | None,
    print_after: str | None,
    verify_only: bool,
    locs: bool,
    elide: bool,
) -> None:
    """Run single passes or a stage on SOURCE (.hbir text, or a model) and print the module.

    \b
    hbc opt model.onnx                         the module as it was taken in
    hbc opt -p fuse-conv,dce in.hbir
    hbc opt --stage quantize in.hbir -o out.hbir
    hbc opt model.pt --example 1x3x224x224
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    if passes_text is not None and stage is not None:
        raise click.UsageError("-p and --stage exclude each other")
    if output is not None:
        check_writable(output)
    given = CompileOptions(shapes=tuple(map(parse_shape, shapes)), example=example, output_names=output_names or ())
    module = load(source, given)
    module.march = march_named(march or module.march)
    module.arith = pick("arithmetic", arith or module.arith, ARITHS)
    target = Target(module.march, module.arith)
    verify(module)
    if verify_only:
        screen().story(f"{source} is sound: {len(module.graph.ops)} ops", "green")
        return
    steps = _steps(target, passes_text, stage)
    _run(module, target, steps, print_after)
    _write(module, output, locs, elide)


def load(source: Path, given: CompileOptions) -> Module:
    """The module in a file: `.hbir` by its name or its first words, a model otherwise, with shapes and examples."""
    if source.suffix == ".hbir" or (source.is_file() and _begins_as_text(source)):
        return load_module(source)
    return frontend.load(source, given.shape_map, given.example, given.output_names)


def _begins_as_text(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(64).lstrip().startswith(TEXT_STARTS)


def _steps(target: Target, passes_text: str | None, stage: str | None) -> Stage:
    """What to run as one stage; no pass at all where nothing is asked for."""
    if stage is not None:
        stages = {s.name: s for s in target.pipeline}
        return stages[pick("stage", stage, stages)]
    return Stage("opt", parse_pipeline(passes_text, PASSES) if passes_text else ())


def _run(module: Module, target: Target, stage: Stage, print_after: str | None) -> None:
    out = screen()

    def show(event: PassEvent) -> None:
        out.story(f"  {event.name:<20} {event.rewrites:6} rewrites {human_seconds(event.seconds):>9}")
        if event.text is not None:
            click.echo(f"// after {event.name}\n{event.text}", err=True)

    shown = () if print_after is None else (pick("pass", print_after, [*PASSES, "all"]),)
    PassManager(target, on_event=show, print_after=shown).run(stage, module)


def _write(module: Module, output: Path | None, locs: bool, elide: bool) -> None:
    if output is None:
        shorten = elide or sys.stdout.isatty()
        screen().raw(print_module(module, locs=locs, consts="elide" if shorten else "inline"))
        return
    write_text(module, output, locs)


def write_text(module: Module, output: Path, locs: bool) -> None:
    """Write `.hbir`, and its large constants as the `.npz` beside it; each file whole or not at all."""
    text, arrays = print_with_arrays(module, locs=locs)
    if arrays:
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type] # no array is named after a parameter of savez
        write_atomically(output.with_suffix(".npz"), packed.getvalue())
    write_atomically(output, text.encode())
