"""Inputs to run a model on: from `.npy` and `.npz` files, or at random within the ranges that the model quantises."""

from __future__ import annotations

import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import HbcError, error
from hbc_runtime import isa
from hbc_runtime.program import BpuSegment, Model, TensorInfo
from hbc_runtime.types import DType, Quant

Array = npt.NDArray[Any]
Sample = dict[str, Array]

_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy; .npz: a zip archive, with and without entries
_SAVE = "save the arrays with numpy.save or numpy.savez"


class SampleError(HbcError):
    """A file of inputs cannot be read, or holds no inputs of the model."""


def load_samples(path: Path, inputs: Sequence[TensorInfo]) -> list[Sample]:
    """The samples in a file: one array (`.npy`, for a model with one input), or a `.npz` with keys by input name.

    In a `.npz`, input NAME is under `NAME` or `in_NAME`, or, of sample i, under `in<i>__NAME`; other keys are ignored.
    Raises SampleError where the file cannot be read or an input is missing.
    """
    loaded = load_arrays(path)
    if not isinstance(loaded, dict):
        if len(inputs) != 1:
            hint = "save a .npz with one key per input"
            raise error(
                SampleError, "one array can't fill several inputs", where=str(path), why=_listing(inputs), hint=hint
            )
        return [{inputs[0].name: loaded}]
    numbered = [re.compile(rf"in(\d{{1,9}})__{re.escape(i.name)}") for i in inputs]
    numbers = sorted({int(m[1]) for key in loaded for pattern in numbered if (m := pattern.fullmatch(key))})
    found = [_sample(loaded, inputs, f"in{n}__", path) for n in numbers]
    return found or [_sample(loaded, inputs, "", path)]


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """What a `.npy` or `.npz` file holds; never unpickles. Raises SampleError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block, a device might never end
            raise error(SampleError, "this is no regular file", where=str(path), hint=_SAVE)
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


def random_samples(model: Model, count: int, seed: int) -> list[Sample]:
    """`count` samples; the same seed gives the same ones.

    A float input that is quantised first is drawn evenly from the range that its integers cover, another one from the
    standard normal distribution; an integer input from its dtype's range (0 or 1 where that is an index's: i32, i64).
    """
    rng = np.random.default_rng(seed)
    ranges = {info.name: _range(model, info) for info in model.inputs}
    return [{i.name: _draw(rng, i, ranges[i.name]) for i in model.inputs} for _ in range(count)]


def _draw(rng: np.random.Generator, info: TensorInfo, bounds: tuple[float, float] | None) -> Array:
    dtype = info.dtype.numpy
    if info.dtype.is_float:
        x = rng.standard_normal(info.shape) if bounds is None else rng.uniform(*bounds, info.shape)
        return np.asarray(x, dtype)
    if info.dtype is DType.BOOL or info.dtype.size > 2:
        return rng.integers(0, 2, info.shape).astype(dtype)
    low, high = info.dtype.limits
    return rng.integers(low, high, info.shape, endpoint=True).astype(dtype)


def _range(model: Model, info: TensorInfo) -> tuple[float, float] | None:
    """The reals that the input's integers stand for, where it is quantised (possibly after it is moved)."""
    reached = {info.tensor}
    for segment in model.segments:
        for op in segment.instructions if isinstance(segment, BpuSegment) else ():
            if op.inputs[0] not in reached:
                continue
            if isinstance(op, isa.Quantize):
                out = model.tensors[op.outputs[0]]
                return None if out.quant is None else _covered(out.quant, out.dtype)
            if isinstance(op, isa.Transpose | isa.Reshape):
                reached.update(op.outputs)
    return None


def _covered(quant: Quant, dtype: DType) -> tuple[float, float]:
    low, high = dtype.limits
    pairs = list(zip(quant.scale, quant.zero_point, strict=True))
    return min(s * (low - z) for s, z in pairs), max(s * (high - z) for s, z in pairs)


def _sample(arrays: Mapping[str, Array], inputs: Sequence[TensorInfo], prefix: str, path: Path) -> Sample:
    sample = {}
    for info in inputs:
        keys = [f"{prefix}{info.name}"] if prefix else [info.name, f"in_{info.name}"]
        key = next((k for k in keys if k in arrays), None)
        if key is None:
            why = f"no key {' or '.join(map(repr, keys))}; it has {', '.join(list(arrays)[:8]) or 'none'}"
            hint = f"save input NAME under NAME, in_NAME or in<i>__NAME; {_listing(inputs)}"
            raise error(SampleError, f"input {info.name!r} isn't in this file", where=str(path), why=why, hint=hint)
        sample[info.name] = arrays[key]
    return sample


def _listing(inputs: Sequence[TensorInfo]) -> str:
    return f"the model takes {', '.join(f'{i.name!r} {i.dtype.text}{list(i.shape)}' for i in inputs)}"
