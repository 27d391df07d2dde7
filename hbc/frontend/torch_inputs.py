"""What a PyTorch model is run on to learn its sizes: one tensor per input, of the shapes that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hbc.diagnostics import BadModelInput, FrontendError, OpenSizes, ShapeClash, nearest
from hbc.example import Example
from hbc.ir.types import DType

from .problem import listing, problem, quoted

SEED = 0  # of the example's values, which nothing may depend on


@dataclass(frozen=True)
class Argument:
    """One input of the model. `shape`: as far as the file says; None where it says nothing.

    `kind`: its type in TorchScript's words, where it is no tensor. `default`: what it is where no example is given.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    dtype: DType | None = None
    kind: str = "Tensor"
    has_default: bool = False
    default: Any = None


def assigned(file: str, arguments: Sequence[Argument], examples: Sequence[Example]) -> list[Example | None]:
    """The example of each argument, by name or by place; None for one that has a default and no example.

    FrontendError for an example too many, under no input's name or against what the file says, and for missing ones.
    """
    by_name = {e.name: e for e in examples if e.name}
    _require_known(file, arguments, by_name)
    rest = iter([e for e in examples if not e.name])
    found: list[Example | None] = []
    missing = []
    for a in arguments:
        example = by_name.get(a.name) or (None if _is_plain(a) and a.has_default else next(rest, None))
        example = example or _stated(a)
        if example is None and not a.has_default:
            missing.append(a)
        found.append(None if example is None else _fitting(file, a, example))
    if missing:
        raise _missing(file, arguments, missing)
    over = list(rest)
    if over:
        why = f"it takes {listing(quoted(a.name) for a in arguments) or 'none'}"
        raise problem(f"the model has no input for the example {over[0]}", where=file, why=why,
                      hint="give one --example per input, in this order, or by name", kind=ShapeClash)  # fmt: skip
    return found


def _is_plain(a: Argument) -> bool:
    return a.kind not in {"Tensor", "Optional[Tensor]"}


def _require_known(file: str, arguments: Sequence[Argument], by_name: Mapping[str, Example]) -> None:
    names = [a.name for a in arguments]
    unknown = [n for n in by_name if n not in names]
    if unknown:
        guess = nearest(unknown[0], names, limit=1)
        hint = f"{guess} Its inputs are {listing(map(quoted, names))}".strip()
        raise problem(f"there is no input {quoted(unknown[0])}", where=file, hint=hint, kind=ShapeClash)


def _stated(a: Argument) -> Example | None:
    if a.shape is None or a.dtype is None or any(d is None for d in a.shape):
        return None
    return Example(tuple(d for d in a.shape if d is not None), a.dtype, a.name)


def _fitting(file: str, a: Argument, example: Example) -> Example:
    if _is_plain(a):
        why, hint = f"it is {a.kind}, and a program takes tensors", _in_place_of(a)
        raise problem("an input is no tensor", where=f"{file}: input {quoted(a.name)}", why=why, hint=hint,
                      kind=BadModelInput)  # fmt: skip
    if a.dtype is not None and a.dtype is not example.dtype:
        why = f"the model takes {a.dtype.text}"
        hint = f"--example {a.name}={'x'.join(map(str, example.shape))}:{a.dtype.text}"
        raise problem(f"the example is {example.dtype.text}", where=f"{file}: input {quoted(a.name)}", why=why,
                      hint=hint, kind=ShapeClash)  # fmt: skip
    if a.shape is not None and not _may_be(a.shape, example.shape):
        stated = "x".join("?" if d is None else str(d) for d in a.shape)
        raise problem(f"the example is {example}", where=f"{file}: input {quoted(a.name)}",
                      why=f"the model was exported for {stated}", hint="export it again for these sizes",
                      kind=ShapeClash)  # fmt: skip
    return Example(example.shape, example.dtype, a.name)


def _in_place_of(a: Argument) -> str:
    """What to do about an argument that is no tensor."""
    if a.kind == "Dict[str, Tensor]":
        return f"give an example of each tensor by its key: --example {a.name}.KEY=1x3x224x224"
    if a.kind == "List[Tensor]":
        return f"give an example of each tensor: --example {a.name}.0=1x3x224x224"
    return "wrap the model in a module whose forward takes tensors, and trace that"


def _may_be(stated: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(stated) == len(shape) and all(a in {None, b} for a, b in zip(stated, shape, strict=True))


def _missing(file: str, arguments: Sequence[Argument], missing: Sequence[Argument]) -> FrontendError:
    plain = [a for a in missing if _is_plain(a)]
    if plain:
        why = "\n".join(f"{quoted(a.name)} is {a.kind}" for a in plain)
        hint = _in_place_of(plain[0])
        return problem("inputs of the model are no tensors", where=file, why=why, hint=hint, kind=BadModelInput)
    arguments = [a for a in arguments if not a.has_default]
    listed = listing(quoted(a.name) for a in arguments)
    hint = " ".join(f"--example {a.name}={_sizes(a)}" for a in missing)
    count = "its input" if len(arguments) == 1 else f"its {len(arguments)} inputs"
    why = f"the file doesn't say the sizes of {count}: {listed}"
    return problem("the model needs an example of its inputs", where=file, why=why, hint=hint, kind=OpenSizes)


def _sizes(a: Argument) -> str:
    if a.shape is None:
        return "1x3x224x224"
    typed = "" if a.dtype is None or a.dtype is DType.F32 else f":{a.dtype.text}"
    return "x".join("N" if d is None else str(d) for d in a.shape) + typed


def tensors_of(torch: Any, examples: Sequence[Example]) -> list[Any]:
    """A tensor per example: floats in [0, 1), integers 0 (an index that every table has), False."""
    random = np.random.default_rng(SEED)
    made = []
    for example in examples:
        dtype = example.dtype.numpy
        floats = random.random(example.shape, np.float32)
        array = floats.astype(dtype) if example.dtype.is_float else np.zeros(example.shape, dtype)
        made.append(torch.from_numpy(np.ascontiguousarray(array).reshape(example.shape)))
    return made
