"""A graph of units → QDQ ONNX: the form that hbc's importer takes, so that every pass applies. Scales are verbatim."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, fx, nn

from hbc.diagnostics import NotExportable
from hbc_runtime import numerics

from .capturing import OUTPUTS, Interface, capture
from .errors import trouble
from .fake_quantize import FakeQuantize
from .foreign import Bound, foreign
from .onnx_rules import RULES, Call, NoForm, pair
from .onnx_writer import NUMPY, Form, Writer
from .ops import constant_of, is_kept, operation
from .pytree import take
from .segment_lut import Opened, SegmentLUT
from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted

ELEM_TYPES = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64, torch.bool: TensorProto.BOOL}
ELEM_TYPES |= {torch.int32: TensorProto.INT32, torch.uint8: TensorProto.UINT8, torch.int8: TensorProto.INT8}


def shaped(module: fx.GraphModule, args: Sequence[Any]) -> None:
    """Run the graph on `args` and note shape and dtype of every node."""

    class Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            if isinstance(out, Tensor):
                n.meta["shape"], n.meta["dtype"] = tuple(out.shape), out.dtype
            return out

    with torch.no_grad(), in_eval(module):
        interpreter = Shapes(module, garbage_collect_values=True)
        interpreter.extra_traceback = False  # it would rewrite what our errors say
        interpreter.run(*args)


@contextmanager
def in_eval(module: nn.Module) -> Iterator[None]:
    """Eval mode meanwhile, so that batch norms keep their statistics; then each part's own mode again."""
    training = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode


def to_onnx(
    module: fx.GraphModule,
    args: Sequence[Any],
    name: str,
    output_names: Sequence[str] | None = None,
    form: Form = "compiled",
) -> onnx.ModelProto:
    """The whole model; inputs and outputs have the names of the user's structures."""
    modes = {u: u.mode for u in module.modules() if isinstance(u, QuantizedUnit)}
    for unit in modes:
        unit.mode = "plain"
    try:
        with in_eval(module):
            shaped(module, args)
            return _Emitter(module, Writer(form)).model(name, output_names)
    finally:
        for unit, mode in modes.items():
            unit.mode = mode


_AS_ANOTHER = {"to", "type_as", "expand_as", "view_as", "reshape_as"}  # the other operand says how, and no more


