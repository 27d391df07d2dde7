"""Which tensors need no command, as they lie inside another one: reshapes, operands of concatenations, plain slices."""

from __future__ import annotations

from dataclasses import dataclass, field

from hbc_runtime import isa
from hbc_runtime.commands import View
from hbc_runtime.program import BpuSegment, Model, Storage, Tensor

from .boxes import Box, meets, moved, whole
from .regions import reshaped

Part = tuple[int, tuple[int, ...], Box]  # of a concatenation: an operand, and where it begins and lies in the result


@dataclass
class Views:
    """Every tensor's root, and the way to it.

    `fixed` are the tensors whose bytes in DDR the model places: they lie inside no other one. What a segment's
    instructions make by views alone is found in `covered`: for each the boxes of its result that need no command.
    """

    model: Model
    fixed: frozenset[int]
    of: dict[int, View] = field(default_factory=dict)
    covered: dict[int, list[Box]] = field(default_factory=dict)

    def root(self, tensor: int, box: Box) -> tuple[int, Box]:
        """The root of `tensor`, and where in it `box` lies (the smallest box of it that holds it)."""
        while (view := self.of.get(tensor)) is not None:
            box = self._step(view, box)
            tensor = view.of
        return tensor, box

    def _step(self, view: View, box: Box) -> Box:
        if view.start is None:
            return reshaped(box, self.model.tensors[view.tensor].shape, self.model.tensors[view.of].shape)
        return moved(box, view.start)

    def listed(self) -> tuple[View, ...]:
        """All views, each behind the one that it leans on."""
        done: dict[int, View] = {}

        def add(tensor: int) -> None:
            view = self.of.get(tensor)
            if view is not None and tensor not in done:
                add(view.of)
                done[tensor] = view

        for tensor in self.of:
            add(tensor)
        return tuple(done.values())

    # ---- finding them

    def reshape(self, k: int, op: isa.Reshape) -> None:
        """The result is its operand's bytes, unless it has bytes of its own in DDR, or they are a constant's."""
        x, y = op.inputs[0], op.outputs[0]
        same = _same_place(self.model.tensors[x], self.model.tensors[y])
        if self.model.tensors[x].storage is Storage.CONSTANT or (y in self.fixed and not same):
            return
        self._put(k, View(y, x, None), whole(self.model.tensors[y].shape))

    def slice(self, k: int, op: isa.Slice) -> None:
        """The result of steps of 1 lies inside its operand."""
        x, y = op.inputs[0], op.outputs[0]
        if any(s != 1 for s in op.steps) or y in self.fixed or self.model.tensors[x].storage is Storage.CONSTANT:
            return
        self._put(k, View(y, x, op.starts), whole(self.model.tensors[y].shape))

    def concat(self, k: int, op: isa.Concat, made: set[int]) -> None:
        """Each operand that lies in no other tensor yet is made where the result has it."""
        y, at = op.outputs[0], 0
        if y in self.fixed and self.model.tensors[y].storage is Storage.ARENA:
            return  # its bytes may hold another segment's tensor until the concatenation's turn
        parts: list[tuple[int, tuple[int, ...], Box]] = []
        for x in op.inputs:
            shape = self.model.tensors[x].shape
            start = tuple(at if i == op.axis else 0 for i in range(len(shape)))
            at += shape[op.axis]
            parts.append((x, start, moved(whole(shape), start)))
        for x, start, box in parts:
            if self._lies(x, y, start) or self._place(x, y, start, made, parts):
                self.covered.setdefault(k, []).append(box)

    def _lies(self, x: int, y: int, start: tuple[int, ...]) -> bool:
        """True where `x` is in `y` already, and there."""
        if not self._plain(x):
            return False
        shape = self.model.tensors[x].shape
        return self.root(x, whole(shape)) == (y, moved(whole(shape), start))

    def _place(self, x: int, y: int, start: tuple[int, ...], made: set[int], parts: list[Part]) -> bool:
        """Put the root of `x` into `y` so that `x` begins at `start`; False where it cannot lie there.

        Of all that it then holds of `y`, each of the concatenation's `parts` must be what is joined there.
        """
        if not self._plain(x):
            return False
        shape = self.model.tensors[x].shape
        root, inner = self.root(x, whole(shape))
        full = self.model.tensors[root].shape
        offset = tuple(s - lo for s, (lo, _) in zip(start, inner, strict=True)) if len(full) == len(start) else ()
        if root == y or root in self.fixed or root not in made or not offset or min(offset) < 0:
            return False
        box = moved(whole(full), offset)
        room = whole(self.model.tensors[y].shape)
        if any(hi > top for (_, hi), (_, top) in zip(box, room, strict=True)):
            return False
        if not all(self._agrees(part, root, offset) for part in parts if meets(part[2], box)):
            return False
        self.of[root] = View(root, y, offset)
        return True

    def _agrees(self, part: Part, root: int, offset: tuple[int, ...]) -> bool:
        """True where an operand lies in `root` just where it is joined, once `root` begins at `offset`."""
        x, _, box = part
        if not self._plain(x):
            return False
        found, inner = self.root(x, whole(self.model.tensors[x].shape))
        return found == root and moved(inner, offset) == box

    def _plain(self, tensor: int) -> bool:
        """True where no reshape is on the way to the root."""
        while (view := self.of.get(tensor)) is not None:
            if view.start is None:
                return False
            tensor = view.of
        return True

    def _put(self, k: int, view: View, box: Box) -> None:
        self.of[view.tensor] = view
        self.covered[k] = [box]


def _same_place(x: Tensor, y: Tensor) -> bool:
    return (x.storage, x.index, x.offset, x.nbytes) == (y.storage, y.index, y.offset, y.nbytes)


def find_views(model: Model, segment: BpuSegment, fixed: frozenset[int], made: set[int], *, moves: bool) -> Views:
    """The views of a segment: reshapes; with `moves` slices and concatenations too.

    `made` are the tensors that the BPU's own instructions write, which may be written into a larger tensor at once.
    """
    views = Views(model, fixed)
    for k, op in enumerate(segment.instructions):
        if isinstance(op, isa.Reshape):
            views.reshape(k, op)
        elif moves and isinstance(op, isa.Slice):
            views.slice(k, op)
    for k, op in enumerate(segment.instructions):
        if moves and isinstance(op, isa.Concat):
            views.concat(k, op, made)
    return views
