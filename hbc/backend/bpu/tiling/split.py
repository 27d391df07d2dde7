"""Into which boxes the result of each instruction is cut, and in which order they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hbc.backend.bpu.march import MarchSpec
from hbc.diagnostics import EmitError, TileTooLarge, error
from hbc.words import human_bytes, shape_text
from hbc_runtime import isa
from hbc_runtime.program import Model, Storage

from .boxes import Box, blocks, sizes, volume, whole
from .regions import Regions, regions

Weighted = isa.Conv2d | isa.ConvTranspose2d
Fits = Callable[[Box], bool]
FRACTIONS = (8, 4, 3, 2)  # of on-chip memory, for what moves with one tile: the first that saves as much as any will do
PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of the output channels, for one tile of weights
WORTH = 0.95  # a coarser cut must save this much of the traffic
ROWS_FIRST, CHANNELS_FIRST = (0, 1, 2, 3), (0, 3, 1, 2)  # of NHWC: axes from the slowest to the fastest


@dataclass(frozen=True)
class Budget:
    """Bytes of on-chip memory, the multiple that a tile's size is rounded up to, and how many tiles of a kind it holds.

    `buffers` is 1 or, for double buffering, 2; `weights` is the most that the weights of one step should take; `keeps`
    says that tensors stay on chip from layer to layer.
    """

    on_chip: int
    align: int
    buffers: int
    weights: int
    keeps: bool = False

    def rounded(self, nbytes: int) -> int:
        """Bytes that a tile takes up."""
        return -(-nbytes // self.align) * self.align


@dataclass(frozen=True)
class Footprint:
    """Bytes of the tiles of one step: operands and result, which move on with it, and constants."""

    moving: int
    constant: int


@dataclass(frozen=True)
class Cut:
    """The block of a result's boxes, and the axes from the slowest to the fastest."""

    block: tuple[int, ...]
    order: tuple[int, ...]

    def boxes(self, shape: Sequence[int]) -> list[Box]:
        """All boxes, in order."""
        return blocks(shape, self.block, self.order)


def nbytes(model: Model, tensor: int, box: Box) -> int:
    """Bytes of a dense tile."""
    return volume(box) * model.tensors[tensor].dtype.size


def footprint(model: Model, op: isa.Instruction, box: Box, budget: Budget) -> Footprint:
    """What the tiles of one step take; a tensor that is read as two operands counts twice."""
    return footprint_of(model, op, box, regions(model, op, box), budget)


def footprint_of(model: Model, op: isa.Instruction, box: Box, read: Regions, budget: Budget) -> Footprint:
    """The same where the operands' regions are known."""
    moving, constant = budget.rounded(nbytes(model, op.outputs[0], box)), 0
    for tensor, part in zip(op.inputs, read, strict=True):
        if part is None:
            continue
        size = budget.rounded(nbytes(model, tensor, part))
        if model.tensors[tensor].storage is Storage.CONSTANT:
            constant += size
        else:
            moving += size
    return Footprint(moving, constant)


def fits_alone(model: Model, op: isa.Instruction, box: Box, budget: Budget) -> bool:
    """True where the tiles of one step fit on-chip memory with nothing beside them."""
    need = footprint(model, op, box, budget)
    return need.moving + need.constant <= budget.on_chip