class _Emitter:
    def __init__(self, module: fx.GraphModule, writer: Writer) -> None:
        self.module, self.writer = module, writer
        self.modules: dict[str, nn.Module] = dict(module.named_modules())
        self.values: dict[fx.Node, Any] = {}

    def model(self, name: str, output_names: Sequence[str] | None) -> onnx.ModelProto:
        interface: Interface = self.module.meta["interface"]
        names = list(output_names) if output_names is not None else list(interface.outputs)
        if len(names) != len(interface.outputs):
            msg = f"{len(names)} output names for {len(interface.outputs)} outputs"
            raise trouble(msg, why=f"the outputs are {', '.join(interface.outputs)}", kind=NotExportable)
        paths = {(position, path): n for n, position, path in interface.inputs}
        position = -1
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                position += 1
                if (position, ()) in paths:
                    self._input(node, paths[position, ()])
                else:
                    self.values[node] = position
            elif node.op == "output":
                self._outputs(node.args[0], names)
            elif node.target is take and isinstance(self.values.get(node.args[0]), int):
                self._input(node, paths[self.values[node.args[0]], tuple(node.args[1])])
            else:
                self.visit(node)
        return self.writer.model(name)

    def _input(self, node: fx.Node, name: str) -> None:
        elem_type = ELEM_TYPES.get(node.meta["dtype"])
        if elem_type is None:
            why = f"it is {node.meta['dtype']}"
            raise trouble(f"input {name!r} can't be exported", why=why, hint="give float32", kind=NotExportable)
        self.values[node] = self.writer.input(name, node.meta["shape"], elem_type)
        self.writer.shapes[self.values[node]] = node.meta["shape"]

    def _outputs(self, result: Any, names: list[str]) -> None:
        collected = result.op == "call_module" and result.target == OUTPUTS
        for node, name in zip(result.args if collected else [result], names, strict=True):
            elem_type = ELEM_TYPES.get(node.meta.get("dtype"), TensorProto.FLOAT)
            self.writer.output(self.values[node], name, node.meta.get("shape"), elem_type)

    def visit(self, node: fx.Node) -> None:
        """Write down one node."""
        if node.op == "get_attr":
            self.values[node] = constant_of(node, self.module)
            return
        if node.op == "call_module" and node.target == OUTPUTS:
            return
        found = self.modules.get(str(node.target)) if node.op == "call_module" else None
        self.writer.prefix = str(node.target) if node.op == "call_module" else str(node.meta.get("scope") or node.name)
        before = self._parted(node, found)
        if isinstance(found, QuantizedUnit):
            result: Any = self._unit(found, [self.values[a] for a in node.args if isinstance(a, fx.Node)])
        elif node.target is take:
            source, path = cast("tuple[fx.Node, Any]", node.args)
            result = take(self.values[source], tuple(path))
        elif getattr(node.target, "is_wrapped", False):
            result = self._whole(node)
        elif isinstance(found, SegmentLUT):
            (source,) = node.all_input_nodes
            result = self._inlined(Opened(found), [source])
        else:
            result = self.operation(node, found)
        self.values.update(before)
        self.values[node] = result
        if isinstance(result, str) and "shape" in node.meta:
            self.writer.shapes[result] = node.meta["shape"]

    def _parted(self, node: fx.Node, module: nn.Module | None) -> dict[fx.Node, Any]:
        """Barriers between what is kept on the CPU and what isn't, across which no pass computes.

        The node reads them; what their operands were is returned, for other readers.
        """
        before: dict[fx.Node, Any] = {}
        if self.writer.portable:
            return before
        for operand in node.all_input_nodes:
            value = self.values.get(operand)
            enters = is_kept(node, self.modules) and isinstance(self._module(operand), QuantizedUnit)
            leaves = isinstance(module, QuantizedInput) and (
                is_kept(operand, self.modules) or self._reads_units(operand)
            )
            if (enters or leaves) and isinstance(value, str):
                scope = str(node.target if node.op == "call_module" else node.meta.get("scope") or node.name)
                before[operand] = value
                self.values[operand] = self.writer.barrier(value, scope)
        return before

    def _reads_units(self, node: fx.Node) -> bool:
        """True for reals that are made of a unit's values: they are quantised as reals, and not by integers."""
        if node.op not in {"call_module", "call_function", "call_method"} or node.target is take:
            return any(map(self._reads_units, node.all_input_nodes)) if node.target is take else False
        if isinstance(self._module(node), QuantizedUnit):
            return False
        reads = node.all_input_nodes[:1] if operation(node, self.modules) in _AS_ANOTHER else node.all_input_nodes
        return any(isinstance(self._module(n), QuantizedUnit) or self._reads_units(n) for n in reads)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.modules.get(str(node.target)) if node.op == "call_module" else None

    def operation(self, node: fx.Node, module: nn.Module | None) -> Any:
        """An operation in reals."""
        kind = operation(node, self.modules)
        args: Any = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) or type(module).__name__.startswith(
            "ConvT"
        ):
            return self._real_layer(module, args[0])
        rule = RULES.get(kind)
        if rule is None:
            return self._foreign(node, kind, module)
        first = args[0] if args else None
        rank = len(self.writer.shapes.get(first, ())) if isinstance(first, str) else len(node.meta.get("shape", ()))
        try:
            return rule(Call(self.writer, node, kind, tuple(args), dict(kwargs), module, self.writer.shapes, rank))
        except NoForm:
            return self._foreign(node, kind, module)

    def _foreign(self, node: fx.Node, kind: str, module: nn.Module | None) -> Any:
        """An operation without a rule, as hbc's front end for PyTorch reads it."""
        tensors = [n for n in dict.fromkeys(node.all_input_nodes) if isinstance(self.values[n], str)]
        fixed = {n: v.detach() if isinstance(v, Tensor) else v for n, v in self.values.items() if n not in tensors}

        def call(given: Sequence[Tensor]) -> Any:
            table = {**fixed, **dict(zip(tensors, given, strict=True))}
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: table[n])
            if module is not None:
                return module(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

        examples = [torch.zeros(n.meta["shape"], dtype=n.meta["dtype"]) for n in tensors]
        where = f"module {str(node.meta.get('scope') or node.target)!r}"
        return foreign(self.writer, Bound(call, module), [self.values[n] for n in tensors], examples, kind, where)

    def _real_layer(self, layer: Any, x: str) -> str:
        unit = QuantizedWeighted("", "", layer, None, "")
        weight = layer.weight.detach().cpu().numpy()
        bias = None if layer.bias is None else layer.bias.detach().cpu().numpy()
        return self._product(unit, x, weight, bias, None)

    def _whole(self, node: fx.Node) -> Any:
        """A wrapped function: its own operations, in reals."""
        target: Any = node.target
        inner = _Function(target.__wrapped__, node.args, node.kwargs)
        tensors = list(dict.fromkeys(node.all_input_nodes))
        return self._inlined(inner.bound(tensors), tensors)

    def _inlined(self, model: nn.Module, tensors: list[fx.Node]) -> Any:
        """What a module computes of some nodes, operation by operation."""
        examples = tuple(torch.zeros(n.meta["shape"], dtype=n.meta["dtype"]) for n in tensors)
        graph = capture(model, examples)
        part = _Emitter(graph, self.writer)
        holders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        part.values = {h: self.values[t] for h, t in zip(holders, tensors, strict=False)}
        shaped(graph, examples)
        for n in graph.graph.nodes:
            if n.op not in {"placeholder", "output"}:
                part.visit(n)
        result = next(n for n in graph.graph.nodes if n.op == "output").args[0]
        if result.op == "call_module" and result.target == OUTPUTS:
            return [part.values[a] for a in result.args]
        return part.values[result]

    def _unit(self, unit: QuantizedUnit, operands: list[Any]) -> str:
        if isinstance(unit, QuantizedInput):
            y = operands[0]
        elif isinstance(unit, QuantizedWeighted):
            y = self.weighted(unit, operands)
        else:
            assert isinstance(unit, QuantizedOperation)
            y = self.body(unit, operands)
        fq = unit.activation_post_process
        return y if fq is None else self.quantized(y, fq, unit.unit_name)

    def quantized(self, x: str, fq: FakeQuantize, name: str) -> str:
        """A value through its FakeQuantize."""
        fq.require_scale()
        scale = fq.scale.detach().cpu().numpy()
        return self.writer.quantized(x, fq.spec.dtype, scale, narrow=fq.spec.narrow, name=name)

    def body(self, unit: QuantizedOperation, operands: list[Any]) -> str:
        """The operations inside of a unit."""
        divisor = () if self.writer.portable else unit.divisor()
        if divisor:
            return str(self.writer.op("Div", operands, domain="hbc", divisor=list(divisor)))
        part = _Emitter(unit.body, self.writer)
        holders = [n for n in unit.body.graph.nodes if n.op == "placeholder"]
        examples = [torch.zeros(self.writer.shapes[o]) for o in operands]
        shaped(unit.body, examples)
        part.values = dict(zip(holders, operands, strict=True))
        prefix = self.writer.prefix
        for node in unit.body.graph.nodes:
            if node.op not in {"placeholder", "output"}:
                part.visit(node)
                self.writer.prefix = prefix
        return str(part.values[next(n for n in unit.body.graph.nodes if n.op == "output").args[0]])

    def weighted(self, unit: QuantizedWeighted, operands: list[Any]) -> str:
        """A weighted unit before its result is quantised."""
        weight, bias = unit.folded()
        fq = unit.weight_fake_quant
        if not fq.is_ready():
            fq.observe(weight)
        with torch.no_grad():
            ints = fq.integers(weight).cpu().numpy().astype(NUMPY[fq.spec.dtype])
        scale = fq.scale.detach().cpu().numpy()
        b = None if bias is None else bias.detach().cpu().numpy()
        y = self._product(unit, operands[0], ints, b, scale)
        if unit.has_addend:
            y = self.writer.op("Add", [y, operands[1]])
        if unit.activation == "relu":
            return str(self.writer.op("Relu", [y]))
        if unit.activation == "relu6":
            return str(self.writer.op("Clip", [y, self.writer.const(np.float32(0)), self.writer.const(np.float32(6))]))
        return y

    def _product(
        self, unit: QuantizedWeighted, x: str, weight: np.ndarray, bias: np.ndarray | None, scale: np.ndarray | None
    ) -> str:
        w, name = self.writer, f"{self.writer.prefix}.weight"
        linear = unit.kind is nn.Linear
        axis = 1 if linear else unit.axis
        weight = weight.T if linear else weight
        value = w.const(weight, name) if scale is None else w.weight(weight, scale, axis, name)
        b = None if bias is None else self._bias(unit, bias, scale)
        if linear:
            y = str(w.op("MatMul", [x, value]))
            return y if b is None else str(w.op("Add", [y, b]))
        n = weight.ndim - 2
        g = unit.geometry
        fields: dict[str, Any] = {
            "strides": pair(g["stride"], n), "dilations": pair(g["dilation"], n), "group": g["groups"],
            "kernel_shape": list(weight.shape[2:]), "pads": _pads(g, weight.shape[2:]),
        }  # fmt: skip
        operands = [x, value, *([b] if b is not None else [])]
        if unit.transposed:
            return str(w.op("ConvTranspose", operands, output_padding=pair(g["output_padding"], n), **fields))
        return str(w.op("Conv", operands, **fields))

    def _bias(self, unit: QuantizedWeighted, bias: np.ndarray, scale: np.ndarray | None) -> str:
        """float32; or int32 in steps of the accumulator, where that holds it."""
        w, name = self.writer, f"{self.writer.prefix}.bias"
        source = unit.sources[0] if unit.sources else None
        if w.integer_bias and scale is not None and source is not None:
            steps = float(source.scale.detach()[0]) * np.resize(scale.astype(np.float64), unit.out_channels)
            if float(np.abs(bias / steps).max(initial=0.0)) < numerics.I32_MAX:
                return w.weight(numerics.bias_to_accumulator(bias, steps).astype(np.int32), steps, 0, name)
        return w.const(bias.astype(np.float32), name)


def _pads(geometry: dict[str, Any], kernel: tuple[int, ...]) -> list[int]:
    n, padding = len(kernel), geometry["padding"]
    if padding == "valid":
        return [0] * (2 * n)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(pair(geometry["dilation"], n), kernel, strict=True)]
        return [t // 2 for t in total] + [t - t // 2 for t in total]
    return pair(padding, n) * 2


class _Function:
    """A wrapped function with the arguments of its call, as a module of its tensors."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def bound(self, tensors: list[fx.Node]) -> nn.Module:
        outer = self

        class Bound(nn.Module):
            def forward(self, *values: Tensor) -> Any:
                table = dict(zip(tensors, values, strict=True))
                args = fx.node.map_arg(outer.args, lambda n: table[n])
                return outer.function(*args, **fx.node.map_arg(outer.kwargs, lambda n: table[n]))

        return Bound()


def unit_model(unit: QuantizedUnit, shapes: Sequence[tuple[int, ...]]) -> onnx.ModelProto:
    """One unit as a model of its own: operands quantised by their sources, the result by its own FakeQuantize."""
    twin = copy.copy(unit)
    w = Writer()
    graph = fx.Graph()
    graph.output(None)
    emitter = _Emitter(fx.GraphModule(nn.Module(), graph), w)
    operands = []
    for i, (source, shape) in enumerate(zip(unit.sources, shapes, strict=True)):
        assert source is not None
        value = emitter.quantized(w.input(f"x{i}", shape), source, f"x{i}")
        w.shapes[value] = tuple(shape)
        operands.append(value)
    w.prefix = "unit"
    y = emitter._unit(twin, operands)  # noqa: SLF001 - the same module's
    w.output(y, "y", None)
    return w.model("unit")
