"""What a user hands to `Session.run` → arrays as the model reads them, or an InputMismatch that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import numerics
from .errors import InputMismatch
from .isa import Rounding
from .program import TensorInfo
from .types import DYNAMIC, Layout, Quant

Array = npt.NDArray[Any]


def bind(infos: Sequence[TensorInfo], values: Mapping[str, npt.ArrayLike], rounding: Rounding) -> list[Array]:
    """One dense, aligned array per input, in the model's order; the caller's own array where that already fits.

    Raises InputMismatch for a name that is missing or unknown, and for a wrong shape or dtype.
    """
    _check_mapping(infos, values)
    _check_names(infos, values)
    return [_bind_one(info, values[info.name], rounding, 1) for info in infos]


def bind_batches(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], values: Mapping[str, npt.ArrayLike], rounding: Rounding
) -> tuple[list[Array], int]:
    """As `bind`, where values may hold several of the model's batches; also how many.

    Raises InputMismatch also where they hold different numbers, or several and the model cannot run on several.
    """
    _check_mapping(inputs, values)
    _check_names(inputs, values)
    count = _count_batches(inputs, outputs, values)
    return [_bind_one(info, values[info.name], rounding, count) for info in inputs], count


def _count_batches(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], values: Mapping[str, npt.ArrayLike]
) -> int:
    """How many batches there are: 1 also where values don't fit, which `_bind_one` will say."""
    counts = {i.name: _count_of(i.shape, values[i.name]) for i in inputs}
    found = set(counts.values())
    if found <= {1} or None in found:
        return 1
    if len(found) > 1:
        each = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        msg = f"the inputs hold different numbers of batches: {each}\n{_expected(inputs)}\n  try: as many in each"
        raise InputMismatch(msg)
    count = next(iter(counts.values())) or 1
    reason = _single(inputs, outputs)
    if reason:
        msg = f"the inputs hold {count} batches, and this model takes one at a time: {reason}"
        raise InputMismatch(f"{msg}\n{_expected(inputs)}\n  try: run the model once per batch")
    return count


