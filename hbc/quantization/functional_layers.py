"""`F.conv2d(x, self.weight, self.bias)` and its kind become layers, so that they are quantised as layers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from .capturing import COMPUTED
from .ops import constant_of, name_of_function

_CONV = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")
_KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...], int]] = {  # class, arguments behind the bias, axes of weight
    "conv1d": (nn.Conv1d, _CONV, 3),
    "conv2d": (nn.Conv2d, _CONV, 4),
    "conv3d": (nn.Conv3d, _CONV, 5),
    "conv_transpose1d": (nn.ConvTranspose1d, _TRANSPOSED, 3),
    "conv_transpose2d": (nn.ConvTranspose2d, _TRANSPOSED, 4),
    "conv_transpose3d": (nn.ConvTranspose3d, _TRANSPOSED, 5),
    "linear": (nn.Linear, (), 2),
}


@dataclass(frozen=True)
class _Call:
    """One functional call: its operand, and the layer that it is."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    kind: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> Any:
        """Equal for calls of one layer."""
        bias = None if self.bias is None else str(self.bias.target)
        return self.kind, str(self.weight.target), bias, self.settings


def as_layers(module: fx.GraphModule) -> list[str]:
    """Replace calls by `call_module` nodes, in place; a layer that is called twice stays one.

    Taken are calls whose weight and bias are parameters or constants of the model. The layer has the name of the
    module that the call stood in, and `.conv2d` or so; it holds the same parameters. The hints that come back name
    layers whose weight the capture has computed, so that training can't change it.
    """
    made: dict[Any, str] = {}
    hints = []
    for node in list(module.graph.nodes):
        call = _call(node, module)
        if call is None:
            continue
        if call.key not in made:
            made[call.key] = _free(module, ".".join(filter(None, [str(node.meta.get("scope", "")), call.kind])))
            _add(module, made[call.key], _layer(call, module))
            if str(call.weight.target).startswith(COMPUTED):
                hints.append(f"{made[call.key]}: its weight is computed in forward; it stays as it is now, untrained")
        with module.graph.inserting_before(node):
            layer = module.graph.call_module(made[call.key], (call.x,))
        layer.meta.update(node.meta)
        node.replace_all_uses_with(layer)
        module.graph.erase_node(node)
    if made:
        _drop_attributes(module)
        module.recompile()
    return hints


def _call(node: fx.Node, module: fx.GraphModule) -> _Call | None:
    """The call that a node is, None for any other node and for weights that are computed."""
    kind = name_of_function(node.target) if node.op == "call_function" else ""
    if kind not in _KINDS or node.meta.get("cpu"):
        return None
    _, behind, axes = _KINDS[kind]
    given = dict(zip(("input", "weight", "bias", *behind), node.args, strict=False)) | dict(node.kwargs)
    x, weight, bias = (given.pop(name, None) for name in ("input", "weight", "bias"))
    value = constant_of(weight, module)
    fits = value is not None and value.dim() == axes and value.is_floating_point()
    if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or not fits:
        return None
    if bias is not None and (not isinstance(bias, fx.Node) or constant_of(bias, module) is None):
        return None
    if kind != "linear" and len(x.meta.get("shape", ())) != axes:
        return None  # an image without a batch
    settings = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(given.items()))
    return _Call(x, weight, bias, kind, settings)


def _layer(call: _Call, module: fx.GraphModule) -> nn.Module:
    cls: Any = _KINDS[call.kind][0]
    weight, settings = constant_of(call.weight, module), dict(call.settings)
    assert weight is not None
    has_bias, groups = call.bias is not None, settings.get("groups", 1)
    if call.kind == "linear":
        layer = cls(weight.shape[1], weight.shape[0], bias=has_bias, device="meta")
    else:
        rows, columns = weight.shape[:2]
        channels = (rows, columns * groups) if "transpose" in call.kind else (columns * groups, rows)
        layer = cls(*channels, tuple(weight.shape[2:]), bias=has_bias, device="meta", **settings)
    layer.weight = _parameter(weight)
    bias = constant_of(call.bias, module)
    if bias is not None:
        layer.bias = _parameter(bias)
    return layer.train(module.training)


def _parameter(value: Tensor) -> nn.Parameter:
    return value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)


def _free(module: fx.GraphModule, name: str) -> str:
    taken = {n for n, _ in module.named_modules()}
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, 1 << 20))) if n not in taken)


def _add(root: nn.Module, name: str, layer: nn.Module) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.add_module(last, layer)


def _drop_attributes(module: fx.GraphModule) -> None:
    """Parameters that only the calls read belong to the layers now, and would be trained under two names."""
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            target = str(node.target)
            module.graph.erase_node(node)
            if not any(n.op == "get_attr" and n.target == target for n in module.graph.nodes):
                *path, last = target.split(".")
                delattr(module.get_submodule(".".join(path)), last)
