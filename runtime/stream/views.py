"""Tensors that lie inside others: where a box of one is in the tensor at the end of its views."""

from __future__ import annotations

from collections.abc import Mapping

from ..commands import CommandStream, View
from ..program import Model
from .needs import Spans, full, under_shape


class Roots:
    """The views of a stream. ValueError where they don't fit the model, or one another."""

    def __init__(self, model: Model, stream: CommandStream) -> None:
        self.model = model
        self.views: Mapping[int, View] = {v.tensor: v for v in stream.views}
        if len(self.views) != len(stream.views):
            msg = "a tensor lies inside two others"
            raise ValueError(msg)
        self.known: dict[int, tuple[int, tuple[int, ...] | None]] = {}
        for n, view in enumerate(stream.views):
            self._check(n, view)

    def _check(self, n: int, view: View) -> None:
        count = len(self.model.tensors)
        if not (0 <= view.tensor < count and 0 <= view.of < count):
            msg = f"view {n} names tensor {view.tensor} or {view.of} of {count}"
            raise ValueError(msg)
        inner, outer = self.model.tensors[view.tensor], self.model.tensors[view.of]
        if view.of in self.views and view.of not in self.known:
            msg = f"view {n} leans on tensor {view.of}, whose own view stands behind it"
            raise ValueError(msg)
        if inner.dtype is not outer.dtype or inner.is_dynamic or outer.is_dynamic:
            msg = f"view {n}: {inner.name!r} and {outer.name!r} have not the same elements"
            raise ValueError(msg)
        if view.start is None:
            fits = inner.elements == outer.elements
        else:
            fits = len(inner.shape) == len(outer.shape) == len(view.start) and all(
                s >= 0 and s + d <= room for s, d, room in zip(view.start, inner.shape, outer.shape, strict=True)
            )
        if not fits:
            msg = f"view {n}: {inner.name!r} does not fit into {outer.name!r}"
            raise ValueError(msg)
        root, offset = self.known.get(view.of, (view.of, (0,) * len(outer.shape)))
        both = None if view.start is None or offset is None else tuple(map(sum, zip(offset, view.start, strict=True)))
        self.known[view.tensor] = root, both

    def root(self, tensor: int) -> int:
        """The tensor at the end of its views: itself where it has none."""
        return self.known[tensor][0] if tensor in self.known else tensor

    def offset(self, tensor: int) -> tuple[int, ...] | None:
        """Where `tensor` begins in its root; None where a reshape is on the way."""
        return self.known[tensor][1] if tensor in self.known else (0,) * len(self.model.tensors[tensor].shape)

    def locate(self, tensor: int, box: Spans) -> Spans:
        """The hull of `box` in the root."""
        if tensor not in self.known:
            return box
        offset = self.known[tensor][1]
        if offset is not None:
            return tuple((lo + d, hi + d) for (lo, hi), d in zip(box, offset, strict=True))
        while (view := self.views.get(tensor)) is not None:
            if view.start is None:
                shape, other = self.model.tensors[tensor].shape, self.model.tensors[view.of].shape
                box = under_shape(box, shape, other)
            else:
                box = tuple((lo + d, hi + d) for (lo, hi), d in zip(box, view.start, strict=True))
            tensor = view.of
        return box

    def whole(self, tensor: int) -> Spans:
        """Where all of `tensor` lies in its root."""
        return self.locate(tensor, full(self.model.tensors[tensor].shape))
