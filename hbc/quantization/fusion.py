"""Which nodes become one unit: {conv, conv transpose, linear, conv3d} [+bn] [+add] [+relu|relu6]."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx, nn

from .ops import BATCH_NORMS, CLIPPED, RELUS, is_float, operation

ADDABLE = (nn.Conv1d, nn.Conv2d, nn.Linear)  # those whose accumulator takes a second operand


@dataclass
class Group:
    """Nodes that become one unit, in order; `head` is the weighted or arithmetic node, `last` gives the result."""

    head: fx.Node
    nodes: list[fx.Node] = field(default_factory=list)
    bn: fx.Node | None = None
    addend: fx.Node | None = None
    activation: str = ""
    conditions: list[fx.Node] = field(default_factory=list)  # truth values that the head reads, computed within

    @property
    def last(self) -> fx.Node:
        """The node whose result the unit gives."""
        return self.nodes[-1]

    @property
    def text(self) -> str:
        """`conv1 + bn1 + relu`."""
        return " + ".join(str(n.target if n.op == "call_module" else n.name) for n in self.nodes)


def weighted_group(head: fx.Node, modules: dict[str, nn.Module]) -> Group:
    """A weighted node with what follows it and can be fused."""
    group = Group(head, [head])
    follower = _follower(head)
    if follower is not None and _is_batch_norm(follower, head, modules):
        group.bn = follower
        group.nodes.append(follower)
        follower = _follower(follower)
    kind = type(modules[str(head.target)])
    if follower is not None and kind in ADDABLE and operation(follower, modules) == "add":
        other = _addend(follower, group.last)
        if other is not None:
            group.addend = other
            group.nodes.append(follower)
            follower = _follower(follower)
    _take_relu(group, follower, modules)
    return group


def operation_group(head: fx.Node, modules: dict[str, nn.Module]) -> Group:
    """An arithmetic node, with a relu behind it where the result's clip does that."""
    group = Group(head, [head])
    _take_conditions(group, head)
    if operation(head, modules) in CLIPPED:
        _take_relu(group, _follower(head), modules)
    return group


def _take_conditions(group: Group, node: fx.Node) -> None:
    """What gives truth values, and whatever else no scale stands for, goes into the unit that reads it."""
    for source in node.all_input_nodes:
        computed = source.op in {"call_function", "call_method"} and not is_float(source)
        if computed and source not in group.conditions:
            _take_conditions(group, source)
            group.conditions.append(source)


def _take_relu(group: Group, follower: fx.Node | None, modules: dict[str, nn.Module]) -> None:
    if follower is not None and operation(follower, modules) in RELUS and not follower.meta.get("cpu"):
        group.activation = operation(follower, modules)
        group.nodes.append(follower)


def _follower(node: fx.Node) -> fx.Node | None:
    """The only reader of a node that isn't kept on the CPU."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return None if user.meta.get("cpu") or user.meta.get("alone") or user.op in {"output", "placeholder"} else user


def _is_batch_norm(node: fx.Node, head: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op != "call_module":
        return False
    module, layer = modules[str(node.target)], modules[str(head.target)]
    if not isinstance(module, BATCH_NORMS) or not module.track_running_stats:
        return False
    if isinstance(layer, nn.Linear) and len(head.meta.get("shape", ())) != 2:
        return False
    grouped = "Transpose" in type(layer).__name__ and layer.groups != 1
    return not grouped


def _addend(add: fx.Node, last: fx.Node) -> fx.Node | None:
    """The other operand of a sum of two tensors of one shape."""
    if len(add.args) != 2 or add.kwargs.get("alpha", 1) != 1:
        return None
    a, b = add.args
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or a is b:
        return None
    other = b if a is last else a
    fits = other.op != "get_attr" and other.meta.get("shape") == last.meta.get("shape") == add.meta.get("shape")
    return other if fits else None
