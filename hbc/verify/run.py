"""`verify_model`: two stages of a model file, compared tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy.typing as npt

from hbc import samples as reading
from hbc.diagnostics import OptionError, error
from hbc.example import parse_example
from hbc.options import CompileOptions, parse_shape
from hbc_runtime.binding import bind
from hbc_runtime.march import border_rounding
from hbc_runtime.program import Program, TensorInfo
from hbc_runtime.types import Layout

from .compare import OnTensor, compare
from .result import Tolerance, VerifyResult
from .stage import Sample
from .stages import Bench, check_stage, default_source

if TYPE_CHECKING:
    from hbc.samples.spec import Preprocess

BY = ("op", "total")
Reader = Callable[[Sequence[TensorInfo]], "Sequence[Mapping[str, npt.ArrayLike]]"]


def verify_model(
    model: Path,
    options: CompileOptions | None = None,
    *,
    source: str | None = None,
    to: str = "jit",
    samples: Sequence[Mapping[str, npt.ArrayLike]] | None = None,
    inputs: Path | Reader | None = None,
    preprocess: Preprocess | None = None,
    count: int | None = None,
    seed: int = 0,
    hbm: Program | None = None,
    float_model: Path | None = None,
    tolerance: Tolerance | None = None,
    by: str = "op",
    histograms: bool = False,
    threads: int = 1,
    said: str = "",
    on_stage: Callable[[str], None] | None = None,
    on_tensor: OnTensor | None = None,
) -> VerifyResult:
    """Compare stage `to` of `model` with stage `source`, on `samples`, those in `inputs`, or random ones.

    Stages: float, torch, ort, ort-optimized, ir:STAGE, ir:STAGE/PASS, reference, jit. The reference is `torch` of a
    PyTorch model, else `ort`, where `source` is None. `inputs`: a file, a folder, or what reads samples once the inputs
    are known; `said` tells where they come from. `count`: how many samples (of `inputs` all, at random 1). `by`:
    whether each op's own error decides (`op`), or that of the whole way (`total`). Without a `tolerance`: 1 quantum,
    or, where one stage is `float`, CLOSE. `histograms`: for the page.

    Raises HbcError, in one of its kinds, where a stage or an input can't be had; hbc_runtime.HbmError where a program
    can't run.
    """
    source = source or default_source(model)
    for name in (source, to):
        check_stage(name)
    if by not in BY:
        raise error(OptionError, f"by is {by!r}", hint=f"one of {', '.join(BY)}")
    options = options or CompileOptions()
    options = options if hbm is None else as_compiled(options, hbm)
    tell = on_stage or (lambda _name: None)
    with Bench(Path(model), options, hbm, float_model, threads) as bench:
        tell("load")
        infos = infos_of(bench)
        where, drawn = drawn_samples(bench, infos, samples, inputs, preprocess, count, seed)
        bound = [bound_sample(infos, s, options) for s in drawn]
        tell(source)
        first = bench.stage(source)
        tell(to)
        second = bench.stage(to)
        limit = tolerance or default_tolerance(source, to)
        found = compare(
            first, second, bound, bench.facts, tolerance=limit, by=by, histograms=histograms, on_tensor=on_tensor
        )
        march, arith = options.march, options.arith
        about = (first.about, second.about)
    return VerifyResult(
        str(model), source, to, about, march, arith, len(bound), said or where, by, limit, found.rows, found.absent,
        found.histograms,
    )  # fmt: skip


def default_tolerance(source: str, to: str) -> Tolerance:
    """1 quantum per op is what arithmetics are promised to agree in; against a float model nothing is promised."""
    return Tolerance() if "float" in {source, to} else Tolerance(quanta=1.0)


def as_compiled(options: CompileOptions, program: Program) -> CompileOptions:
    """`options` with what the program was compiled for: march, arithmetic, and the shapes and examples of then."""
    stored = (f"{k[6:]}={v.removeprefix('scalar')}" for k, v in program.build.options if k.startswith("shape."))
    bound = tuple(map(parse_shape, stored))
    shapes, said = options.shapes or bound, dict(program.build.options)
    example = options.example or tuple(map(parse_example, said.get("example", "").split()))
    names = options.output_names or tuple(filter(None, said.get("output-names", "").split(",")))
    return dataclasses.replace(
        options, march=program.march, arith=program.arith, shapes=shapes, example=example, output_names=names
    )


def infos_of(bench: Bench) -> list[TensorInfo]:
    """The model's inputs, for the readers of samples."""
    args = bench.loaded.graph.args
    return [TensorInfo(str(a.name), a.type.shape, a.type.dtype, Layout.ANY, a.type.quant, 0) for a in args]


def drawn_samples(
    bench: Bench,
    infos: list[TensorInfo],
    samples: Sequence[Mapping[str, npt.ArrayLike]] | None,
    inputs: Path | Reader | None,
    preprocess: Preprocess | None,
    count: int | None,
    seed: int,
) -> tuple[str, Sequence[Mapping[str, npt.ArrayLike]]]:
    """Where the samples come from, in words, and the samples."""
    if samples is not None:
        return "given", samples[:count]
    if callable(inputs):
        return "read", inputs(infos)[:count]
    if inputs is not None:
        return str(inputs), reading.read_samples(inputs, infos, preprocess)[:count]
    return f"random, seed {seed}", reading.draw(infos, reading.ranges_of(bench.loaded), count or 1, seed)


def bound_sample(infos: list[TensorInfo], sample: Mapping[str, npt.ArrayLike], options: CompileOptions) -> Sample:
    """A sample as the stages read it; InputMismatch where it doesn't fit."""
    arrays = bind(infos, sample, border_rounding(options.march, options.arith))
    return {i.name: a for i, a in zip(infos, arrays, strict=True)}
