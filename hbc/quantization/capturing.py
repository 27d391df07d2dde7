"""Concrete capture: a model is run once on example inputs, and what it does is written down as an fx.GraphModule.

Modules of torch.nn stay whole (`call_module`), everything else becomes the functions that it calls. The module tree and
its names stay. Branches, loops and sizes are those of the example, as in every trace.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from hbc.diagnostics import CannotCapture, FunctionalReused, HbcError, OptionError, WrongDevice, error

from .colour import CenteredYuv444
from .errors import trouble
from .pytree import Leaf, name_of, rebuild, take, walk
from .sampling import PixelSample
from .segment_lut import SegmentLUT
from .stubs import DeQuantStub, FloatFunctional, QuantStub
from .wrapping import RECORDERS
from .writing import Views, out_of_place, with_item, writes
from .writing import name_of as name_of_call

CONTAINERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
    nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip
WHOLE = (QuantStub, DeQuantStub, SegmentLUT, CenteredYuv444, PixelSample)
GIVE = "give what the model takes: a tensor, a dict, or a tuple of arguments"
OUTPUTS = "_outputs"  # the module that puts the results into the user's structure
COMPUTED = "_constant_"  # names of tensors that forward makes of no input: they are what they were at capture
_PATCH = threading.RLock()  # nn.Module.__call__ is patched while a model is captured


class OutputTree(nn.Module):
    """Puts the tensors that it is given into the structure that the user's forward returned."""

    def __init__(self, template: Any) -> None:
        super().__init__()
        self.template = template

    def forward(self, *values: Tensor) -> Any:
        return rebuild(self.template, lambda leaf: values[leaf.index] if isinstance(leaf, Leaf) else leaf)


@dataclass(frozen=True)
class Interface:
    """Names of the tensors that go in and out, and where they are in the arguments and the result."""

    inputs: tuple[tuple[str, int, tuple[str | int, ...]], ...]  # name, position of the argument, path in it
    outputs: tuple[str, ...]
    template: Any = field(repr=False, default=None)

    def leaves(self, args: Sequence[Any]) -> list[Tensor]:
        """The input tensors among the arguments of a call. OptionError where they aren't there."""
        return [self._leaf(args, name, position, path) for name, position, path in self.inputs]

    def _leaf(self, args: Sequence[Any], name: str, position: int, path: tuple[str | int, ...]) -> Tensor:
        try:
            found = take(args[position], path)
        except (LookupError, AttributeError, TypeError):
            found = None
        if isinstance(found, Tensor):
            return found
        given = ", ".join(type(a).__name__ for a in args) or "nothing"
        why = f"it is {given}; the inputs are {', '.join(n for n, _, _ in self.inputs)}, as in the example of prepare"
        raise error(OptionError, f"what was given has no tensor for the input {name!r}", why=why, hint=GIVE)


def is_leaf(module: nn.Module) -> bool:
    """True for modules that stay whole: torch.nn's own but containers, and the kit's."""
    if isinstance(module, (*CONTAINERS, FloatFunctional)):
        return False
    if isinstance(module, WHOLE) or getattr(module, "is_unit", False):
        return True
    return type(module).__module__.startswith("torch.nn.")


def arguments(example_inputs: Any) -> tuple[Any, ...]:
    """Example inputs as the tuple of a call's arguments; a tensor, dict or dataclass is the only one."""
    if isinstance(example_inputs, tuple) and not hasattr(example_inputs, "_fields"):
        return example_inputs
    return tuple(example_inputs) if isinstance(example_inputs, list) else (example_inputs,)


