"""Nested inputs and outputs: dicts, lists, tuples, NamedTuples and dataclasses of tensors, flattened with names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """The place of tensor number `index` in a structure."""

    index: int


def parts(obj: object) -> list[tuple[str | int, Any]] | None:
    """(key, child) of a container, None for anything else."""
    if isinstance(obj, Mapping):
        return list(obj.items())
    if dataclasses.is_dataclass(obj) and not isinstance(obj, (type, Leaf)):
        return [(f.name, getattr(obj, f.name)) for f in dataclasses.fields(obj)]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return [(name, getattr(obj, name)) for name in obj._fields]
    if isinstance(obj, (list, tuple)) and type(obj).__name__ != "Size":
        return list(enumerate(obj))
    return None


def walk(obj: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf with its path, in order."""
    children = parts(obj)
    if children is None:
        yield path, obj
        return
    for key, child in children:
        yield from walk(child, (*path, key))


def rebuild(obj: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed."""
    children = parts(obj)
    if children is None:
        return change(obj)
    new = [(key, rebuild(child, change)) for key, child in children]
    if isinstance(obj, Mapping):
        made = dict(new)
        return made if type(obj) is dict else type(obj)(made)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(obj):
        return dataclasses.replace(obj, **{str(k): v for k, v in new})  # type: ignore[type-var]
    values = [value for _, value in new]
    return type(obj)(*values) if hasattr(obj, "_fields") else type(obj)(values)


def take(obj: Any, path: Path) -> Any:
    """The leaf at `path`; KeyError, IndexError or AttributeError where there is none."""
    for key in path:
        obj = obj[key] if isinstance(obj, Mapping) or isinstance(key, int) else getattr(obj, key)
    return obj


def fill(template: Any, values: Sequence[Any]) -> Any:
    """`template` with every `Leaf` replaced by its value."""
    return rebuild(template, lambda leaf: values[leaf.index] if isinstance(leaf, Leaf) else leaf)


def name_of(path: Path, root: object, prefix: str) -> str:
    """A name for the tensor at `path`: its keys with dots, without the index of a list of one; `prefix` for positions.

    {"hm": t} → hm; [{"hm": t}] → hm; [a, b] → output.0, output.1; {"boxes": [a, b]} → boxes.0, boxes.1.
    """
    kept: list[str] = []
    obj: Any = root
    for key in path:
        children = parts(obj) or []
        if not (isinstance(key, int) and len(children) == 1):
            kept.append(str(key))
        obj = take(obj, (key,))
    if not kept:
        return prefix
    return ".".join([prefix, *kept] if kept[0].isdigit() else kept)
