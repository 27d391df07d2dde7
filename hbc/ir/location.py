"""Where an op came from. Every op has a location; a rewrite fuses the locations of what it replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FileLoc:
    """The model file as a whole (graph inputs, things without a node)."""

    file: str


@dataclass(frozen=True)
class NodeLoc:
    """One node of the user's model, by its own name (or `OpType:output` where it has none)."""

    node: str
    op_type: str = ""
    file: str = ""


@dataclass(frozen=True)
class FusedLoc:
    """Several places that became one op, in the order they were met."""

    parts: tuple[NodeLoc | FileLoc, ...]


Loc = NodeLoc | FileLoc | FusedLoc


def fuse(locs: Iterable[Loc]) -> Loc:
    """One location for all of `locs`: flattened, without repeats; file locations give way to node locations."""
    parts: dict[NodeLoc | FileLoc, None] = {}
    for loc in locs:
        parts.update(dict.fromkeys(loc.parts if isinstance(loc, FusedLoc) else (loc,)))
    nodes: tuple[NodeLoc | FileLoc, ...] = tuple(p for p in parts if isinstance(p, NodeLoc))
    kept = nodes or tuple(parts)
    return kept[0] if len(kept) == 1 else FusedLoc(kept)


def source_nodes(loc: Loc) -> tuple[NodeLoc, ...]:
    """The user's nodes in `loc`, in order."""
    parts = loc.parts if isinstance(loc, FusedLoc) else (loc,)
    return tuple(p for p in parts if isinstance(p, NodeLoc))


def node_names(loc: Loc) -> tuple[str, ...]:
    """The names of the user's nodes in `loc`, in order."""
    parts = loc.parts if isinstance(loc, FusedLoc) else (loc,)
    return tuple(p.node if isinstance(p, NodeLoc) else p.file for p in parts)
