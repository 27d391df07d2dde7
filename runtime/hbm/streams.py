"""Command streams as the columns of schema.fbs, table Commands, and back. Each tile is stored once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..commands import Command, CommandStream, Engine, Place, Tile, View
from ..program import Tensor

Ints = Sequence[int]


@dataclass(frozen=True)
class Columns:
    """The vectors of a table Commands by their names."""

    engines: Ints
    instructions: Ints
    counts: Ints
    entries: Ints
    tensors: Ints
    addresses: Ints
    boxes: Ints
    views: Ints
    places: Ints


def to_columns(stream: CommandStream) -> Columns:
    """The stream's vectors."""
    tiles: dict[Tile, int] = {}
    counts: list[int] = []
    entries: list[int] = []
    for c in stream.commands:
        counts += [len(c.inputs), len(c.outputs), len(c.waits)]
        entries += [tiles.setdefault(t, len(tiles)) for t in (*c.inputs, *c.outputs)]
        entries += c.waits
    views: list[int] = []
    for v in stream.views:
        views += [v.tensor, v.of, -1] if v.start is None else [v.tensor, v.of, len(v.start), *v.start]
    return Columns(
        [int(c.engine) for c in stream.commands],
        [c.instruction for c in stream.commands],
        counts,
        entries,
        [t.tensor for t in tiles],
        [t.address for t in tiles],
        [n for t in tiles for n in (*t.start, *t.size)],
        views,
        [n for p in stream.places for n in (p.tensor, p.offset)],
    )


def from_table(table: Any, tensors: Sequence[Tensor]) -> CommandStream:
    """The stream that a verified table holds. ValueError where its columns do not fit one another, or the tensors."""
    tiles = list(_tiles(table, tensors))
    commands = tuple(_commands(table, tiles))
    views = tuple(_views(_list(table.ViewsAsNumpy()), len(tensors)))
    places = _list(table.PlacesAsNumpy())
    _require(len(places) % 2 == 0 and all(0 <= t < len(tensors) for t in places[::2]), "places that name no tensor")
    pairs = zip(places[::2], places[1::2], strict=True)
    return CommandStream(
        commands, table.OnChipBytes(), views, tuple(Place(t, o) for t, o in pairs), table.ScratchBytes()
    )


def _tiles(table: Any, tensors: Sequence[Tensor]) -> Iterator[Tile]:
    owners, addresses = _list(table.TensorsAsNumpy()), _list(table.AddressesAsNumpy())
    boxes = _list(table.BoxesAsNumpy())
    _require(len(owners) == len(addresses), f"{len(owners)} tiles and {len(addresses)} addresses")
    at = 0
    for owner, address in zip(owners, addresses, strict=True):
        _require(owner < len(tensors), f"a tile of tensor {owner} of {len(tensors)}")
        t = tensors[owner]
        rank = len(t.shape)
        start, size = tuple(boxes[at : at + rank]), tuple(boxes[at + rank : at + 2 * rank])
        at += 2 * rank
        _require(at <= len(boxes), "tiles without boxes")
        inside = all(lo >= 0 and 1 <= n <= d - lo for lo, n, d in zip(start, size, t.shape, strict=True))
        _require(inside, f"a tile {start} + {size} outside of tensor {owner}, {t.shape}")
        yield Tile(owner, start, size, address, int(np.prod(size, dtype=np.int64)) * t.dtype.size)
    _require(at == len(boxes), "boxes without tiles")


def _commands(table: Any, tiles: Sequence[Tile]) -> Iterator[Command]:
    engines, instructions = _list(table.EnginesAsNumpy()), _list(table.InstructionsAsNumpy())
    counts, entries = _list(table.CountsAsNumpy()), _list(table.EntriesAsNumpy())
    fits = len(engines) == len(instructions) and len(counts) == 3 * len(engines) and sum(counts) == len(entries)
    _require(fits, "its columns have different lengths")
    known = {int(e): e for e in Engine}
    at = 0
    for number, (engine, instruction) in enumerate(zip(engines, instructions, strict=True)):
        ins, outs, waits = counts[3 * number : 3 * number + 3]
        numbers = entries[at : at + ins + outs]
        waited = tuple(entries[at + ins + outs : at + ins + outs + waits])
        at += ins + outs + waits
        _require(engine in known, f"command {number} is of engine {engine}")
        _require(all(n < len(tiles) for n in numbers), f"command {number} names a tile that there is not")
        _require(all(w < number for w in waited), f"command {number} waits for {waited}")
        chosen = tuple(tiles[n] for n in numbers)
        yield Command(known[engine], instruction, chosen[:ins], chosen[ins:], waited)


def _views(numbers: list[int], count: int) -> Iterator[View]:
    at = 0
    while at < len(numbers):
        _require(at + 3 <= len(numbers), "a view that is cut short")
        tensor, of, axes = numbers[at : at + 3]
        start = None if axes == -1 else tuple(numbers[at + 3 : at + 3 + axes])
        at += 3 + max(axes, 0)
        fits = axes >= -1 and at <= len(numbers) and 0 <= tensor < count and 0 <= of < count
        _require(fits, f"a view of tensor {tensor} in tensor {of}, with {axes} indices")
        yield View(tensor, of, start)


def _list(array: npt.NDArray[Any] | int) -> list[int]:
    return [] if isinstance(array, int) else array.tolist()


def _require(ok: bool, what: str) -> None:  # noqa: FBT001
    if not ok:
        raise ValueError(what)
