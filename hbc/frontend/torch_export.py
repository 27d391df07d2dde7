"""`.pt2` → records: the graph of a `torch.export` program, run on the example."""

from __future__ import annotations

import operator as py
from collections.abc import Sequence
from typing import Any

from hbc.diagnostics import FrontendError, NotTaken

from .torch_api import Operator, operator
from .torch_recorder import Recorder, Spot
from .torch_views import Writer
from .torchscript import user_line

_CHECKS = ("_assert", "sym_constrain", "_guards")  # what exporters leave to check an input's sizes
_PYTHON = {getattr(py, n) for n in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "getitem", "eq",
                                    "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_")}  # fmt: skip


class ExportWalker:
    """One walk over one exported program."""

    def __init__(self, recorder: Recorder, program: Any) -> None:
        self.recorder, self.torch, self.program = recorder, recorder.torch, program
        self.writer = Writer(recorder)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The values of the user's outputs on `inputs`, in the order of the program's user inputs."""
        values = self._start(inputs)
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                values[node.name] = self._call(node, values)
            elif node.op == "call_module" and not any(word in str(node.target) for word in _CHECKS):
                raise self._fail(node, f"the program calls the module {node.target!r} whole")
            elif node.op == "output":
                results = self._values(node.args[0], values)
        wanted = self.program.graph_signature.output_specs
        return [r for r, s in zip(results, wanted, strict=True) if s.kind.name == "USER_OUTPUT"]

    def _start(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Inputs, parameters, buffers and constants by the names of their placeholders."""
        given = iter(inputs)
        state, constants = self.program.state_dict, self.program.constants
        values: dict[str, Any] = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT":
                constant = getattr(spec.arg, "value", None)
                tensor_input = type(spec.arg).__name__ == "TensorArgument"
                values[spec.arg.name] = next(given) if tensor_input else constant
                continue
            found = state[spec.target] if spec.target in state else constants.get(spec.target)
            if isinstance(found, self.torch.Tensor):
                found = found.detach()
                self.recorder.name_constant(found, spec.target)
            values[spec.arg.name] = found
        return values

    def _call(self, node: Any, values: dict[str, Any]) -> Any:
        args = self._values(node.args, values)
        kwargs = {k: self._values(v, values) for k, v in node.kwargs.items()}
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return self._call_python(node, args)
        if any(word in schema.name for word in _CHECKS):
            return None
        function = operator(self.torch, schema.name, schema.overload_name)
        assert function is not None, schema
        given = [*args, *(kwargs.get(n, _default(a)) for n, a in _rest(schema, function, len(args)))]
        return self.writer.apply(schema.name, function, function.names, given, self._spot(node))

    def _call_python(self, node: Any, args: list[Any]) -> Any:
        if getattr(node.target, "__name__", "") == "with_effects" and _is_check(args[1]):
            return (None, None)  # a token that keeps checks in order, and what the check gives: nothing
        if node.target not in _PYTHON:
            why = f"it calls {getattr(node.target, '__name__', node.target)!s} with graphs of its own"
            hint = "export with program.run_decompositions(), and without torch.cond and the like"
            raise self._fail(node, "the program has control flow that is decided at run time", why, hint)
        return node.target(*args)

    def _values(self, given: Any, values: dict[str, Any]) -> Any:
        if isinstance(given, (list, tuple)):
            return [self._values(v, values) for v in given]
        return values[given.name] if isinstance(given, self.torch.fx.Node) else given

    def _spot(self, node: Any) -> Spot:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        scope = str(stack[-1][0]) if stack else ""
        scope = scope.removeprefix("L['self']").removeprefix("L__self__").lstrip(".")
        return Spot(scope, user_line(str(node.meta.get("stack_trace") or "")))

    def _fail(self, node: Any, what: str, why: str = "", hint: str = "") -> FrontendError:
        return self.recorder.fail(self._spot(node), str(node.target), what, why, hint, NotTaken)


def _is_check(function: Any) -> bool:
    return any(word in str(function) for word in (*_CHECKS, "_linalg_check"))


def _rest(schema: Any, function: Operator, given: int) -> list[tuple[str, Any]]:
    return list(zip(function.names[given:], schema.arguments[given:], strict=True))


def _default(argument: Any) -> Any:
    return argument.default_value
