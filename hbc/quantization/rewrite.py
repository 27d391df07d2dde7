"""The captured graph becomes a graph of quantised units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from .capturing import drop_dead
from .colour import MIDDLE, CenteredYuv444
from .fake_quantize import FakeQuantize, FakeQuantSpec, require_int16
from .fusion import Group, operation_group, weighted_group
from .ops import ARITHMETIC, constant_of, is_float, is_move, is_weighted, operation
from .qconfig import QConfig, QConfigSetter, UnitInfo, check_names, pick, without_effect
from .sampling import grid_scale
from .stubs import DeQuantStub, QuantStub
from .unit_body import body_of
from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted

SAMPLERS = {"grid_sample", "pixel_sample"}


class Rewrite:
    """One run of `prepare` on a captured graph."""

    def __init__(
        self, module: fx.GraphModule, march: str, setters: list[QConfigSetter], bn_mode: str, names: Iterable[str] = ()
    ) -> None:
        """`names`: the modules of the user's model."""
        self.module, self.march, self.setters, self.bn_mode = module, march, setters, bn_mode
        self.names = tuple(names)
        self.graph = module.graph
        self.modules: dict[str, nn.Module] = dict(module.named_modules())
        self.has_stubs = any(isinstance(m, QuantStub) for m in self.modules.values())
        self.has_ends = any(isinstance(m, DeQuantStub) for m in self.modules.values())
        self.quantized: set[fx.Node] = set()  # nodes whose values stand for integers
        self.units: dict[fx.Node, tuple[QuantizedUnit, Group | None]] = {}
        self.inputs: dict[fx.Node, fx.Node] = {}  # real node → the unit that quantises it
        self.shared: dict[tuple[int, int], QuantizedWeighted] = {}
        self.hints: list[str] = []
        self.fused: list[str] = []

    def run(self) -> fx.GraphModule:
        """The graph module of units, with `hints` and `fused` in its meta."""
        self._drop_identities()
        for node in list(self.graph.nodes):
            if node.op not in {"output", "get_attr"} and not _is_gone(node):
                self._visit(node)
        self._configure()
        drop_dead(self.module)
        self.module.delete_all_unused_submodules()
        self._wire()
        meta = {"march": self.march, "hints": self.hints, "fused": self.fused}
        self.module.meta.update(meta)
        self.module.hints = self.hints  # type: ignore[assignment]
        return self.module

    def _drop_identities(self) -> None:
        """nn.Identity, as `fuse_fx` leaves it in a batch norm's place, would part what is to be fused."""
        for node in list(self.graph.nodes):
            if node.op == "call_module" and type(self.modules[str(node.target)]) is nn.Identity:
                node.replace_all_uses_with(node.all_input_nodes[0])
                self.graph.erase_node(node)

    def _visit(self, node: fx.Node) -> None:
        if node in self.units:
            return
        kind = operation(node, self.modules)
        if node.op == "placeholder" or kind == "take":
            self._input(node)
        elif kind == "quant_stub":
            self._stub(node)
        elif kind == "colour" and not node.meta.get("cpu"):
            self._colour(node)
        elif node.meta.get("cpu") or kind in {"", "OutputTree"} or not is_float(node):
            return
        elif kind == "dequant_stub":
            self._dequantize(node)
        elif not any(a in self.quantized for a in node.all_input_nodes):
            if self._resumes(node):
                self._weighted(node)
        elif is_move(node, self.modules):
            self.quantized.add(node)
        elif is_weighted(node, self.modules):
            self._weighted(node)
        elif kind in ARITHMETIC:
            self._operation(node, kind)
        else:
            self.hints.append(f"{_place(node)}: {kind} isn't computed in integers; it stays real, on the CPU")

    def _resumes(self, node: fx.Node) -> bool:
        """True for a layer behind what stays on the CPU, unless stubs say what is quantised: it is quantised again."""
        if self.has_stubs or self.has_ends or not is_weighted(node, self.modules):
            return False
        return all(n.op != "get_attr" for n in node.all_input_nodes)

    def _input(self, node: fx.Node) -> None:
        source = node.args[0] if node.op != "placeholder" else None
        if isinstance(source, fx.Node) and source.op != "placeholder":
            if source in self.quantized and is_float(node):
                self.quantized.add(node)  # a part of what chunk or split gave
            return
        is_image = bool(node.users) and all(operation(u, self.modules) == "colour" for u in node.users)
        if not self.has_stubs and is_float(node) and not is_image:
            self._quantize(node, f"{node.name}_quant")

    def _colour(self, node: fx.Node) -> None:
        """A colour conversion: the image minus 128 is quantised by scale 1, and so is the result."""
        module, name, image = self.modules[str(node.target)], str(node.target), node.all_input_nodes[0]
        assert isinstance(module, CenteredYuv444)
        if not module.centered_input:
            with self.graph.inserting_before(node):
                centered = self.graph.call_function(torch.sub, (image, MIDDLE))
            centered.meta.update({k: image.meta[k] for k in ("shape", "dtype") if k in image.meta}, scope=name)
            node.replace_input_with(image, centered)
            image = centered
        source = self._quantize(image, f"{name}_input")
        self.units[source][0].fixed_scale = 1.0  # type: ignore[assignment]
        unit = QuantizedWeighted(name, self.march, module.layer(), None, "")
        unit.weight_fake_quant = module.weight_fake_quant(f"{name}.weight")
        unit.fixed_scale = 1.0  # type: ignore[assignment]
        self._place(self._free(name, replaces=True), unit, [source], Group(node, [node]))

    def _quantize(self, node: fx.Node, name: str, spec: FakeQuantSpec | None = None) -> fx.Node:
        """A unit that quantises the real values of `node`; its readers read the unit from now on."""
        if node in self.inputs:
            return self.inputs[node]
        unit = QuantizedInput(name, self.march)
        made = self._insert(self._free(name), unit, (node,), after=node)
        self._move_readers(node, made)
        self.inputs[node] = made
        self.units[made] = (unit, None)
        self.quantized.add(made)
        return made

    def _move_readers(self, node: fx.Node, made: fx.Node) -> None:
        for user in list(node.users):
            if user is made or user.op == "output" or user.meta.get("cpu") or self._is_outputs(user):
                continue
            user.replace_input_with(node, made)

    def _is_outputs(self, node: fx.Node) -> bool:
        return node.op == "call_module" and operation(node, self.modules) == "OutputTree"

    def _stub(self, node: fx.Node) -> None:
        stub = self.modules[str(node.target)]
        assert isinstance(stub, QuantStub)
        if node.all_input_nodes[0] in self.quantized:  # behind a colour conversion: integers already
            node.replace_all_uses_with(node.all_input_nodes[0])
            self.graph.erase_node(node)
            return
        unit = QuantizedInput(str(node.target), self.march)
        unit.fixed_scale = stub.fixed_scale  # type: ignore[assignment]
        made = self._insert(self._free(str(node.target), replaces=True), unit, tuple(node.args), after=node)
        node.replace_all_uses_with(made)
        made.args = tuple(node.args)
        self.graph.erase_node(node)
        self.units[made] = (unit, None)
        self.quantized.add(made)

    def _dequantize(self, node: fx.Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node.meta["cpu"] = True  # whatever reads it reads reals
        if source not in self.quantized:
            return
        node.meta["dequantized"] = True

    def _operands(self, nodes: list[fx.Node], name: str) -> tuple[fx.Node, ...]:
        """Operands as quantised nodes; reals that were computed are quantised here."""
        return tuple(n if n in self.quantized else self._quantize(n, f"{name}_input") for n in nodes)

    def _weighted(self, node: fx.Node) -> None:
        group = weighted_group(node, self.modules)
        if group.addend is not None and group.addend not in self.quantized:
            self._visit_between(group)  # an addend that stands behind the product
            group = weighted_group(node, self.modules)
            if group.addend is not None and group.addend not in self.quantized:
                group = self._without_addend(group)
        name = str(node.target)
        layer = self.modules[name]
        bn = self.modules[str(group.bn.target)] if group.bn is not None else None
        unit = self._weighted_unit(name, layer, bn, group)
        operands = [node.args[0], *([group.addend] if group.addend is not None else [])]
        self._place(self._free(name, replaces=True), unit, [n for n in operands if isinstance(n, fx.Node)], group)

    def _visit_between(self, group: Group) -> None:
        for node in self._between(group):
            if not _is_gone(node) and node not in self.quantized and node.op != "get_attr":
                self._visit(node)

    def _between(self, group: Group) -> list[fx.Node]:
        """Nodes after the head and before the sum that don't belong to the group."""
        found, node = [], group.head.next
        sum_ = next(n for n in group.nodes[1:] if group.addend in n.all_input_nodes)
        while node is not sum_ and node.op != "root":
            if node not in group.nodes:
                found.append(node)
            node = node.next
        return found

    def _without_addend(self, group: Group) -> Group:
        keep = 2 if group.bn is not None else 1
        return replace(group, nodes=group.nodes[:keep], addend=None, activation="")

    def _weighted_unit(self, name: str, layer: nn.Module, bn: nn.Module | None, group: Group) -> QuantizedWeighted:
        key = (id(layer), id(bn))
        unit = QuantizedWeighted(name, self.march, layer, bn, group.activation)
        unit.has_addend = group.addend is not None
        first = self.shared.setdefault(key, unit)
        if first is not unit:  # called again: the same weights and their scales, statistics of its own
            unit.weight, unit.bias, unit.bn = first.weight, first.bias, first.bn
            unit.weight_fake_quant = first.weight_fake_quant
            return unit
        if bn is not None and _is_fresh(bn):
            where = group.bn and group.bn.target
            self.hints.append(f"{where}: its statistics are a new batch norm's; load weights before prepare")
        if bn is not None and self.bn_mode == "fused":
            _fold(unit)
        channels = int(unit.weight.shape[unit.axis])
        unit.weight_fake_quant = FakeQuantize(axis=unit.axis, channels=channels)
        return unit

    def _operation(self, node: fx.Node, kind: str) -> None:
        group = operation_group(node, self.modules)
        read = [n for part in (*group.conditions, node) for n in part.all_input_nodes if n not in group.conditions]
        tensors = [n for n in dict.fromkeys(read) if constant_of(n, self.module) is None]
        if not all(is_float(n) for n in tensors):
            self.hints.append(f"{_place(node)}: {kind} reads a tensor without a scale; it stays real, on the CPU")
            return
        body = body_of(group, tensors, self.module, self.modules)
        name = str(node.target) if node.op == "call_module" else self._name(node)
        unit = QuantizedOperation(name, self.march, kind, body)
        is_module = node.op == "call_module"
        self._place(self._free(name, replaces=is_module), unit, tensors, group)

    def _name(self, node: fx.Node) -> str:
        """`scope.add`; of a FloatFunctional its own name."""
        scope = str(node.meta.get("scope", ""))
        if node.meta.get("functional"):
            return scope
        return ".".join(filter(None, [scope, operation(node, self.modules)]))

    def _place(self, name: str, unit: QuantizedUnit, operands: list[fx.Node], group: Group) -> None:
        unit.unit_name = name
        operands = list(self._operands(operands, name))
        made = self._insert(name, unit, tuple(operands), after=group.last)
        group.last.replace_all_uses_with(made)
        made.args = tuple(operands)
        for node in reversed(group.nodes):
            self.graph.erase_node(node)
        if len(group.nodes) > 1:
            self.fused.append(group.text)
        self.units[made] = (unit, group)
        self.quantized.add(made)

    def _insert(self, name: str, unit: nn.Module, args: tuple[Any, ...], after: fx.Node) -> fx.Node:
        _set_module(self.module, name, unit)
        self.modules.setdefault(name, unit)  # a shared module is read again at its next call
        with self.graph.inserting_after(after):
            made = self.graph.call_module(name, args)
        made.meta.update({k: after.meta[k] for k in ("shape", "dtype", "scope") if k in after.meta})
        return made

    def _free(self, name: str, *, replaces: bool = False) -> str:
        """`name`, or the next of name_2, name_3 … that no unit or module has."""
        taken = {str(n.target) for n in self.units}
        if name not in taken and (replaces or name not in self.modules):
            return name
        return next(n for n in (f"{name}_{i}" for i in range(2, 1 << 20)) if n not in taken and n not in self.modules)

    # ---- precision

    def _configure(self) -> None:
        grids = self._toward_grids()
        self._fix_grids()
        known = [*self.names, *self.modules, *(str(n.target) for n in self.units)]
        check_names(self.setters, known)
        infos = [self._info(node, unit, group, feeds_grid=node in grids) for node, (unit, group) in self.units.items()]
        self.hints += without_effect(self.setters, infos)
        for (unit, _), info in zip(self.units.values(), infos, strict=True):
            config = pick(self.setters, info)
            self._apply(unit, config, info)

    def _info(self, node: fx.Node, unit: QuantizedUnit, group: Group | None, *, feeds_grid: bool) -> UnitInfo:
        weighted = isinstance(unit, QuantizedWeighted)
        tail = self._is_tail(node)
        why = ""
        if isinstance(unit, QuantizedWeighted):
            kind = unit.kind.__name__
            if unit.has_addend:
                why = "an addition is fused into it"
            elif unit.activation:
                why = f"a {unit.activation} is fused into it"
        else:
            kind = unit.operation if isinstance(unit, QuantizedOperation) else "quant_stub"
        parts = tuple(_module_of(n) for n in group.nodes if _module_of(n)) if group is not None else ()
        return UnitInfo(str(node.target), kind, weighted, tail, weighted and not why, why, feeds_grid, parts)

    def _is_tail(self, node: fx.Node) -> bool:
        """True where only moves stand between a node and reals."""
        for user in node.users:
            if user in self.units:
                return False
            if user in self.quantized and not self._is_tail(user):
                return False
        return True

    def _toward_grids(self) -> set[fx.Node]:
        """Units from the grid of each grid_sample back to the first product or input."""
        found: set[fx.Node] = set()
        for node, (unit, _) in self.units.items():
            if isinstance(unit, QuantizedOperation) and unit.operation in SAMPLERS and len(node.args) > 1:
                todo = [node.args[1]]
                while todo:
                    n = todo.pop()
                    if not isinstance(n, fx.Node) or n in found or n not in self.quantized:
                        continue
                    if n in self.units:
                        found.add(n)
                    if not isinstance(self.units.get(n, (None, None))[0], (QuantizedWeighted, QuantizedInput)):
                        todo.extend(n.all_input_nodes)
        return found

    def _fix_grids(self) -> None:
        """A grid of positions in pixels has the chip's own steps."""
        for node, (unit, _) in self.units.items():
            if not isinstance(unit, QuantizedOperation) or unit.operation != "pixel_sample":
                continue
            image, grid = node.all_input_nodes
            while grid not in self.units and grid.all_input_nodes:
                grid = grid.all_input_nodes[0]
            if grid in self.units:
                step = grid_scale(image.meta["shape"][2:])
                self.units[grid][0].fixed_scale = step  # type: ignore[assignment]

    def _apply(self, unit: QuantizedUnit, config: QConfig, info: UnitInfo) -> None:
        output = config.output
        fixed = getattr(unit, "fixed_scale", None)
        if output is None and (fixed is not None or not info.can_be_wide):
            output = FakeQuantSpec()
        if info.is_tail and info.is_weighted and not info.can_be_wide:
            self.hints.append(f"{info.name}: the result is {output and output.dtype}, not int32, as {info.why_not}")
        if output is not None and fixed is not None:
            output = output.changed(scale=fixed)
        if output is not None:
            require_int16(output.dtype, self.march, info.name)
            unit.activation_post_process = FakeQuantize(output)
            unit.activation_post_process.name = info.name
            unit.activation_post_process.maker = (unit,)
        if isinstance(unit, QuantizedWeighted) and not unit.weight_fake_quant.name:
            fq = FakeQuantize(config.weight, axis=unit.axis, channels=int(unit.weight.shape[unit.axis]))
            fq.name = f"{info.name}.weight"
            old = unit.weight_fake_quant
            for other, _ in self.units.values():  # the other calls of a shared layer
                if isinstance(other, QuantizedWeighted) and other.weight_fake_quant is old:
                    other.weight_fake_quant = fq

    # ---- where values come from

    def _wire(self) -> None:
        for node, (unit, _) in self.units.items():
            unit.sources = [source_of(a, self.module) for a in node.args if isinstance(a, fx.Node)]


def source_of(node: fx.Node, module: fx.GraphModule) -> FakeQuantize | None:
    """The FakeQuantize whose integers a node's values are; None for reals."""
    modules = dict(module.named_modules())
    while True:
        if node.op == "call_module" and isinstance(modules[str(node.target)], QuantizedUnit):
            found = modules[str(node.target)].activation_post_process
            return found if isinstance(found, FakeQuantize) else None
        if not node.all_input_nodes or node.op == "placeholder" or not is_move(node, modules):
            return None
        node = node.all_input_nodes[0]


def _is_fresh(bn: Any) -> bool:
    """True for a batch norm that has seen no data: mean 0, variance 1."""
    seen = bn.num_batches_tracked is not None and int(bn.num_batches_tracked) > 0
    return not seen and bool((bn.running_mean == 0).all()) and bool((bn.running_var == 1).all())


@torch.no_grad()
def _fold(unit: QuantizedWeighted) -> None:
    weight, bias = unit.folded()
    unit.weight = nn.Parameter(weight.clone())
    unit.bias = nn.Parameter(weight.new_zeros(unit.out_channels) if bias is None else bias.clone())
    unit.bn = None


def _set_module(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    setattr(root, last, module)


def _is_gone(node: fx.Node) -> bool:
    return bool(getattr(node, "_erased", False))


def _module_of(node: fx.Node) -> str:
    """The module whose operation a node is; "" for a function's."""
    if node.op == "call_module":
        return str(node.target)
    return str(node.meta.get("scope", "")) if node.meta.get("functional") else ""


def _place(node: fx.Node) -> str:
    return str(node.meta.get("scope") or node.name)