def cut(
    model: Model, op: isa.Instruction, budget: Budget, march: MarchSpec, fractions: Sequence[int] = FRACTIONS
) -> Cut:
    """How to cut the result of `op` so that its steps fit the budget. EmitError where no cut is fine enough."""
    best: tuple[float, Cut] | None = None
    for fraction in fractions if budget.buffers > 1 else (1,):
        for found in _candidates(model, op, budget, budget.on_chip // fraction, march):
            cost = _traffic(model, op, found, budget)
            if best is None or cost < WORTH * best[0]:
                best = cost, found
    return best[1] if best is not None else _finest(model, op, budget, march)


def _candidates(model: Model, op: isa.Instruction, budget: Budget, moving: int, march: MarchSpec) -> list[Cut]:
    """Cuts whose steps take `moving` bytes at most besides constants, and fit as often as there are buffers."""
    shape = model.tensors[op.outputs[0]].shape

    def fits(box: Box) -> bool:
        need = footprint(model, op, box, budget)
        times = budget.buffers if sizes(box) != shape else 1
        constants = budget.buffers if shape and sizes(box)[-1] != shape[-1] else 1
        return need.moving <= moving and times * need.moving + constants * need.constant <= budget.on_chip

    if not isinstance(op, Weighted):
        found = largest(shape, fits, shape)
        return [found] if fits(middle(shape, found.block)) else []
    cuts = []
    blocks = channel_blocks(model, op, march)
    size = model.tensors[op.inputs[1]].nbytes
    light = [c for c in blocks if size * c <= budget.weights * shape[3]]
    for channels in light or blocks[-1:]:
        found = largest(shape, fits, (*shape[:3], channels))
        if fits(middle(shape, found.block)):
            cuts += [Cut(found.block, order) for order in (ROWS_FIRST, CHANNELS_FIRST)]
    return cuts


def _finest(model: Model, op: isa.Instruction, budget: Budget, march: MarchSpec) -> Cut:
    """Where two tiles of a kind never fit: the largest block that fits alone."""
    shape = model.tensors[op.outputs[0]].shape
    limit = (*shape[:3], channel_blocks(model, op, march)[-1]) if isinstance(op, Weighted) else shape
    found = largest(shape, lambda box: fits_alone(model, op, box, budget), limit)
    if not fits_alone(model, op, middle(shape, found.block), budget):
        raise too_large(model, op, middle(shape, found.block), budget, march)
    return found


def too_large(model: Model, op: isa.Instruction, box: Box, budget: Budget, march: MarchSpec) -> EmitError:
    """The error for an instruction whose smallest tile `box` needs more than there is."""
    read = regions(model, op, box)
    rows = [
        f"{human_bytes(nbytes(model, tensor, part))} of {model.tensors[tensor].name or 'a parameter'!r} "
        f"({shape_text(sizes(part))} of {shape_text(model.tensors[tensor].shape)})"
        for tensor, part in zip(op.inputs, read, strict=True)
        if part is not None
    ]
    need = footprint_of(model, op, box, read, budget)
    why = [
        f"the smallest tile of its result, {shape_text(sizes(box))}, takes {human_bytes(need.moving + need.constant)}",
        f"on chip, {march.name} has {human_bytes(budget.on_chip)}. It reads",
        *rows,
    ]
    return error(
        EmitError,
        f"{op.opcode.name.lower()} cannot be cut into tiles that fit on-chip memory",
        where=f"node {', '.join(map(repr, op.loc))}" if op.loc else f"instruction of {model.name!r}",
        why="\n".join(why),
        hint="make what it reads at once smaller (reduce in two steps, sample a smaller image), or take a larger march",
        kind=TileTooLarge,
    )


def channel_blocks(model: Model, op: Weighted, march: MarchSpec) -> list[int]:
    """Numbers of output channels for one tile, descending: all, then whole blocks that don't cross groups."""
    channels = model.tensors[op.outputs[0]].shape[3]
    per_group = channels // op.group
    found = [channels]
    for parts in PARTS:
        block = -(-channels // parts // march.channel_block) * march.channel_block
        if op.group > 1:
            block = block // per_group * per_group if block >= per_group else math.gcd(block, per_group)
        if 0 < block < found[-1]:
            found.append(block)
    return found


def largest(shape: Sequence[int], fits: Fits, limit: Sequence[int]) -> Cut:
    """The largest block up to `limit` that fits; axis after axis is cut, down to 1, until it does."""
    block = list(limit)
    for axis in range(len(shape)):
        if fits(middle(shape, block)):
            break
        block[axis] = longest(block[axis], _with(fits, shape, block, axis))
    return Cut(tuple(block), tuple(range(len(shape))))


def _with(fits: Fits, shape: Sequence[int], block: Sequence[int], axis: int) -> Callable[[int], bool]:
    return lambda n: fits(middle(shape, [*block[:axis], n, *block[axis + 1 :]]))


def longest(size: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `size` that fits (else 1), evened out over the blocks that it takes."""
    low, high = 1, size
    while low < high:
        half = (low + high + 1) // 2
        low, high = (half, high) if fits(half) else (low, half - 1)
    return -(-size // -(-size // low))


def middle(shape: Sequence[int], block: Sequence[int]) -> Box:
    """A whole block in the middle, where no border makes smaller what it reads."""
    at = [min(d // b // 2 * b, d - b) if b else 0 for d, b in zip(shape, block, strict=True)]
    return tuple((lo, lo + b) for lo, b in zip(at, block, strict=True))


def _traffic(model: Model, op: isa.Instruction, found: Cut, budget: Budget) -> float:
    """About how many bytes the steps load together."""
    shape = model.tensors[op.outputs[0]].shape
    counts = [-(-d // max(b, 1)) for d, b in zip(shape, found.block, strict=True)]
    if not isinstance(op, Weighted):
        need = footprint(model, op, middle(shape, found.block), budget)
        return float(need.moving * math.prod(counts))
    x, w = model.tensors[op.inputs[0]].nbytes, model.tensors[op.inputs[1]].nbytes
    read = regions(model, op, middle(shape, found.block))[0]
    assert read is not None
    spots = counts[0] * counts[1] * counts[2]
    halo = max(1.0, nbytes(model, op.inputs[0], (*read[:3], (0, model.tensors[op.inputs[0]].shape[3]))) * spots / x)
    slices = counts[3]
    if found.order == CHANNELS_FIRST:
        again, weights = (slices if op.group == 1 and spots > 1 else 1), 1
    else:
        again, weights = 1, spots if slices > 1 and w > budget.on_chip // 4 else 1
    stays = budget.keeps and x + w // slices <= budget.on_chip // 2
    return (0.0 if stays else x * again * (halo if counts[2] > 1 else 1.0)) + w * weights


__all__ = ["Budget", "Cut", "Footprint", "cut", "fits_alone", "footprint", "footprint_of", "nbytes", "whole"]
