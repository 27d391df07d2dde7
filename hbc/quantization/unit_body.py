"""The graph of reals inside of a unit: the user's nodes with one placeholder per operand."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from .fusion import Group
from .ops import constant_of


def body_of(
    group: Group, operands: list[fx.Node], root: fx.GraphModule, modules: dict[str, nn.Module]
) -> fx.GraphModule:
    """A graph module of the group's nodes; constants and modules that they read are in it."""
    holder, graph = nn.Module(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for i, operand in enumerate(operands):
        copies[operand] = graph.placeholder(f"x{i}")
        copies[operand].meta.update(operand.meta)
    for node in (*group.conditions, *group.nodes):
        for constant in node.all_input_nodes:
            value = constant_of(constant, root)
            if value is not None and constant not in copies:
                name = f"constant_{len(copies)}"
                _register(holder, name, value)
                copies[constant] = graph.get_attr(name)
                copies[constant].meta.update(constant.meta)
        made = graph.node_copy(node, lambda n: copies[n])
        if node.op == "call_module":
            made.target = "op" if not hasattr(holder, "op") else f"op_{len(copies)}"
            module: Any = modules[str(node.target)]
            if hasattr(module, "inplace"):
                module.inplace = False
            holder.add_module(str(made.target), module)
        _out_of_place(made)
        made.meta.update(node.meta)
        copies[node] = made
    graph.output(copies[group.last])
    return fx.GraphModule(holder, graph)


def _register(holder: nn.Module, name: str, value: Tensor) -> None:
    if isinstance(value, nn.Parameter):
        holder.register_parameter(name, value)
    else:
        holder.register_buffer(name, value)


def _out_of_place(node: fx.Node) -> None:
    """`x += y` and `relu_` would change values that others read: they become their forms that don't."""
    if node.op == "call_method":
        text = str(node.target)
        if text.startswith("__i") and text.endswith("__"):
            node.target = f"__{text[3:]}"
        elif text.endswith("_") and not text.startswith("_"):
            node.target = text[:-1]
    elif "inplace" in node.kwargs:
        node.kwargs = {**node.kwargs, "inplace": False}
