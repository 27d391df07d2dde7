"""Inputs from anything that `--input` may name: arrays, images, or a folder of either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hbc.diagnostics import BadRunInput, MissingSample, OptionError, error, nearest

from .arrays import load_arrays, load_samples
from .base import Array, Input, Sample, SampleError, listing
from .images import SUFFIXES as IMAGES
from .images import load_image

if TYPE_CHECKING:
    from .spec import Preprocess

ARRAYS = {".npy", ".npz"}


def read_samples(path: Path, inputs: Sequence[Input], spec: Preprocess | None = None) -> list[Sample]:
    """The samples in a `.npy`, `.npz`, `.png` or `.jpg` file, or in those of a folder, in the order of their names.

    Raises SampleError where a file cannot be read, an input is missing, or a folder holds none of these.
    """
    if not path.is_dir():
        return _file(path, inputs, spec)
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in ARRAYS | IMAGES)
    if not files:
        why = f"samples are {', '.join(sorted(ARRAYS | IMAGES))}"
        raise error(SampleError, "there is no sample in this folder", where=str(path), why=why)
    return [sample for file in files for sample in _file(file, inputs, spec)]


def read_given(texts: Sequence[str], inputs: Sequence[Input], spec: Preprocess | None = None) -> list[Sample]:
    """The samples that `--input`s describe: FILE or folder, each with its samples; NAME=FILE, a value in all of them.

    Named values alone are one sample, which may lack inputs. Raises SampleError, and OptionError for an unknown name.
    """
    named: Sample = {}
    samples: list[Sample] = []
    for text in texts:
        info, path = _split(text, inputs)
        if info is not None:
            named[info.name] = read_input(path, info, spec)
        else:
            samples += read_samples(path, inputs, spec)
    return [{**s, **named} for s in samples] or ([named] if named else [])


def _split(text: str, inputs: Sequence[Input]) -> tuple[Input | None, Path]:
    """NAME=FILE (a name of the model's comes first, as it may itself hold `=`), or a FILE."""
    info = next((i for i in inputs if text.startswith(f"{i.name}=")), None)
    if info is not None:
        return info, Path(text[len(info.name) + 1 :])
    name, equals, _ = text.partition("=")
    if equals and not Path(text).exists():
        known = [i.name for i in inputs]
        hint = f"{nearest(name, known)} The model takes {', '.join(map(repr, known))}".strip()
        raise error(OptionError, f"there is no input {name!r}", hint=hint, kind=BadRunInput)
    return None, Path(text)


def read_input(path: Path, info: Input, spec: Preprocess | None = None) -> Array:
    """One input's value: an image, a `.npy`, or a `.npz` that has it under its name or holds nothing else."""
    if path.suffix.lower() in IMAGES:
        return load_image(path, info, spec)
    loaded = load_arrays(path)
    if not isinstance(loaded, dict):
        return loaded
    if info.name in loaded:
        return loaded[info.name]
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    why = f"it has {', '.join(map(repr, loaded)) or 'none'}"
    title = f"there is no key {info.name!r} in this file"
    raise error(SampleError, title, where=str(path), why=why, kind=MissingSample)


def _file(path: Path, inputs: Sequence[Input], spec: Preprocess | None) -> list[Sample]:
    if path.suffix.lower() not in IMAGES:
        return load_samples(path, inputs)
    if len(inputs) != 1:
        hint = "save a .npz with one key per input"
        title = "one image can't fill several inputs"
        raise error(SampleError, title, where=str(path), why=listing(inputs), hint=hint, kind=MissingSample)
    return [{inputs[0].name: load_image(path, inputs[0], spec)}]
