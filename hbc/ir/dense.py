"""Constants in `.hbir` text: `dense<[…]>`, `dense<splat v>`, `dense<seed n>`, `dense<hex "00ff">`, `@name`.

All forms hold every bit; `dense<elided>` is for reading only. `seed` stands for numbers that anyone can make again: the
splitmix64 sequence (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

import numpy as np

from .types import DType, TensorType

INLINE_ELEMENTS = 16
PRINTED_SEEDS = 256  # a constant made by one of these seeds is printed as `seed n` again
MAX_MADE_BYTES = 1 << 28  # of all splat and seed constants of a text: a few letters must not ask for all memory
_PREFIX_BYTES = 16  # what a constant is recognised by; 128 bits that no other constant has by chance
_CHUNK = 1 << 20
_GOLDEN, _MIX1, _MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_HEX = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True)
class Dense:
    """A constant as written: `form` is list, splat, seed, hex, name or elided, and `items` the words inside."""

    form: str
    items: tuple[str, ...] = ()


# ---- seeded numbers


def seeded(seed: int, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """The tensor that `dense<seed n>` stands for: any integer of the dtype, floats uniform in [-1, 1), fair bools."""
    count = math.prod(shape)
    out = np.empty(count, dtype.numpy)
    for begin in range(0, count, _CHUNK):  # in pieces: the 64-bit numbers would take eight times an i8 tensor's memory
        end = min(begin + _CHUNK, count)
        out[begin:end] = _numbers(_random_bits(seed, begin, end), dtype)
    return out.reshape(shape)


def _random_bits(seed: int, begin: int, end: int) -> np.ndarray:
    counter = np.arange(begin + 1, end + 1, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
    with np.errstate(over="ignore"):
        state: np.ndarray = counter * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX1
        state = (state ^ (state >> np.uint64(27))) * _MIX2
    state ^= state >> np.uint64(31)
    return state


def _numbers(bits: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.BOOL:
        return np.asarray(bits >> np.uint64(63), np.bool_)
    if dtype.is_integer:
        return np.asarray(bits >> np.uint64(64 - 8 * dtype.size), f"u{dtype.size}").view(dtype.numpy)
    mantissa = {DType.F16: 10, DType.F32: 23, DType.F64: 52}[dtype]  # one bit less than the format holds: exact
    steps = (bits >> np.uint64(63 - mantissa)).astype(np.float64)
    return np.asarray(np.ldexp(steps, -mantissa) - 1, dtype.numpy)


@functools.cache
def _seeds_by_prefix(dtype: DType) -> dict[bytes, int]:
    count = -(-_PREFIX_BYTES // dtype.size)
    return {seeded(s, (count,), dtype).tobytes()[:_PREFIX_BYTES]: s for s in range(PRINTED_SEEDS)}


def _seed_of(value: np.ndarray, dtype: DType) -> int | None:
    if value.nbytes < _PREFIX_BYTES:
        return None
    head = np.ascontiguousarray(value.reshape(-1)[: -(-_PREFIX_BYTES // dtype.size)]).tobytes()[:_PREFIX_BYTES]
    seed = _seeds_by_prefix(dtype).get(head)
    if seed is None or not _same_bits(value, seeded(seed, value.shape, dtype)):
        return None
    return seed


# ---- arrays to text


def dense_of(value: np.ndarray) -> Dense:
    """The shortest exact form of `value`."""
    dtype = DType.of(value.dtype)
    seed = _seed_of(value, dtype)
    if seed is not None:
        return Dense("seed", (str(seed),))
    flat = value.reshape(-1)
    if _has_odd_nan(flat, dtype):
        return Dense("hex", (_hex(flat),))
    if flat.size > 1 and _same_bits(flat, np.broadcast_to(flat[:1], flat.shape)):
        return Dense("splat", (element_text(flat[0], dtype),))
    if flat.size <= INLINE_ELEMENTS:
        return Dense("list", tuple(element_text(v, dtype) for v in flat))
    return Dense("hex", (_hex(flat),))


def is_large(value: np.ndarray) -> bool:
    """True where `value` has no short form, so that it belongs in the `.npz` of a file."""
    return dense_of(value).form == "hex" and value.size > INLINE_ELEMENTS


def element_text(v: object, dtype: DType) -> str:
    """One element, exactly: a decimal integer, `true`, or the shortest decimal that reads back as the same float."""
    if dtype is DType.BOOL:
        return "true" if v else "false"
    if dtype.is_integer:
        return str(int(v))  # type: ignore[call-overload] # an element of an integer array
    return float_text(float(v), dtype)  # type: ignore[arg-type] # an element of a float array


def float_text(x: float, dtype: DType = DType.F64) -> str:
    """The shortest decimal that reads back as `x`, which is a value of `dtype`, when rounded to that dtype."""
    if dtype is DType.F64 or not math.isfinite(x):
        return repr(x)
    short = repr(float(str(dtype.numpy.type(x))))
    return short if _rounded(float(short), dtype) == x else repr(x)


def quant_float_text(x: float) -> str:
    """A scale, which is a float32: its shortest decimal; `…f64` where it is none, so that nothing is lost."""
    if math.isnan(x):
        return "nan"
    return float_text(x, DType.F32) if _rounded(x, DType.F32) == x else f"{x!r}f64"


def read_quant_float(text: str) -> float:
    """The scale that the text stands for; ValueError where it is no number."""
    return float(text[:-3]) if text.endswith("f64") else _rounded(float(text), DType.F32)


def _rounded(x: float, dtype: DType) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(x, np.float64).astype(dtype.numpy))


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.array_equal(np.ascontiguousarray(a).view(unsigned), np.ascontiguousarray(b).view(unsigned)))


def _has_odd_nan(flat: np.ndarray, dtype: DType) -> bool:
    """True where a NaN has a payload or sign that the word `nan` would lose."""
    if not dtype.is_float or not np.isnan(flat).any():
        return False
    nans = np.ascontiguousarray(flat[np.isnan(flat)])
    return not _same_bits(nans, np.full(nans.shape, np.nan, dtype.numpy))


def _hex(flat: np.ndarray) -> str:
    return np.ascontiguousarray(flat, flat.dtype.newbyteorder("<")).tobytes().hex()


# ---- text to arrays


def array_of(dense: Dense, type_: TensorType) -> np.ndarray:
    """The array of `type_`'s shape and dtype that `dense` (not a name) describes; ValueError where there is none."""
    items = dense.items
    if dense.form == "elided":
        msg = "this constant was left out when the text was printed; print it with its constants"
        raise ValueError(msg)
    if dense.form == "hex":
        return _from_hex(items[0], type_)
    if dense.form == "list":
        if len(items) != type_.elements:
            msg = f"{len(items)} elements for a type of {type_.elements}"
            raise ValueError(msg)
        return _elements(items, type_.dtype).reshape(type_.shape)
    check_made_bytes(type_.nbytes)
    if dense.form == "seed":
        if not (items[0].isdecimal() and int(items[0]) < 1 << 32):
            msg = f"seed {items[0]}; give an integer from 0 to 4294967295"
            raise ValueError(msg)
        return seeded(int(items[0]), type_.shape, type_.dtype)
    return np.full(type_.shape, _elements(items, type_.dtype)[0], type_.dtype.numpy)


