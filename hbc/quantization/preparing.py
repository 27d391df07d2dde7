"""`prepare`: from a float model to one of quantised units."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn, overload

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from hbc.diagnostics import BadQConfig, NotPrepared, OptionError, PreparedTwice, error

from .capturing import COMPUTED, OUTPUTS, arguments, capture
from .eager import EagerRewrite, swap
from .errors import no_such, trouble
from .functional_layers import as_layers
from .lowering import lower
from .march import get_march
from .opening import open_attention
from .pytree import rebuild
from .qconfig import QConfigSetter, Setters, as_list
from .rewrite import Rewrite
from .units import QuantizedUnit, is_prepared

WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
BatchNormMode = Literal["fused", "with-bn"]
Method = Literal["capture", "eager"]


@overload
def prepare(
    model: nn.Module,
    example_inputs: Any,
    qconfig_setter: Setters = None,
    method: Literal["capture"] = "capture",
    *,
    bn_mode: BatchNormMode = "fused",
    cpu: Iterable[str | type[nn.Module]] = (),
) -> fx.GraphModule: ...


@overload
def prepare(
    model: nn.Module,
    example_inputs: Any,
    qconfig_setter: Setters = None,
    *,
    method: Literal["eager"],
    bn_mode: BatchNormMode = "fused",
    cpu: Iterable[str | type[nn.Module]] = (),
) -> nn.Module: ...


def prepare(
    model: nn.Module,
    example_inputs: Any,
    qconfig_setter: Setters = None,
    method: Method = "capture",
    *,
    bn_mode: BatchNormMode = "fused",
    cpu: Iterable[str | type[nn.Module]] = (),
) -> nn.Module:
    """A copy of `model` in which every operation quantises as the chip does, ready to be calibrated and trained.

    `example_inputs`: the tuple of arguments that `model(*example_inputs)` takes. `qconfig_setter`: one, or several of
    which the first that answers wins; the default template is behind them. `method`: `capture` writes the
    model down from one run on the example; `eager` swaps modules and keeps the user's forward, which then takes its
    branches anew in each call: it needs QuantStub, DeQuantStub and FloatFunctional in the model. `bn_mode`: `fused`
    folds batch norms into weights now, `with-bn` trains them. `cpu`: names or types of modules that stay real and run
    on the CPU.

    The march is the one of `set_march`. The model comes back in state QAT and training mode as it was; `hints` lists
    what could not be done as the template wishes. Raises QuantizationError, OptionError.
    """
    _check(model, method, bn_mode)
    names = dict(model.named_modules())
    keep = _kept(names, tuple(cpu))
    setters: list[QConfigSetter] = as_list(qconfig_setter)
    twin = copy.deepcopy(model)
    march = get_march().value
    if method == "capture":
        open_attention(twin, lambda name, module: _is_inside(name, names, keep) or type(module) in keep)
    graph = capture(twin, example_inputs, lambda name, module: name in keep or type(module) in keep)
    prepared: nn.Module
    if method == "eager":
        prepared = _swapped(twin, graph, EagerRewrite(graph, march, setters, bn_mode, names))
    else:
        hints = as_layers(graph)
        lower(graph)
        rewrite = Rewrite(graph, march, setters, bn_mode, names)
        rewrite.hints += hints
        prepared = rewrite.run()
    prepared.meta["example_inputs"] = rebuild(  # type: ignore[index, operator]
        arguments(example_inputs), lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x
    )
    prepared.train(model.training)
    prepared.register_load_state_dict_pre_hook(_refuse_float_weights)  # type: ignore[no-untyped-call]
    return prepared


def _swapped(model: nn.Module, graph: fx.GraphModule, rewrite: EagerRewrite) -> nn.Module:
    """`model` with its modules swapped for units."""
    calls = {str(n.target) for n in graph.graph.nodes if n.op == "call_module"}
    scopes = {str(n.meta.get("scope", "")) for n in graph.graph.nodes}
    units = rewrite.run()
    model._modules.pop(OUTPUTS, None)  # noqa: SLF001 - what capture put into it for the graph
    for name in [n for n, _ in model.named_buffers(recurse=False) if n.startswith(COMPUTED)]:
        delattr(model, name)
    hints = swap(model, units, calls | scopes)
    model.meta = {**units.meta, "hints": [*rewrite.hints, *hints]}  # type: ignore[assignment]
    model.hints = model.meta["hints"]  # type: ignore[index]
    return model


def _refuse_float_weights(
    module: nn.Module,
    state: Mapping[str, Any],
    prefix: str,
    _metadata: object,
    strict: bool,  # noqa: FBT001
    *_: object,
) -> None:
    """NotPrepared for a float model's state_dict: batch norms are folded, so that its names don't fit."""
    own = [k for k in module.state_dict() if k.endswith("post_process.scale")]
    if strict and own and not any(k.startswith(prefix) and k.endswith("post_process.scale") for k in state):
        raise trouble(
            "this state_dict is a float model's, and the model is prepared",
            why=f"it has no scales, {own[0]!r} for instance",
            hint="load float weights into the float model, before prepare",
            kind=NotPrepared,
        )


def _check(model: nn.Module, method: str, bn_mode: str) -> None:
    given: object = model
    if not isinstance(given, nn.Module):
        kind = type(model).__name__
        raise error(OptionError, f"prepare takes a torch.nn.Module, not a {kind}", hint="give the float model")
    if isinstance(model, torch.jit.ScriptModule):
        hint = "prepare the model before torch.jit.trace or script"
        raise error(OptionError, "prepare takes a torch.nn.Module, not a TorchScript module", hint=hint)
    for kind, inner in WRAPPERS.items():
        if type(model).__name__ == kind:
            hint = f"prepare the model itself, model.{inner}, and wrap what comes back"
            raise error(OptionError, f"prepare takes the model, not its {kind}", hint=hint)
    require_float(model)
    for what, value, known in (("method", method, ("capture", "eager")), ("bn_mode", bn_mode, ("fused", "with-bn"))):
        if value not in known:
            raise no_such(what, value, known)


def require_float(model: nn.Module) -> None:
    """PreparedTwice where a model is prepared or fused already, OptionError where it holds what can't be copied."""
    if is_prepared(model):
        name, unit = next((n, m) for n, m in model.named_modules() if isinstance(m, QuantizedUnit))
        raise trouble(
            "this model is prepared already",
            why=f"{name!r} is a {type(unit).__name__}",
            hint="call prepare once, on the float model; prepare fuses by itself",
            kind=PreparedTwice,
        )
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        for attribute, value in {**dict(module.named_buffers(recurse=False)), **own}.items():
            if any(isinstance(x, torch.Tensor) and x.grad_fn is not None for x in tree_leaves(value)):
                _refuse_computed(name, module, attribute)