def check_devices(model: nn.Module, args: Sequence[Any]) -> None:
    """WrongDevice where the model's tensors and the inputs are on different devices."""
    own = {p.device: name for name, p in [*model.named_parameters(), *model.named_buffers()]}
    if len(own) > 1:
        why = ", ".join(f"{name!r} is on {device}" for device, name in own.items())
        hint = "model.to(device) moves all of it"
        raise trouble("the model's parts are on different devices", why=why, hint=hint, kind=WrongDevice)
    for path, leaf in walk(tuple(args)):
        if own and isinstance(leaf, Tensor) and leaf.device not in own:
            home = next(iter(own))
            where = ".".join(map(str, path))
            raise trouble(
                "model and example inputs are on different devices",
                why=f"parameters are on {home}, input {where} is on {leaf.device}",
                hint=f"move the inputs: x.to({str(home)!r})",
                kind=WrongDevice,
            )


def capture(
    model: nn.Module, example_inputs: Any, cpu: Callable[[str, nn.Module], bool] | None = None
) -> fx.GraphModule:
    """The graph of `model` on `example_inputs`; `meta["interface"]` holds the names of inputs and outputs.

    `cpu(name, module)`: True for modules whose operations are marked `meta["cpu"]`. Every node has `meta["scope"]` (the
    module that it ran in), `meta["shape"]` and `meta["dtype"]`. Raises QuantizationError where the model fails.
    """
    args = arguments(example_inputs)
    check_devices(model, args)
    recorder = Recorder(model, cpu or (lambda _name, _module: False))
    inputs = recorder.open(args)
    training = model.training
    with _PATCH, _recording(recorder):
        model.eval()
        try:
            with torch.no_grad(), recorder:
                result = model(*args)
        except HbcError:
            raise
        except Exception as cause:
            why = f"{type(cause).__name__}: {cause}".splitlines()[0]
            where = f"module {recorder.failed!r}" if recorder.failed else ""
            hint = "give example inputs that model(*example_inputs) runs with"
            raise trouble(
                "the model fails on its example inputs", where=where, why=why, hint=hint, kind=CannotCapture
            ) from cause
        finally:
            model.train(training)
    return recorder.close(result, inputs)


@contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    plain = nn.Module.__call__

    @functools.wraps(plain)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.module(module, plain, args, kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    RECORDERS.append(recorder)
    try:
        yield
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]
        RECORDERS.pop()


