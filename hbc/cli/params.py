"""Options that several verbs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hbc.example import Example, parse_example
from hbc.options import CompileOptions, parse_shape
from hbc_runtime.session import MAX_THREADS

from .console import Screen, Verbosity

Command = TypeVar("Command", bound=Callable[..., Any])

# whether it exists and may be read is asked where it is read: the message there knows more
PATH = click.Path(path_type=Path, readable=False)
STDOUT = Path("-")
ARITH_HELP = "bpu: the chip's arithmetic; onnx: ONNX's.  [default: bpu]"
SHAPE_HELP = "Shape of an input that the model leaves open; repeatable."
EXAMPLE_HELP = "Shape of an input of a PyTorch model; one per input, by order or name; :i64 for a dtype."
OUTPUTS_HELP = "Names for the outputs of a PyTorch model, in order, between commas."
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def verbosity(function: Command) -> Command:
    """`-q` and `-v`; the verb finds a Screen made from them in `screen()`."""

    def set_quiet(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        ctx.find_root().obj.quiet |= value

    def set_verbose(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        ctx.find_root().obj.verbose |= value

    quiet = click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=set_quiet, help="Say errors only.")
    verbose = click.option(
        "-v", "--verbose", is_flag=True, expose_value=False, callback=set_verbose, help="Show stages and timings."
    )
    return quiet(verbose(function))


def screen() -> Screen:
    """The two streams, as loud as the command line asked for."""
    found = click.get_current_context().find_root().obj
    assert isinstance(found, Verbosity)
    return Screen(found)


def json_flag(function: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)


def threads_option(function: Command) -> Command:
    """`--threads`."""
    return click.option(
        "--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True, help="Cores for one run."
    )(function)


def march_option(function: Command) -> Command:
    """`--march`, with its default."""
    text = "The chip family: bernoulli2, bayes, bayes-e, nash-e, nash-m, nash-p; nash is nash-e.  [default: nash]"
    return click.option("--march", default="nash", metavar="M", help=text)(function)


def torch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--example` and `--output-names`, for every verb that reads a model; the verb gets them parsed and named so."""

    def examples(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[Example, ...]:
        return tuple(map(parse_example, given))

    shape = click.option("--example", multiple=True, metavar="[NAME=]1x3x224x224", help=EXAMPLE_HELP, callback=examples)
    return shape(click.option("--output-names", default=None, metavar="A,B", help=OUTPUTS_HELP)(function))


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What decides how a model is compiled; the verb gets it as one checked value, `options`."""

    @functools.wraps(function)
    def verb(
        *args: Any,
        march: str,
        arith: str,
        shapes: tuple[str, ...],
        strict: bool,
        no_cpu_fallback: bool,
        name: str | None,
        example: tuple[Example, ...],
        output_names: str | None,
        **rest: Any,
    ) -> Any:
        bound = tuple(parse_shape(s) for s in shapes)
        options = CompileOptions(
            march, arith, bound, strict, not no_cpu_fallback, name,
            example=example, output_names=output_names or (),
        )  # fmt: skip
        return function(*args, options=options, **rest)

    made: Callable[..., Any] = verb
    options: list[Callable[..., Any]] = [
        march_option,
        click.option("--arith", default="bpu", metavar="A", help=ARITH_HELP),
        click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help=SHAPE_HELP),
        torch_options,
        click.option("--strict", is_flag=True, help="Refuse what a real BPU would refuse: tensors with a zero point."),
        click.option("--no-cpu-fallback", is_flag=True, help="Refuse a model of which a part would run on the CPU."),
        click.option("--name", default=None, help="The model's name in the .hbm.  [default: the file's]"),
    ]
    for option in reversed(options):
        made = option(made)
    return made
