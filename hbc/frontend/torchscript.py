"""TorchScript → records: the code of the model, module by module, run on the example.

Nothing is frozen, inlined or optimised first: that would fold fake-quantised weights into constants without scales, and
batch norms into weights. Calls of submodules are followed one by one, so each operator knows the path of its module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hbc.diagnostics import FrontendError, NotTaken

from .problem import problem
from .torch_api import Operator, operator
from .torch_files import ScriptFile
from .torch_recorder import Live, Recorder, Spot
from .torch_script_python import PYTHON, UNDECIDED, NamedItems, python_op
from .torch_script_quant import FirstOf, is_observer, quantiser
from .torch_views import Writer

DEPTH = 200  # calls within calls


@dataclass(frozen=True)
class ModuleAt:
    """A module of the model and its path in it: "" for the model itself."""

    module: Any
    path: str


@dataclass
class Frame:
    """Values by name within one call, and the module that it belongs to."""

    spot: Spot
    values: dict[str, Any] = field(default_factory=dict)


class Walker:
    """One walk over one model."""

    def __init__(self, recorder: Recorder, script: ScriptFile) -> None:
        self.recorder, self.torch = recorder, recorder.torch
        self.units, self.fields = script.units, script.fields
        self.writer = Writer(recorder)
        self.set: dict[tuple[str, str], Any] = {}  # attributes that the model itself sets
        self._depth = 0
        self._last: dict[int, tuple[Any, list[list[str]]]] = {}

    def run(self, module: Any, inputs: Sequence[Any]) -> Any:
        """What `forward` returns on `inputs` (Lives): Lives and constants in tuples, lists and dicts."""
        return self._method(ModuleAt(module, ""), "forward", inputs)

    def settled(self, results: Any) -> Any:
        """`results` as they are once every write is done."""
        if isinstance(results, dict):
            return {k: self.settled(v) for k, v in results.items()}
        if isinstance(results, NamedItems):
            return NamedItems([self.settled(v) for v in results], results.fields)
        if isinstance(results, (list, tuple)):
            return [self.settled(v) for v in results]
        return self.writer.current(results)

    # -- calls

    def _method(self, at: ModuleAt, name: str, args: Sequence[Any]) -> Any:
        graph = at.module._c._get_method(name).graph  # noqa: SLF001 - there is no public way to a method by name
        return self._call(graph, [at, *args], Spot(at.path))

    def _call(self, graph: Any, args: Sequence[Any], spot: Spot) -> Any:
        self._depth += 1
        if self._depth > DEPTH:
            raise problem("the model calls itself without end", where=self.recorder.file, kind=NotTaken)
        frame = Frame(spot, {v.debugName(): a for v, a in zip(graph.inputs(), args, strict=True)})
        results = self._block(graph, frame)
        self._depth -= 1
        return results[0] if len(results) == 1 else tuple(results)

    def _block(self, block: Any, frame: Frame, *, frees: bool = True) -> list[Any]:
        ends = self._ends(block) if frees else None
        for i, node in enumerate(block.nodes()):
            self._node(node, frame)
            for name in () if ends is None else ends[i]:
                frame.values.pop(name, None)
        return [frame.values[v.debugName()] for v in block.outputs()]

    def _ends(self, graph: Any) -> list[list[str]]:
        """By node: the names that nothing reads after it. Their tensors may go."""
        nodes = list(graph.nodes())
        last: dict[str, int] = {}
        for i, node in enumerate(nodes):
            last.update(dict.fromkeys(_names(node), i))
        for value in graph.outputs():
            last.pop(value.debugName(), None)
        ends: list[list[str]] = [[] for _ in nodes]
        for name, i in last.items():
            ends[i].append(name)
        return ends

    # -- nodes

    def _node(self, node: Any, frame: Frame) -> None:
        kind, outputs = node.kind(), list(node.outputs())
        if kind in {"prim::If", "prim::Loop"}:
            results = self._branch(node, frame) if kind == "prim::If" else self._loop(node, frame)
        else:
            made = self._value(kind, node, frame, [frame.values[v.debugName()] for v in node.inputs()])
            several = len(outputs) != 1
            results = (list(made) if isinstance(made, (list, tuple)) else []) if several else [made]
            if isinstance(made, FirstOf) and several:
                results += [None] * (len(outputs) - 1)
        for output, result in zip(outputs, results, strict=True):
            frame.values[output.debugName()] = result

    def _value(self, kind: str, node: Any, frame: Frame, args: list[Any]) -> Any:
        if kind == "prim::Constant":
            return self._constant(node)
        if kind == "prim::GetAttr":
            return self._attribute(args[0], node.s("name"))
        if kind == "prim::SetAttr":
            self.set[args[0].path, node.s("name")] = args[1]
            return ()
        if kind == "prim::CallMethod":
            return self._call_method(node, args, frame)
        if kind == "prim::CallFunction":
            return self._call_function(node, args, frame)
        if kind == "prim::RaiseException":
            why = str(args[0]) if args else ""
            hint = "check --example against what the model takes"
            raise self._fail(node, frame, "the model raises an exception on this example", why, hint)
        if kind == "prim::TupleConstruct" and (fields := self.fields.get(node.output().type().annotation_str)):
            return NamedItems(args, fields)
        if kind in PYTHON:
            given = [a if isinstance(a, (list, tuple, dict)) else self.writer.current(a) for a in args]
            made = python_op(self.torch, kind, node, given)
            if made is not UNDECIDED:
                return made
        return self._operator(kind, node, args, frame)

    def _constant(self, node: Any) -> Any:
        output = node.output()
        if output.type().kind() == "FunctionType":
            return output.type().annotation_str
        value = output.toIValue()
        if isinstance(value, self.torch.Tensor):
            self.recorder.name_constant(value, self.recorder.fresh("constant"))
        return value

    def _attribute(self, base: Any, name: str) -> Any:
        if not isinstance(base, ModuleAt):
            return getattr(base, name)
        path = f"{base.path}.{name}" if base.path else name
        if (base.path, name) in self.set:
            return self.set[base.path, name]
        value = getattr(base.module, name)
        if isinstance(value, self.torch.Tensor):
            value = value.detach() if value.requires_grad else value
            value = self._once(path, value)
            self.recorder.name_constant(value, path)
        return ModuleAt(value, path) if isinstance(value, self.torch.jit.ScriptModule) else value

    def _once(self, path: str, value: Any) -> Any:
        """One tensor object per attribute: writes are followed by identity."""
        return self.set.setdefault((path, ""), value)

    def _call_method(self, node: Any, args: list[Any], frame: Frame) -> Any:
        at, rest = args[0], args[1:]
        if not isinstance(at, ModuleAt):
            raise self._fail(node, frame, f"a call of {node.s('name')!r} of no module", kind=NotTaken)
        if is_observer(at.module):
            self.recorder.note("it holds observers, which hbc leaves out: convert the model, or fake-quantise it")
            return rest[0]
        found = quantiser(at.module, self.torch) if node.s("name").startswith("forward") else None
        if found is not None:
            return found.apply(self.recorder, self.writer.current(rest[0]), at.path, node.output().type().kind())
        return self._method(at, node.s("name"), rest)

    def _call_function(self, node: Any, args: list[Any], frame: Frame) -> Any:
        function = self.units.find_function(args[0])
        if function is None:
            raise self._fail(node, frame, f"the function {args[0]!r} isn't in the file", kind=NotTaken)
        return self._call(function.graph, args[1:], frame.spot)

    def _branch(self, node: Any, frame: Frame) -> list[Any]:
        taken = self._truth(node, frame, frame.values[node.inputsAt(0).debugName()])
        then, otherwise = node.blocks()
        return self._block(then if taken else otherwise, frame, frees=False)

    def _loop(self, node: Any, frame: Frame) -> list[Any]:
        trips, condition, *carried = [frame.values[v.debugName()] for v in node.inputs()]
        (body,) = node.blocks()
        names = [v.debugName() for v in body.inputs()]
        i = 0
        while i < int(trips) and self._truth(node, frame, condition):
            frame.values.update(zip(names, [i, *carried], strict=True))
            condition, *carried = self._block(body, frame, frees=False)
            i += 1
        return carried

    def _truth(self, node: Any, frame: Frame, value: Any) -> bool:
        value = self.writer.current(value)
        if isinstance(value, Live):
            if value.ref.constant is None:
                raise self.recorder.data_dependent(self._spot(node, frame), node.kind())
            value = value.tensor
        return bool(value)

    def _operator(self, kind: str, node: Any, args: list[Any], frame: Frame) -> Any:
        spot = self._spot(node, frame)
        function = self._function(kind, node)
        if function is None:
            raise self._fail(node, frame, f"PyTorch {self.torch.__version__} has no operator {kind}", kind=NotTaken)
        return self.writer.apply(kind, function, function.names, args, spot)

    def _function(self, kind: str, node: Any) -> Operator | None:
        text = node.schema()
        if not text or text == "(no schema)":
            return None
        schema = self.torch._C.parse_schema(text)  # noqa: SLF001 - as above
        return operator(self.torch, kind, schema.overload_name)

    # -- messages

    def _spot(self, node: Any, frame: Frame) -> Spot:
        return Spot(frame.spot.scope, user_line(node.sourceRange()))

    def _fail(
        self, node: Any, frame: Frame, what: str, why: str = "", hint: str = "", kind: Any = NotTaken
    ) -> FrontendError:
        return self.recorder.fail(self._spot(node, frame), node.kind(), what, why, hint, kind)


def _names(node: Any) -> list[str]:
    """What a node reads and makes, inner blocks included."""
    names = [v.debugName() for v in (*node.inputs(), *node.outputs())]
    for block in node.blocks():
        names += [v.debugName() for v in block.outputs()]
        for inner in block.nodes():
            names += _names(inner)
    return names


_TRACED = re.compile(r"^(?P<file>\S+\.py)\((?P<line>\d+)\): (?P<function>\S+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^\s*File "(?P<file>[^"]+\.py)", line (?P<line>\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"[\\/](?:torch|torchvision|timm)[\\/]|^code[\\/]__torch__")


def user_line(source: str) -> str:
    """`net.py:27`: the innermost line of the user's own code in what TorchScript or FX keeps about an operator."""
    found = [*_TRACED.finditer(source), *reversed(list(_SCRIPTED.finditer(source)))]
    own = [m for m in found if not _LIBRARY.search(m["file"])]
    if not own:
        return ""
    file = re.split(r"[\\/]", own[0]["file"])[-1]
    return f"{file}:{own[0]['line']}"
