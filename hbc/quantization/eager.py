"""`prepare(method="eager")`: modules are swapped in the user's own tree, and the user's forward keeps running.

Which modules fuse, and where each operand's integers come from, is read off one captured run, as for
`method="capture"`; then every unit takes its module's place. `convert` captures the swapped model again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor, fx, nn

from hbc.diagnostics import NotEager

from .capturing import capture
from .errors import trouble
from .fake_quantize import FakeQuantize, FakeQuantSpec
from .ops import BATCH_NORMS, CLIPPED, RELUS, WEIGHTED, operation
from .pytree import walk
from .rewrite import Rewrite
from .stubs import FloatFunctional, QuantStub
from .units import QuantizedOperation, QuantizedUnit

_RELUS = (nn.ReLU, nn.ReLU6)
_METHODS = (
    "add", "sub", "mul", "div", "matmul", "cat", "sum", "mean", "pow", "sqrt", "exp", "maximum", "minimum", "softmax",
    "clamp",
)  # fmt: skip


class EagerFunctional(QuantizedOperation):
    """What a FloatFunctional becomes: its methods run the unit."""

    def called(self, name: str, args: Any, kwargs: Any) -> Tensor:
        """One call of method `name`. NotEager where it isn't the one that the example has shown."""
        own = {id(t) for t in (*self.body.parameters(), *self.body.buffers())}
        given = [t for _, t in walk([args, kwargs]) if isinstance(t, Tensor) and id(t) not in own]
        tensors = list({id(t): t for t in given}.values())
        wanted = sum(n.op == "placeholder" for n in self.body.graph.nodes)
        if name != self.operation or len(tensors) != wanted:
            raise trouble(
                f"the FloatFunctional {self.unit_name!r} is called as {name} of {len(tensors)} tensors",
                why=f"with the example inputs it was {self.operation} of {wanted}",
                hint="make one FloatFunctional per operation in __init__",
                kind=NotEager,
            )
        return self(*tensors)


def _method(name: str) -> Any:
    def run(self: EagerFunctional, *args: Any, **kwargs: Any) -> Tensor:
        return self.called(name, args, kwargs)

    run.__name__ = name
    return run


for _name in _METHODS:
    setattr(EagerFunctional, _name, _method(_name))
EagerFunctional.add_scalar = EagerFunctional.add  # type: ignore[attr-defined]
EagerFunctional.mul_scalar = EagerFunctional.mul  # type: ignore[attr-defined]


class EagerRewrite(Rewrite):
    """Units of modules and FloatFunctionals alone; everything else on integers is an error."""

    def run(self) -> fx.GraphModule:
        if not self.has_stubs:
            raise trouble(
                "there is no QuantStub on the way of the example inputs",
                why="method='eager' quantises what the model's author marks",
                hint="x = self.quant(x) first in forward, with self.quant = QuantStub(); or method='capture'",
                kind=NotEager,
            )
        _mark(self.graph, self.modules)
        return super().run()

    def _operation(self, node: fx.Node, kind: str) -> None:
        if node.op != "call_module" and not node.meta.get("functional"):
            raise trouble(
                f"{kind} is called on a quantised tensor",
                where=_where(node),
                why="a function has no place for a scale of its own",
                hint=_instead(kind),
                kind=NotEager,
            )
        super()._operation(node, kind)

    def _quantize(self, node: fx.Node, name: str, spec: FakeQuantSpec | None = None) -> fx.Node:
        raise trouble(
            f"{name.removesuffix('_input')!r} reads a real tensor",
            where=_where(node),
            why=f"{operation(node, self.modules) or 'an input'} gives reals, and other operands are integers",
            hint="put a QuantStub there, one of its own",
            kind=NotEager,
        )


def _where(node: fx.Node) -> str:
    scope = str(node.meta.get("scope", ""))
    return f"forward of module {scope!r}" if scope else "the model's forward"


def _instead(kind: str) -> str:
    if kind in _METHODS:
        return f"self.{kind} = FloatFunctional() in __init__, and self.{kind}.{kind}(…) here; or method='capture'"
    return f"use the module of torch.nn that does {kind}; or method='capture', which takes functions as they are"