def batched(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape of `count` batches, each of `shape`, one behind the other."""
    return shape if count == 1 else (count * shape[0], *shape[1:])


def _count_of(want: tuple[int, ...], value: npt.ArrayLike) -> int | None:
    """How many batches of shape `want` there are in `value`; None where they are no whole number."""
    try:
        got = value.shape if isinstance(value, np.ndarray) else np.shape(value)
    except ValueError:  # no array: `bind` says so
        return None
    if got == want:
        return 1
    if len(got) != len(want) or not want or got[1:] != want[1:] or want[0] < 1:
        return None
    count, rest = divmod(got[0], want[0])
    return count if rest == 0 and count > 0 else None


def _single(infos: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> str:
    """Why a model takes one batch at a time; empty where it takes several."""
    for info in (*infos, *outputs):
        if DYNAMIC in info.shape:
            return f"the size of output {info.name!r} depends on the data"
        if not info.shape or info.shape[0] != infos[0].shape[0]:
            one, other = infos[0], info
            return f"{one.name!r} {one.shape} and {other.name!r} {other.shape} have no first axis of one size"
        if info.axis == 0:
            return f"the scales of {info.name!r} run along its first axis"
    return ""


def describe(info: TensorInfo) -> str:
    """One line on an input: `'image': float32 (1, 3, 224, 224), NCHW`."""
    layout = "" if info.layout is Layout.ANY else f", {info.layout.name}"
    quantised = "" if info.quant is None else f", or float to be quantised by {_scales(info.quant)}"
    return f"{info.name!r}: {info.dtype.numpy} {info.shape}{layout}{quantised}"


def _scales(quant: Quant) -> str:
    if quant.axis is not None:
        return f"{len(quant.scale)} scales along axis {quant.axis}"
    return f"scale {quant.scale[0]:.6g}, zero point {quant.zero_point[0]}"


def _expected(infos: Sequence[TensorInfo]) -> str:
    return "\n".join(["the model takes", *(f"  {describe(i)}" for i in infos)]) if infos else "the model takes no input"


def _check_mapping(infos: Sequence[TensorInfo], values: object) -> None:
    if not isinstance(values, Mapping):
        msg = f"run takes a dict of name to array, not {type(values).__name__}\n{_expected(infos)}"
        raise InputMismatch(msg)


def _check_names(infos: Sequence[TensorInfo], values: Mapping[str, npt.ArrayLike]) -> None:
    if len(values) == len(infos) and all(i.name in values for i in infos):
        return
    known = [i.name for i in infos]
    missing = [n for n in known if n not in values]
    unknown = [n for n in values if n not in known]
    problems = [f"input {n!r} is missing" for n in missing]
    for name in unknown:
        near = difflib.get_close_matches(str(name), missing or known, n=1)
        problems.append(f"there is no input {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if problems:
        msg = "\n".join([*problems, _expected(infos)])
        raise InputMismatch(msg)


def _bind_one(info: TensorInfo, value: npt.ArrayLike, rounding: Rounding, count: int) -> Array:
    array = _as_array(info, value)
    shape = batched(info.shape, count)
    if array.shape != shape:
        raise _mismatch(info, f"it has shape {array.shape}", _shape_hint(info, array.shape))
    want = info.dtype.numpy
    if array.dtype == want and array.flags.c_contiguous and array.flags.aligned:
        return array
    if array.dtype.newbyteorder("=") == want:
        dense = np.ascontiguousarray(array, want).reshape(shape)  # `ascontiguousarray` makes scalars 1-d
        return dense if dense.flags.aligned else dense.copy()
    if array.dtype.kind != "f":
        raise _mismatch(info, f"it has dtype {array.dtype}", _dtype_hint(info, array))
    if info.dtype.is_float:
        with np.errstate(over="ignore"):  # beyond the narrower type's range a float becomes ±inf, as in any cast
            return array.astype(want, order="C")
    if info.quant is None:
        raise _mismatch(info, f"it has dtype {array.dtype}", "the model has no scale to quantise by: pass integers")
    return quantise(array, info, info.quant, rounding)


def quantise(array: Array, info: TensorInfo, quant: Quant, rounding: Rounding) -> Array:
    """A float array as the integers that the input `info` stands for (NUMERICS 2), dense."""
    shape = [1] * array.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    scale = np.asarray(quant.scale, np.float32).reshape(shape)
    zero_point = np.asarray(quant.zero_point, np.int64).reshape(shape)
    with np.errstate(over="ignore"):  # a float64 beyond float32 is ±inf, and saturates
        x = array.astype(np.float32)
    q = numerics.quantize(x, scale, zero_point, rounding, *info.dtype.limits)
    return q.astype(info.dtype.numpy, order="C")


def _as_array(info: TensorInfo, value: npt.ArrayLike) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as err:
        raise _mismatch(info, f"it is no array: {err}", "pass a numpy array") from err
    if array.dtype.kind not in "biuf":
        raise _mismatch(info, f"it has dtype {array.dtype}", "pass an array of numbers")
    return array


def _mismatch(info: TensorInfo, got: str, hint: str) -> InputMismatch:
    text = f"input {info.name!r} does not fit: {got}\nthe model takes {describe(info)}"
    return InputMismatch(f"{text}\n  try: {hint}" if hint else text)


def _shape_hint(info: TensorInfo, got: tuple[int, ...]) -> str:
    want = info.shape
    orders = {Layout.NCHW: ("NHWC", (0, 3, 1, 2)), Layout.NHWC: ("NCHW", (0, 2, 3, 1))}
    if len(got) == 4 and info.layout in orders:
        other, perm = orders[info.layout]
        if tuple(got[p] for p in perm) == want:
            return f"this looks like {other}; pass x.transpose{perm}"
    if got == want[1:] and want[0] == 1:
        return "pass x[None]: the batch axis is missing"
    if got[1:] == want[1:] and want and want[0] >= 1:
        if got[0] > 0 and got[0] % want[0] == 0:
            return "pass one batch at a time"
        return f"the batch is {want[0]}: pass a multiple of it, or compile the model with another --shape"
    return f"pass an array of shape {want}"


def _dtype_hint(info: TensorInfo, array: Array) -> str:
    if info.dtype.is_float:
        return "scale the integers as the model was trained to see them, then pass x.astype(np.float32)"
    lo, hi = info.dtype.limits if info.dtype.is_integer else (0, 1)
    inside = array.size == 0 or (lo <= int(array.min()) and int(array.max()) <= hi)
    if inside:
        return f"every value fits: pass x.astype(np.{info.dtype.numpy})"
    return f"values must lie in {lo} to {hi}"
