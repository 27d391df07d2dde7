"""Options that say what a model is run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from hbc.samples import Sample, parse_preprocess, read_given
from hbc_runtime.program import TensorInfo

Command = TypeVar("Command", bound=Callable[..., Any])
Reader = Callable[[Sequence[TensorInfo]], list[Sample]]


def preprocess_option(function: Command) -> Command:
    """`--preprocess`."""
    text = "How an image becomes an input: keys and values, or a .yaml or .json file with them."
    return click.option("--preprocess", metavar="resize=320x320,mean=127,…", help=text)(function)


def sample_options(default: int) -> Callable[[Command], Command]:
    """`--input`, `--preprocess`, `--samples`, `--seed`; without files, `default` random samples."""

    def wrap(function: Command) -> Command:
        options = [
            click.option(
                "-i",
                "--input",
                "inputs",
                multiple=True,
                metavar="[NAME=]FILE",
                help="Samples: .npz, .npy, .png, .jpg, or a folder of them; repeatable.",
            ),
            preprocess_option,
            click.option(
                "--samples",
                type=click.IntRange(min=1),
                default=None,
                help=f"How many random samples, or of the files'.  [default: {default}; all]",
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random samples."
            ),
        ]
        for option in reversed(options):
            function = option(function)
        return function

    return wrap


def reader(inputs: Sequence[str], preprocess: str | None) -> Reader | None:
    """What reads the samples of `--input`, once the model's inputs are known; None where there is no `--input`."""
    spec = None if preprocess is None else parse_preprocess(preprocess)
    return (lambda infos: read_given(inputs, infos, spec)) if inputs else None
