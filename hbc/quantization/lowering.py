"""A captured graph in the forms that units are made of: before `prepare` decides what is quantised.

Layers that pad by reflecting become a pad and a layer; attention and gates their parts; equal calls one call, as the
compiler would merge them (a sum that only one of two equal convolutions takes would be rounded elsewhere).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from .ops import WEIGHTED, constant_of, is_float, operation

_RANDOM = frozenset({"identity", "dropout", "rrelu", "bernoulli"})  # in training mode, two calls differ


def lower(module: fx.GraphModule) -> None:
    """All of it, in place."""
    modules: dict[str, nn.Module] = dict(module.named_modules())
    for node in list(module.graph.nodes):
        if node.meta.get("cpu"):
            continue
        kind = operation(node, modules)
        found = modules.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(found, WEIGHTED) and getattr(found, "padding_mode", "zeros") != "zeros":
            _pad_apart(module, node, found)
        elif kind in _PARTS:
            _PARTS[kind](_At(module, node, found))
    for layer in modules.values():
        if isinstance(layer, WEIGHTED) and getattr(layer, "padding_mode", "zeros") != "zeros":
            _unpad(layer)
    merge_equal(module, modules)
    module.graph.lint()
    module.recompile()


class _At:
    """Builds nodes in front of one that they replace; shapes are worked out on the way."""

    def __init__(self, module: fx.GraphModule, node: fx.Node, layer: nn.Module | None) -> None:
        self.module, self.node, self.layer = module, node, layer

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        """An argument of a function, or a setting of a layer."""
        if self.layer is not None:
            return getattr(self.layer, name, default)
        return self.node.args[index] if len(self.node.args) > index else self.node.kwargs.get(name, default)

    def add(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """One call of a function."""
        with self.module.graph.inserting_before(self.node):
            made = self.module.graph.call_function(function, args, kwargs)
        made.meta.update({k: self.node.meta[k] for k in ("scope", "cpu") if k in self.node.meta})
        given, named = fx.node.map_arg((args, kwargs), self._like)
        out = function(*given, **named)
        made.meta["shape"], made.meta["dtype"] = tuple(out.shape), out.dtype
        return made

    def _like(self, node: fx.Node) -> torch.Tensor:
        value = constant_of(node, self.module)
        shape = node.meta["shape"] if value is None else tuple(value.shape)
        dtype = node.meta["dtype"] if value is None else value.dtype
        return torch.empty(shape, dtype=dtype, device="meta")

    def becomes(self, node: fx.Node) -> None:
        """`node` in the place of the one that is replaced."""
        self.node.replace_all_uses_with(node)
        self.module.graph.erase_node(self.node)


def _attention(at: _At) -> None:
    """softmax(query · keyᵀ · scale) · value; with a mask it is left as it is, real on the CPU."""
    query, key, value = (at.arg(i, name) for i, name in enumerate(("query", "key", "value")))
    masked = at.arg(3, "attn_mask") is not None or at.arg(5, "is_causal")
    if masked or at.arg(7, "enable_gqa") or not all(isinstance(v, fx.Node) for v in (query, key, value)):
        return
    scale = at.arg(6, "scale")
    scale = 1 / math.sqrt(query.meta["shape"][-1]) if scale is None else float(scale)
    scores = at.add(torch.matmul, query, at.add(torch.transpose, key, -2, -1))
    shares = at.add(torch.softmax, at.add(torch.mul, scores, scale), -1)
    at.becomes(at.add(torch.matmul, shares, value))


def _gate(at: _At) -> None:
    """One half times the sigmoid of the other."""
    x, dim = at.node.all_input_nodes[0], int(at.arg(1, "dim", -1))
    half = x.meta["shape"][dim] // 2
    first, second = (at.add(torch.narrow, x, dim, i * half, half) for i in (0, 1))
    at.becomes(at.add(torch.mul, first, at.add(torch.sigmoid, second)))


def _filled(at: _At) -> None:
    """A finite number where a mask holds; −∞ has no integer, and stays real."""
    x, mask, number = at.node.args[0], at.arg(1, "mask"), at.arg(2, "value")
    if isinstance(number, (int, float)) and math.isfinite(number) and is_float(at.node):
        at.becomes(at.add(torch.where, mask, float(number), x))


_PARTS: dict[str, Callable[[_At], None]] = {
    "scaled_dot_product_attention": _attention, "glu": _gate, "GLU": _gate, "masked_fill": _filled,
}  # fmt: skip


def _pad_apart(module: fx.GraphModule, node: fx.Node, layer: Any) -> None:
    at = _At(module, node, None)
    padded = at.add(functional.pad, node.args[0], list(layer._reversed_padding_repeated_twice), layer.padding_mode)  # noqa: SLF001
    node.args = (padded, *node.args[1:])


def _unpad(layer: Any) -> None:
    """The pad is a node of its own by now."""
    layer.padding = (0,) * len(layer.kernel_size)
    layer.padding_mode = "zeros"


def merge_equal(module: fx.GraphModule, modules: dict[str, nn.Module]) -> None:
    """Calls of one module, or of one function in one scope, on the same operands become one."""
    first: dict[str, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op not in {"call_module", "call_function", "call_method"} or not _is_pure(node, modules):
            continue
        scope = "" if node.op == "call_module" else node.meta.get("scope")
        key = repr((node.op, node.target, node.args, node.kwargs, scope, node.meta.get("cpu")))
        if key not in first:
            first[key] = node
            continue
        node.replace_all_uses_with(first[key])
        module.graph.erase_node(node)


def _is_pure(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.meta.get("writes") or node.meta.get("functional") or getattr(node.target, "is_wrapped", False):
        return False
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = node.op != "call_module" and (
        (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or node.kwargs.get("inplace")
    )
    kind = operation(node, modules)
    stub = kind in {"quant_stub", "dequant_stub"}
    return not (in_place or stub or kind in _RANDOM or "Dropout" in kind or kind == "OutputTree")
