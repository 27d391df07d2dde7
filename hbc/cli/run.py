"""`hbc run`."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hbc.diagnostics import BadRunInput, OptionError, error
from hbc.files import check_writable, write_atomically
from hbc.samples import Sample, parse_preprocess, random_samples, read_given
from hbc.words import human_seconds, plural, shape_text
from hbc_runtime import Session
from hbc_runtime.program import TensorInfo

from .console import Screen
from .inputs import preprocess_option
from .params import PATH, SETTINGS, json_flag, screen, threads_option, verbosity
from .render import table

if TYPE_CHECKING:
    from hbc.samples.spec import Preprocess


@click.command(context_settings=SETTINGS)
@click.argument("program", type=PATH)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A .npy, .png or .jpg for input NAME, or a .npz by names; repeatable.",
)
@preprocess_option
@click.option(
    "--random", "seed", type=click.IntRange(min=0), metavar="SEED", help="Draw inputs that no file gives at random."
)
@click.option("-o", "--output", type=PATH, help="Write the outputs to this .npz.")
@click.option(
    "--reference", is_flag=True, help="Use the NumPy reference in place of machine code: slow, the same integers."
)
@click.option("--trust", is_flag=True, help="Let machine code that PROGRAM brings run: it can do anything.")
@threads_option
@json_flag
@verbosity
def command(
    program: Path,
    inputs: tuple[str, ...],
    preprocess: str | None,
    seed: int | None,
    output: Path | None,
    reference: bool,
    trust: bool,
    threads: int,
    as_json: bool,
) -> None:
    """Run PROGRAM (.hbm) on arrays, and show or save its outputs.

    \b
    hbc run model.hbm --input image=x.npy -o out.npz
    hbc run model.hbm --random 0
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    out = screen()
    spec = None if preprocess is None else parse_preprocess(preprocess)
    if output is not None:
        check_writable(output)
    begin = time.perf_counter()
    engine = "reference" if reference else "jit"
    with Session(program, threads=threads, engine=engine, trust_native_code=trust) as session:
        sample = gather(out, session, inputs, seed, spec)
        out.story(f"  ready after {human_seconds(time.perf_counter() - begin)}")
        begin = time.perf_counter()
        results = session.run(sample)
        seconds = time.perf_counter() - begin
        infos = session.outputs
    out.story(f"  ran in {human_seconds(seconds)}")
    if output is not None:
        _save(output, results)
        out.story(f"wrote {output}", "bold green")
    if as_json:
        out.json({"outputs": [describe(i, results[i.name]) for i in infos], "seconds": seconds})
        return
    columns = ("output", "dtype", "shape", "min", "max", "mean", "first values")
    out.result(table(columns, (_cells(i, results[i.name]) for i in infos), right=("min", "max", "mean")))


def gather(
    out: Screen, session: Session, inputs: Sequence[str], seed: int | None, spec: Preprocess | None = None
) -> Sample:
    """What the command line describes: the samples of files, one behind the other; random arrays for what is left."""
    samples = read_given(inputs, session.inputs, spec) or [{}]
    if len(samples) > 1:
        out.story(f"  {plural(len(samples), 'sample')} in one run")
    missing = [i for i in session.inputs if i.name not in samples[0]]
    if seed is not None:
        drawn = random_samples(session.model, len(samples), seed)
        samples = [{**s, **{i.name: d[i.name] for i in missing}} for s, d in zip(samples, drawn, strict=True)]
    elif missing:
        wanted = "\n".join(f"{i.name!r}: {i.dtype.text}[{shape_text(i.shape)}]" for i in missing)
        hint = "--input NAME=x.npy, --input x.npz, or --random 0"
        raise error(
            OptionError, f"no value for {plural(len(missing), 'input')}", why=wanted, hint=hint, kind=BadRunInput
        )
    if len(samples) == 1:
        return samples[0]
    return {name: np.concatenate([s[name] for s in samples]) for name in samples[0]}


def describe(info: TensorInfo, y: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An output in figures, for `--json`."""
    finite = y[np.isfinite(y)] if y.dtype.kind == "f" else y
    figures = (
        {"min": finite.min().item(), "max": finite.max().item(), "mean": float(finite.mean())} if finite.size else {}
    )
    argmax = int(y.argmax()) if y.size else None
    return {"name": info.name, "dtype": info.dtype.text, "shape": list(y.shape), **figures, "argmax": argmax}


def _cells(info: TensorInfo, y: np.ndarray[Any, Any]) -> tuple[object, ...]:
    d = describe(info, y)
    figures = [f"{d[k]:.6g}" if k in d else "" for k in ("min", "max", "mean")]
    first = " ".join(f"{v:.5g}" for v in y.ravel()[:4].tolist()) + (" …" if y.size > 4 else "")
    return info.name, info.dtype.text, shape_text(y.shape), *figures, first


def _save(path: Path, results: Mapping[str, np.ndarray[Any, Any]]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED
    ) as archive:  # np.savez can't take every name: `file`, for one
        for name, y in results.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, y, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