def _mark(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Set meta["alone"] on nodes that must not join their operand's unit, as they would run again in forward."""
    calls = Counter(str(n.target) for n in graph.nodes if n.op == "call_module")
    alone: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_module":
            node.meta["alone"] = True
            continue
        follows = operation(node, modules) in RELUS or isinstance(modules[str(node.target)], BATCH_NORMS)
        if follows and not _joins(node, modules, calls, alone):
            alone.add(str(node.target))
    for node in graph.nodes:
        if node.op == "call_module" and str(node.target) in alone:
            node.meta["alone"] = True


def _joins(node: fx.Node, modules: dict[str, nn.Module], calls: Counter[str], alone: set[str]) -> bool:
    """True where a relu or batch norm follows one layer that is called once, and nothing else reads between."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or len(source.users) != 1 or calls[str(node.target)] != 1:
        return False
    if source.op != "call_module":
        return bool(source.meta.get("functional")) and operation(source, modules) in CLIPPED
    if calls[str(source.target)] != 1 or str(source.target) in alone:
        return False
    kinds = WEIGHTED if isinstance(modules[str(node.target)], BATCH_NORMS) else (*WEIGHTED, *BATCH_NORMS)
    return isinstance(modules[str(source.target)], kinds)


def swap(model: nn.Module, prepared: fx.GraphModule, reached: set[str]) -> list[str]:
    """Put the units of `prepared` into `model`; hints on shared modules, and on those that aren't among `reached`."""
    hints = []
    names = dict(model.named_modules())
    sources: dict[str, list[list[FakeQuantize | None]]] = {}
    for node in (n for n in prepared.graph.nodes if n.op == "call_module"):
        unit = prepared.get_submodule(str(node.target))
        if not isinstance(unit, QuantizedUnit):
            continue
        place = str(node.target) if str(node.target) in names else _original(str(node.target), names)
        sources.setdefault(place, []).append(unit.sources)
        if len(sources[place]) == 1:
            if isinstance(names[place], FloatFunctional):
                unit.__class__ = EagerFunctional
            unit.eager = True
            _put(model, place, unit)
    for place, found in sources.items():
        if len(found) > 1:
            hints.append(f"{place}: it is called {len(found)} times; one range serves all of them")
            unit = model.get_submodule(place)
            assert isinstance(unit, QuantizedUnit)
            unit.sources = [s if all(f[i] is s for f in found) else None for i, s in enumerate(found[0])]
    kept = {str(n.target) for n in prepared.graph.nodes} | set(sources)
    for name, module in names.items():
        if name in reached and name not in kept and (isinstance(module, BATCH_NORMS) or type(module) in _RELUS):
            _put(model, name, nn.Identity())  # it is in the unit before it
        elif isinstance(module, (*WEIGHTED, FloatFunctional, QuantStub)) and name not in reached:
            hints.append(f"{name}: the example inputs don't reach it; it stays real")
    return hints


def _original(name: str, names: dict[str, nn.Module]) -> str:
    """The module of a second call: `conv` of `conv_2`."""
    base, _, number = name.rpartition("_")
    if base in names and number.isdigit():
        return base
    msg = f"no module for unit {name!r}"
    raise AssertionError(msg)


def _put(root: nn.Module, name: str, module: nn.Module) -> None:
    path, _, last = name.rpartition(".")
    module.train(root.training)
    setattr(root.get_submodule(path), last, module)


def as_graph(model: nn.Module, args: Any = None) -> fx.GraphModule:
    """A prepared model as a graph of units: itself, or of an eager one what it does on these arguments.

    By default these are the ones that it was prepared with. The graph's units are the model's own.
    """
    if isinstance(model, fx.GraphModule):
        return model
    meta: dict[str, Any] = model.meta  # type: ignore[assignment]
    args = meta["example_inputs"] if args is None else args
    twin = model.__class__.__new__(model.__class__)
    twin.__dict__ = {**model.__dict__, **{k: dict(model.__dict__[k]) for k in ("_modules", "_buffers", "_parameters")}}
    switches = [(fq, fq.observing, fq.quantizing) for fq in model.modules() if isinstance(fq, FakeQuantize)]
    for fq, _, _ in switches:
        fq.observing = fq.quantizing = False  # the run is only watched
    try:
        graph = capture(twin, args)
    finally:
        for fq, observing, quantizing in switches:
            fq.observing, fq.quantizing = observing, quantizing
    graph.meta.update({k: v for k, v in meta.items() if k != "interface"})
    graph.hints = meta["hints"]
    return graph