def check_made_bytes(total: int) -> None:
    """ValueError where splat and seed constants would take more memory than a text may ask for."""
    if total > MAX_MADE_BYTES:
        msg = f"splat and seed constants of {total} bytes; a text makes {MAX_MADE_BYTES} at most"
        raise ValueError(msg)


def _elements(items: tuple[str, ...], dtype: DType) -> np.ndarray:
    return np.asarray([_element(text, dtype) for text in items], dtype.numpy)


def _element(text: str, dtype: DType) -> object:
    if dtype is DType.BOOL:
        if text not in {"true", "false"}:
            msg = f"{text} is not true or false"
            raise ValueError(msg)
        return text == "true"
    try:
        number = float(text) if dtype.is_float else int(text)
    except ValueError:
        msg = f"{text} is not {'a number' if dtype.is_float else 'an integer'}, but the type is {dtype.text}"
        raise ValueError(msg) from None
    if dtype.is_float:
        return _rounded(number, dtype)
    lo, hi = dtype.limits
    if not lo <= number <= hi:
        msg = f"{text} is outside {dtype.text}, {lo} to {hi}"
        raise ValueError(msg)
    return number


def _from_hex(text: str, type_: TensorType) -> np.ndarray:
    if not _HEX.fullmatch(text) or len(text) != 2 * type_.nbytes:
        msg = f"hex needs {2 * type_.nbytes} digits 0-9a-f for this type, found {len(text)} characters"
        raise ValueError(msg)
    raw = np.frombuffer(bytes.fromhex(text), np.uint8)
    if type_.dtype is DType.BOOL and raw.size and raw.max() > 1:
        msg = "a bool is 00 or 01"
        raise ValueError(msg)
    little: np.ndarray = raw.view(type_.dtype.numpy.newbyteorder("<"))
    return np.asarray(little, type_.dtype.numpy).reshape(type_.shape)