def _refuse_computed(name: str, module: nn.Module, attribute: str) -> NoReturn:
    """PyTorch copies no tensor that was computed with gradients: say whose it is, and what to use instead."""
    norms = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}
    hooks = [norms.get(type(hook).__name__) for hook in module._forward_pre_hooks.values()]  # noqa: SLF001
    norm = next((n for n in hooks if n), None)
    hint = f"keep its detach() there, or set {attribute} to None first"
    if norm:
        hint = f"use torch.nn.utils.parametrizations.{norm}, or call torch.nn.utils.remove_{norm} first"
    raise error(
        OptionError,
        "the model can't be copied",
        why=f"{attribute!r} of {_module(name, module)} is a tensor that was computed with gradients",
        hint=hint,
    )


def _module(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    return f"{name!r} ({kind})" if name else f"the model ({kind})"


def _is_inside(name: str, names: dict[str, nn.Module], keep: set[Any]) -> bool:
    """True for a module that stays on the CPU, or that is in one that does."""
    parts = name.split(".")
    outer = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    return any(n in keep or type(names.get(n)) in keep for n in outer)


def _kept(names: dict[str, nn.Module], cpu: tuple[str | type[nn.Module], ...]) -> set[Any]:
    """Names and types of modules that stay on the CPU; OptionError for a name that there is none of."""
    for item in cpu:
        if isinstance(item, str) and item not in names:
            raise no_such("module", item, [n for n in names if n])
        if not isinstance(item, str) and not any(type(m) is item for m in names.values()):
            kinds = {type(m).__name__ for m in names.values()}
            raise no_such("type of module", getattr(item, "__name__", str(item)), kinds)
        if item == "":
            raise trouble("the whole model would stay on the CPU", hint="name a part of it", kind=BadQConfig)
    return set(cpu)
