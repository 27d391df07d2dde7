"""What the user says of an input of a PyTorch model, whose file tells no sizes: `1x3x224x224`, `ids=1x16:i64`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hbc_runtime.types import DType

from .diagnostics import BadShape, OptionError, error, nearest

HINT = "write it as 1x3x224x224, NAME=1x3x224x224 or NAME=1x16:i64"
_SYNONYMS = {
    "float": "f32", "float32": "f32", "half": "f16", "float16": "f16", "double": "f64", "float64": "f64", "long": "i64",
    "int": "i64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "boolean": "bool", "bfloat16": "f32",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """Shape and dtype of one input; `name` is "" where it is meant by its place among the inputs."""

    shape: tuple[int, ...]
    dtype: DType = DType.F32
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.name}=" if self.name else ""
        typed = "" if self.dtype is DType.F32 else f":{self.dtype.text}"
        return f"{named}{'x'.join(map(str, self.shape))}{typed}"


def parse_example(text: str) -> Example:
    """`[NAME=]1x3x224x224[:DTYPE]` → Example; no sizes mean a scalar. OptionError says what is wrong with it."""
    name, _, rest = text.rpartition("=")
    sizes, colon, dtype = rest.partition(":")
    found = re.fullmatch(r"\s*(?:\d+\s*(?:[x×*,]\s*\d+\s*)*)?", sizes)
    if found is None:
        raise error(OptionError, f"in example {text!r}, {sizes!r} isn't a list of sizes", hint=HINT, kind=BadShape)
    shape = tuple(int(d) for d in re.findall(r"\d+", sizes))
    if not shape and not name and not colon:
        raise error(OptionError, "an example is empty", hint=HINT, kind=BadShape)
    return _checked(Example(shape, _dtype(dtype, text) if colon else DType.F32, name.strip()))


def examples_of(given: object) -> tuple[Example, ...]:
    """Examples from what an API takes: a shape, a text, an array or tensor, a list of these, or a dict by input name.

    Of arrays and tensors only shape and dtype are read. OptionError for anything else.
    """
    if isinstance(given, Mapping):
        return tuple(_one(value, str(name)) for name, value in given.items())
    if isinstance(given, (tuple, list)) and not given:
        return ()
    if isinstance(given, (str, Example)) or _is_shape(given) or hasattr(given, "shape"):
        return (_one(given),)
    if not isinstance(given, Iterable):
        raise _no_example(given)
    return tuple(_one(value) for value in given)


def dtype_named(word: str) -> DType:
    """The DType of PyTorch's or NumPy's name for it; OptionError where there is none."""
    return _dtype(word, word)


def _one(given: Any, name: str = "") -> Example:
    if isinstance(given, Example):
        return Example(given.shape, given.dtype, name or given.name)
    if isinstance(given, str):
        found = parse_example(given)
        return Example(found.shape, found.dtype, name or found.name)
    if _is_shape(given):
        return _checked(Example(tuple(int(d) for d in given), DType.F32, name))
    if isinstance(given, tuple) and len(given) == 2 and _is_shape(given[0]) and isinstance(given[1], str):
        return _checked(Example(tuple(int(d) for d in given[0]), _dtype(given[1], str(given)), name))
    if not hasattr(given, "shape"):
        raise _no_example(given)
    dtype = str(getattr(given, "dtype", "float32")).removeprefix("torch.")
    return _checked(Example(tuple(int(d) for d in given.shape), _dtype(dtype, dtype), name))


def _is_shape(given: object) -> bool:
    return isinstance(given, (tuple, list)) and all(isinstance(d, int) and not isinstance(d, bool) for d in given)


def _no_example(given: object) -> OptionError:
    hint = "give shapes: example=[(1, 3, 224, 224)], or {'ids': '1x16:i64'}"
    return error(OptionError, f"{given!r:.80} is no example input", hint=hint, kind=BadShape)


def _dtype(text: str, whole: str) -> DType:
    word = text.strip().lower()
    word = _SYNONYMS.get(word, word)
    known = [d.text for d in DType]
    if word not in known:
        hint = f"{nearest(word, known, limit=1)} One of {', '.join(known)}".strip()
        raise error(OptionError, f"in example {whole!r}, {text!r} is no dtype", hint=hint, kind=BadShape)
    return DType.parse(word)


def _checked(example: Example) -> Example:
    if any(d < 1 for d in example.shape):
        why = "every size must be 1 or more"
        raise error(OptionError, f"the example is {example}", why=why, hint=HINT, kind=BadShape)
    return example
