"""Inputs from `.npy` and `.npz` files."""

from __future__ import annotations

import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hbc.diagnostics import MissingSample, error

from .base import Array, Input, Sample, SampleError, listing

_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy; .npz: a zip archive, with and without entries
_SAVE = "save the arrays with numpy.save or numpy.savez"


def load_samples(path: Path, inputs: Sequence[Input]) -> list[Sample]:
    """The samples in a file: one array (`.npy`, for a model with one input), or a `.npz` with keys by input name.

    In a `.npz`, input NAME is under `NAME` or `in_NAME`, or, of sample i, under `in<i>__NAME`; other keys are ignored.
    Arrays that hold many samples along their first axis, of which the model takes one, are taken apart.
    Raises SampleError where the file cannot be read or an input is missing.
    """
    loaded = load_arrays(path)
    if not isinstance(loaded, dict):
        if len(inputs) != 1:
            hint = "save a .npz with one key per input"
            title = "one array can't fill several inputs"
            raise error(SampleError, title, where=str(path), why=listing(inputs), hint=hint, kind=MissingSample)
        return _apart({inputs[0].name: loaded}, inputs)
    numbered = [re.compile(rf"in(\d{{1,9}})__{re.escape(i.name)}") for i in inputs]
    numbers = sorted({int(m[1]) for key in loaded for pattern in numbered if (m := pattern.fullmatch(key))})
    found = [_sample(loaded, inputs, f"in{n}__", path) for n in numbers]
    return found or _apart(_sample(loaded, inputs, "", path), inputs)


def _apart(sample: Sample, inputs: Sequence[Input]) -> list[Sample]:
    """One sample, or as many as all its arrays have along a first axis that is 1 in the model."""
    counts = {
        len(sample[i.name]) if sample[i.name].shape[1:] == i.shape[1:] and i.shape[:1] == (1,) else 0 for i in inputs
    }
    if len(counts) != 1 or not (count := counts.pop()):
        return [sample]
    return [{name: a[k : k + 1] for name, a in sample.items()} for k in range(count)]


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """What a `.npy` or `.npz` file holds; never unpickles. Raises SampleError."""
    try:
        require_regular(path, _SAVE)
        with path.open("rb") as file:
            if not file.read(6).startswith(_MAGIC):  # else NumPy would take it for a pickle, and advise to trust it
                raise error(SampleError, "this is no .npy or .npz file", where=str(path), hint=_SAVE)
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {k: a for k in loaded.files if isinstance(a := loaded[k], np.ndarray)}
    except FileNotFoundError as err:
        raise error(SampleError, "there is no such file", where=str(path), hint="check the path") from err
    except OSError as err:
        raise error(SampleError, "the file can't be read", where=str(path), why=err.strerror or str(err)) from err
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, MemoryError, NotImplementedError) as err:
        why = " ".join(str(err).split())[:200] or type(err).__name__
        raise error(SampleError, "this is no sound .npy or .npz file", where=str(path), why=why, hint=_SAVE) from err


def require_regular(path: Path, hint: str) -> None:
    """SampleError for a pipe, which would block, and a device, which might never end; OSError where there's nothing."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise error(SampleError, "this is no regular file", where=str(path), hint=hint)


def _sample(arrays: Mapping[str, Array], inputs: Sequence[Input], prefix: str, path: Path) -> Sample:
    sample = {}
    for info in inputs:
        keys = [f"{prefix}{info.name}"] if prefix else [info.name, f"in_{info.name}"]
        key = next((k for k in keys if k in arrays), None)
        if key is None:
            why = f"no key {' or '.join(map(repr, keys))}; it has {', '.join(list(arrays)[:8]) or 'none'}"
            hint = f"save input NAME under NAME, in_NAME or in<i>__NAME; {listing(inputs)}"
            title = f"input {info.name!r} isn't in this file"
            raise error(SampleError, title, where=str(path), why=why, hint=hint, kind=MissingSample)
        sample[info.name] = arrays[key]
    return sample
