"""`fuse_fx`: a float model with its batch norms folded into the layers in front of them."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import fx, nn

from hbc.diagnostics import OptionError, error

from .capturing import capture
from .fusion import weighted_group
from .ops import is_weighted
from .preparing import require_float
from .units import QuantizedWeighted


def fuse_fx(model: nn.Module, example_inputs: Any = None) -> nn.Module:
    """A copy of the float model whose batch norms are folded into weights and biases: the same results in eval.

    The module tree and its names stay; a folded batch norm becomes an Identity. `example_inputs`: for models that
    torch.fx can't trace symbolically. `prepare` folds by itself, so this is for looking at the fused model, or for
    training it in floats. QuantizationError (PreparedTwice) for a prepared model, OptionError where inputs are needed.
    """
    require_float(model)
    twin = copy.deepcopy(model)
    graph = _graph(copy.deepcopy(model), example_inputs)
    modules = dict(graph.named_modules())
    calls = Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_module")
    for node in graph.graph.nodes:
        if not is_weighted(node, modules):
            continue
        bn = weighted_group(node, modules).bn
        if bn is not None and calls[str(node.target)] == calls[str(bn.target)] == 1:
            _fold(twin, str(node.target), str(bn.target))
    return twin


def _graph(model: nn.Module, example_inputs: Any) -> fx.GraphModule:
    if example_inputs is not None:
        return capture(model, example_inputs)
    try:
        return fx.symbolic_trace(model)
    except Exception as cause:  # whatever the user's forward does with a proxy
        why = f"torch.fx can't trace it symbolically: {type(cause).__name__}: {cause}".splitlines()[0]
        title = "fuse_fx needs example_inputs for this model"
        raise error(OptionError, title, why=why, hint="fuse_fx(model, (x,))") from cause


@torch.no_grad()
def _fold(model: nn.Module, layer_name: str, bn_name: str) -> None:
    layer: Any = model.get_submodule(layer_name)
    folded = QuantizedWeighted(layer_name, "", layer, model.get_submodule(bn_name), "")
    weight, bias = folded.folded()
    layer.weight = nn.Parameter(weight.clone())
    layer.bias = nn.Parameter(weight.new_zeros(folded.out_channels) if bias is None else bias.clone())
    parent, _, last = bn_name.rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
