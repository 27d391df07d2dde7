"""Writes in place while a model is captured: `y[:, 0] = x`, `y[:, :4].mul_(2)`, `F.relu(y.view(-1), inplace=True)`.

A graph has values, not memory. What is written is a new value; of what it was a view, the whole is put together anew;
other views of that are taken again. So every tensor's node is what the tensor holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hbc.diagnostics import CannotCapture

from .errors import trouble
from .ops import name_of_function
from .pytree import Path, take

_RESHAPES = {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "identity",
             "Flatten", "Unflatten"}  # fmt: skip
_TURNS = {"transpose", "permute", "t", "movedim", "moveaxis", "swapdims", "mT", "T", "getattr", "adjoint"}
_PARTS = {"chunk", "split", "unbind", "tensor_split", "split_with_sizes"}


def with_item(base: Tensor, index: Any, value: Any) -> Tensor:
    """`base`, but `value` at `index`."""
    whole = base.clone()
    whole[index] = value
    return whole


def filled(base: Tensor, value: float = 0.0) -> Tensor:
    """A tensor of `base`'s shape that holds one number."""
    return torch.full_like(base, value)


FILLS = {"fill_", "zero_"}


@dataclass(frozen=True)
class View:
    """How a tensor was taken out of `base`: by the call that `node` is, and `path` in what that gave."""

    tensor: Tensor
    base: Tensor
    base_node: fx.Node
    node: fx.Node
    path: Path


def writes(name: str, args: Sequence[Any], kwargs: dict[str, Any], out: object) -> bool:
    """True where a call gave back an operand that it has written to."""
    if "out" in kwargs and out is kwargs["out"]:
        return True
    if not args or out is not args[0]:
        return False
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__i") or bool(kwargs.get("inplace")) or any(a is True for a in args[1:])


def out_of_place(node: fx.Node) -> None:
    """The call in the form that leaves its operand alone."""
    target = str(node.target)
    if node.op == "call_method" and target.startswith("__i") and target.endswith("__"):
        node.target = f"__{target[3:]}"
    elif node.op == "call_method" and target in FILLS:
        node.op, node.target = "call_function", filled
    elif node.op == "call_method" and target == "copy_":
        node.target, node.args = "expand_as", (node.args[1], node.args[0])
    elif node.op == "call_method" and target.endswith("_") and hasattr(Tensor, target[:-1]):
        node.target = target[:-1]
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "out"}
    if "inplace" in node.kwargs:
        node.kwargs = {**node.kwargs, "inplace": False}


class Views:
    """The views among the tensors of a capture. `nodes`: by the id of a tensor what it holds now."""

    def __init__(self, graph: fx.Graph, nodes: dict[int, fx.Node], names: Callable[[fx.Node], str]) -> None:
        self.graph, self.nodes, self.names = graph, nodes, names
        self.views: dict[int, View] = {}

    def note(self, tensor: Tensor, base: object, node: fx.Node, path: Path) -> None:
        """`tensor` came out of a call on `base`; where it shares its memory, it is a view."""
        if not isinstance(base, Tensor) or tensor is base or id(base) not in self.nodes or not _shares(tensor, base):
            return
        base_node = next((n for n in node.all_input_nodes if n is self.nodes[id(base)]), None)
        if base_node is not None:
            self.views[id(tensor)] = View(tensor, base, base_node, node, path)

    def wrote(self, tensor: Tensor, scope: dict[str, Any]) -> None:
        """The node of `tensor` is a new value: so are those of all that shares its memory. CannotCapture otherwise."""
        changed = {id(tensor)}
        while id(tensor) in self.views:
            view = self.views[id(tensor)]
            whole = self._put_back(view, self.nodes[id(view.base)], self.nodes[id(tensor)])
            self._bind(view.base, whole, scope)
            tensor = view.base
            changed.add(id(tensor))
        for view in self.views.values():
            if id(view.tensor) not in changed and id(view.base) in changed:
                self._bind(view.tensor, self._again(view), scope)
                changed.add(id(view.tensor))

    def _bind(self, tensor: Tensor, node: fx.Node, scope: dict[str, Any]) -> None:
        node.meta.update(scope, shape=tuple(tensor.shape), dtype=tensor.dtype)
        self.nodes[id(tensor)] = node

    def _again(self, view: View) -> fx.Node:
        made = self.graph.node_copy(view.node, lambda n: self.nodes[id(view.base)] if n is view.base_node else n)
        made.meta.update(view.node.meta)
        return made if not view.path else self.graph.call_function(take, (made, view.path))

    def _put_back(self, view: View, base: fx.Node, part: fx.Node) -> fx.Node:
        kind = self.names(view.node)
        if kind in _RESHAPES:
            return self.graph.call_method("reshape_as", (part, base))
        if kind in _TURNS:
            order = _order(view)
            return self.graph.call_method("permute", (part, tuple(order.index(i) for i in range(len(order)))))
        index = _index(view, kind)
        if index is None:
            why = "several tensors share its memory, and hbc doesn't follow a write through this operation"
            hint = "write to a clone: y = y.clone()"
            what = f"forward writes in place into the result of {kind!r}"
            raise trouble(what, why=why, hint=hint, kind=CannotCapture)
        return self.graph.call_function(with_item, (base, index, part))


def _shares(a: Tensor, b: Tensor) -> bool:
    if not a.numel() or not b.numel() or a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def _order(view: View) -> list[int]:
    """Where each axis of the view came from, by its stride; equal strides keep their order."""
    rest = list(range(view.base.dim()))
    order = []
    for axis, stride in enumerate(view.tensor.stride()):
        same = [a for a in rest if view.base.stride(a) == stride and view.base.shape[a] == view.tensor.shape[axis]]
        order.append(same[0])
        rest.remove(same[0])
    return order


def _index(view: View, kind: str) -> Any:
    """The index of a view in its base; None where it has none."""
    args, rank = view.node.args, view.base.dim()
    if kind == "getitem":
        index = args[1]
        plain = index if isinstance(index, tuple) else (index,)
        basic = all(isinstance(i, (int, slice, type(None), type(...))) for i in plain)
        return index if basic and view.node.target is not operator.setitem else None
    named = {"narrow": ("dim", "start", "length"), "select": ("dim", "index")}.get(kind)
    if named is not None:
        given = dict(zip(named, args[1:], strict=False)) | dict(view.node.kwargs)
        start = int(given.get("start", given.get("index", 0)))  # type: ignore[arg-type]
        end = start + int(given["length"]) if kind == "narrow" else None  # type: ignore[arg-type]
        return _along(int(given["dim"]) % rank, start if end is None else slice(start, end))  # type: ignore[arg-type]
    if kind in _PARTS and len(view.path) == 1:
        position = 1 if kind == "unbind" else 2
        dim = int(args[position] if len(args) > position else view.node.kwargs.get("dim", 0)) % rank  # type: ignore[arg-type]
        if kind == "unbind":
            return _along(dim, int(view.path[0]))
        offset = view.tensor.storage_offset() - view.base.storage_offset()
        start = offset // view.base.stride(dim)
        return _along(dim, slice(start, start + view.tensor.shape[dim]))
    return None


def _along(dim: int, item: int | slice) -> tuple[int | slice, ...]:
    return (*(slice(None),) * dim, item)


def name_of(node: fx.Node) -> str:
    """The operation of a call, whichever way it was written."""
    if node.target is getattr:
        return str(node.args[1])
    return name_of_function(node.target)
