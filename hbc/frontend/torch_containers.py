"""Inputs of TorchScript models that are dicts, lists or tuples of tensors: each tensor an input of its own.

A tuple says how many it holds. The keys of a dict are the names that examples are given by, with or without the
argument's own in front: `--example image=1x3x8x8` or `--example data.image=1x3x8x8`. A list holds as many tensors as
there are examples left. The inputs are called `data.image`, `pair.0`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hbc.example import Example

from .torch_inputs import Argument

_TUPLE = re.compile(r"^Tuple\[(Tensor(?:, Tensor)*)\]$")
_DICT, _LIST = "Dict[str, Tensor]", "List[Tensor]"


@dataclass(frozen=True)
class Opened:
    """Arguments with a tensor each, examples under their names, and how values become the model's own arguments."""

    arguments: list[Argument]
    examples: list[Example]
    closed: Callable[[Sequence[Any]], list[Any]]


def take_apart(arguments: Sequence[Argument], examples: Sequence[Example]) -> Opened:
    """Containers taken apart, as far as examples say what is in them; others stay as they are."""
    keys = {a.name: _keys(a, arguments, examples) for a in arguments}
    flat = [
        part
        for a in arguments
        for part in ([a] if not keys[a.name] else [Argument(f"{a.name}.{key}") for key in keys[a.name] or ()])
    ]

    def closed(values: Sequence[Any]) -> list[Any]:
        rest = iter(values)
        return [next(rest) if not keys[a.name] else _closed(a, keys[a.name], rest) for a in arguments]

    return Opened(flat, [_named(e, arguments, keys) for e in examples], closed)


def _keys(a: Argument, arguments: Sequence[Argument], examples: Sequence[Example]) -> list[str]:
    """What the tensors of a container are called in it; empty for any other argument, and where nothing says it."""
    if _TUPLE.match(a.kind):
        return [str(i) for i in range(_size(a))]
    own = [e.name.removeprefix(f"{a.name}.") for e in examples if e.name.startswith(f"{a.name}.")]
    if own or a.kind not in {_DICT, _LIST}:
        return own if a.kind in {_DICT, _LIST} else []
    alone = sum(b.kind == a.kind for b in arguments) == 1
    if a.kind == _DICT:
        known = {b.name for b in arguments}
        return [e.name for e in examples if e.name and e.name not in known and "." not in e.name] if alone else []
    others = sum(_size(b) for b in arguments if b is not a and not b.has_default)
    count = sum(not e.name for e in examples) - others
    return [str(i) for i in range(count)] if alone else []


def _size(a: Argument) -> int:
    """How many tensors an argument is."""
    found = _TUPLE.match(a.kind)
    return 1 if found is None else found[1].count("Tensor")


def _named(e: Example, arguments: Sequence[Argument], keys: dict[str, list[str]]) -> Example:
    """A key of the only dict, under the name of the input that it is."""
    holders = [a.name for a in arguments if a.kind == _DICT and e.name in keys[a.name]]
    return replace(e, name=f"{holders[0]}.{e.name}") if holders else e


def _closed(a: Argument, keys: Sequence[str], values: Iterator[Any]) -> Any:
    items = [next(values) for _ in keys]
    if a.kind == _DICT:
        return dict(zip(keys, items, strict=True))
    return items if a.kind == _LIST else tuple(items)