class Recorder(TorchFunctionMode):
    """Writes down calls of modules and of torch's functions as nodes of a graph."""

    def __init__(self, root: nn.Module, cpu: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.root, self.cpu = root, cpu
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.kept: list[Any] = []  # tensors stay alive, so that no id is given twice
        self.names = {id(m): name for name, m in root.named_modules()}
        named = [*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False)]
        self.attributes = {id(p): name for name, p in named}
        self.constants: dict[str, Tensor] = {}
        self.scopes: list[str] = []
        self.inside = 0  # > 0 in a module or function that stays whole
        self.on_cpu = 0
        self.failed = ""  # the innermost module that an exception left
        self.functionals: dict[str, int] = {}
        self.views = Views(self.graph, self.nodes, self._operation)

    def open(self, args: tuple[Any, ...]) -> tuple[tuple[str, int, tuple[str | int, ...]], ...]:
        """Placeholders for the arguments; a tensor inside of a structure is read by its path."""
        found = []
        taken: set[str] = set()
        for position, (parameter, arg) in enumerate(zip(_parameters(self.root, len(args)), args, strict=True)):
            holder = self.graph.placeholder(parameter)
            for path, leaf in walk(arg):
                if not isinstance(leaf, Tensor):
                    continue
                node = holder if not path else self.graph.call_function(take, (holder, path))
                name = ".".join([parameter, *map(str, path)]) if path else parameter
                name = name if name not in taken else f"{name}.{len(taken)}"
                taken.add(name)
                found.append((name, position, path))
                self._bind(leaf, node)
        return tuple(found)

    def module(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of a module."""
        name = self.names.get(id(module))
        if name is None or self.inside:
            return call(module, *args, **kwargs)
        self.on_cpu += self.cpu(name, module)
        self.scopes.append(name)
        try:
            if not name or not is_leaf(module):
                return self._opened(module, name, call, args, kwargs)
            return self._leaf(module, name, call, args, kwargs)
        except Exception:
            self.failed = self.failed or name
            raise
        finally:
            self.scopes.pop()
            self.on_cpu -= self.cpu(name, module)

    def _leaf(self, module: nn.Module, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.inside += 1
        try:
            out = call(module, *args, **kwargs)
            if isinstance(module, (QuantStub, DeQuantStub)):
                out = out.view_as(out)  # it gave its operand back, which must not be taken for the result
        finally:
            self.inside -= 1
        with _Off(self):
            node = self._note(self.graph.call_module(name, self._args(args), self._args(kwargs)))
            self._bound(
                out, node, args, wrote=bool(args) and out is args[0] and bool(getattr(module, "inplace", False))
            )
        return out

    def _opened(self, module: nn.Module, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(module, FloatFunctional):
            self.functionals[name] = self.functionals.get(name, 0) + 1
        return call(module, *args, **kwargs)

    def whole(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function that `wrap` keeps whole."""
        plain = function.__wrapped__  # type: ignore[attr-defined]
        if self.inside:
            return plain(*args, **kwargs)
        self.inside += 1
        try:
            out = plain(*args, **kwargs)
        finally:
            self.inside -= 1
        with _Off(self):
            node = self._note(self.graph.call_function(function, self._args(args), self._args(kwargs)))
            node.meta["cpu"] = True
            self._bind(out, node)
        return out

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.inside or not self._reads(args, kwargs):
            return out
        with _Off(self):
            self._function(func, args, kwargs, out)
        return out

    def _function(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = getattr(func, "__name__", "")
        if name == "__setitem__":
            node = self._note(self.graph.call_function(with_item, self._args(args)))
            self._bound(args[0], node, args, wrote=True)
            return
        if not any(isinstance(leaf, Tensor) for _, leaf in walk(out)):
            return  # a size, a dtype, a number: what it was becomes part of the graph
        if name == "__get__":
            target = getattr(func, "__self__", None)
            node = self.graph.call_function(getattr, (self._args(args[0]), getattr(target, "__name__", "data")))
        elif getattr(torch.Tensor, name, None) is func:
            node = self.graph.call_method(name, self._args(args), self._args(kwargs))
        elif getattr(sys.modules.get(getattr(func, "__module__", None) or ""), name, None) is None and func in _METHODS:
            node = self.graph.call_method(_METHODS[func], self._args(args), self._args(kwargs))
        else:
            node = self.graph.call_function(func, self._args(args), self._args(kwargs))
        wrote = writes(name, args, kwargs, out)
        if wrote:
            out_of_place(node)
        self._bound(out, self._note(node), args, wrote=wrote)

    def _bound(self, out: Any, node: fx.Node, args: Sequence[Any], *, wrote: bool) -> None:
        """`_bind`, and what that means for tensors that share memory."""
        self._bind(out, node)
        if wrote and isinstance(out, Tensor):
            self.views.wrote(out, {k: node.meta[k] for k in ("scope", "cpu") if k in node.meta})
            return
        for path, leaf in walk(out):
            if isinstance(leaf, Tensor) and args:
                self.views.note(leaf, args[0], node, path)

    def _operation(self, node: fx.Node) -> str:
        return (
            type(self.root.get_submodule(str(node.target))).__name__ if node.op == "call_module" else name_of_call(node)
        )

    def _note(self, node: fx.Node) -> fx.Node:
        node.meta["scope"] = self.scopes[-1] if self.scopes else ""
        node.meta["cpu"] = self.on_cpu > 0
        node.meta["functional"] = bool(self.scopes) and self.scopes[-1] in self.functionals
        return node

    def _reads(self, args: Any, kwargs: Any) -> bool:
        return any(isinstance(leaf, Tensor) and id(leaf) in self.nodes for _, leaf in walk([args, kwargs]))

    def _args(self, args: Any) -> Any:
        return rebuild(args, self._arg)

    def _arg(self, value: Any) -> Any:
        if isinstance(value, torch.Size):
            return tuple(value)
        return self._node(value) if isinstance(value, Tensor) else value

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self.nodes:
            return self.nodes[id(tensor)]
        name = self.attributes.get(id(tensor))
        if name is None:
            name = f"{COMPUTED}{len(self.constants)}"
            self.constants[name] = tensor.detach().clone()
        node = self.graph.create_node("get_attr", name)
        self._bind(tensor, self._note(node))
        return node

    def _bind(self, out: Any, node: fx.Node) -> None:
        if isinstance(out, Tensor):
            self.nodes[id(out)] = node
            self.kept.append(out)
            node.meta["shape"], node.meta["dtype"] = tuple(out.shape), out.dtype
            return
        for path, leaf in walk(out):
            if isinstance(leaf, Tensor):
                node.meta.setdefault("dtype", leaf.dtype)
                self._bind(leaf, self._note(self.graph.call_function(take, (node, path))))

    def close(self, result: Any, inputs: tuple[tuple[str, int, tuple[str | int, ...]], ...]) -> fx.GraphModule:
        """The graph module, its results in the structure that forward returned."""
        reused = next(((n, k) for n, k in self.functionals.items() if k > 1), None)
        if reused is not None:
            raise trouble(
                f"the FloatFunctional {reused[0]!r} is called {reused[1]} times in one forward",
                why="each call has a range of its own, and an instance has one scale",
                hint="make one FloatFunctional per call in __init__, or write x + y",
                kind=FunctionalReused,
            )
        leaves = [(path, leaf) for path, leaf in walk(result) if isinstance(leaf, Tensor)]
        if not leaves:
            why = f"it returned {type(result).__name__}"
            raise trouble("forward returns no tensor", why=why, hint="return tensors", kind=CannotCapture)
        count = iter(range(len(leaves)))
        template = rebuild(result, lambda leaf: Leaf(next(count)) if isinstance(leaf, Tensor) else leaf)
        nodes = tuple(self._node(leaf) for _, leaf in leaves)
        root: dict[str, Any] | nn.Module = self.root
        for name, value in self.constants.items():
            self.root.register_buffer(name, value, persistent=False)
        if isinstance(template, Leaf):
            self.graph.output(nodes[0])
        else:
            self.root.add_module(OUTPUTS, OutputTree(template))
            self.graph.output(self.graph.call_module(OUTPUTS, nodes))
        names = tuple(name_of(path, result, "output") for path, _ in leaves)
        module = fx.GraphModule(root, self.graph, class_name=type(self.root).__name__)
        module.meta["interface"] = Interface(inputs, names, template)
        for part in module.modules():
            if getattr(part, "inplace", False):  # writes are values of their own by now
                setattr(part, "inplace", False)  # noqa: B010 - nn.Module has no such attribute
        drop_dead(module)
        return module


def _methods() -> dict[Any, str]:
    """Methods of tensors by what torch hands on of them: `x ** 3` is named `pow`, and is no function of that name."""
    found = {}
    for name in dir(Tensor):
        method = inspect.getattr_static(Tensor, name)
        if name.startswith("__") and callable(method) and not isinstance(method, type):
            found[method] = name
    return found


_METHODS = _methods()


class _Off:
    """No recording meanwhile."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        self.recorder.inside += 1

    def __exit__(self, *_: object) -> None:
        self.recorder.inside -= 1


def _parameters(root: nn.Module, count: int) -> list[str]:
    """Names of the first `count` parameters of forward."""
    known = [
        p.name
        for p in inspect.signature(root.forward).parameters.values()
        if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    return [known[i] if i < len(known) else f"input_{i}" for i in range(count)]


def drop_dead(module: fx.GraphModule) -> None:
    """Drop nodes that nothing reads; writes into tensors stay."""
    keep = {"placeholder", "output"}
    for node in reversed(list(module.graph.nodes)):
        if not node.users and node.op not in keep and not node.meta.get("writes"):
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments, in order, each once."""
    return list(dict.fromkeys(node.all_input_nodes))
