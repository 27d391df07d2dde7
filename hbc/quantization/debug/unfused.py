"""Batch norms, sums and relus behind a convolution or linear layer that were not fused into it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from hbc.debug import Column, Report

from ..fusion import ADDABLE
from ..ops import RELUS, operation
from ..units import QuantizedOperation, QuantizedUnit, QuantizedWeighted, is_prepared
from .running import as_prepared, kind_of

FUSABLE = frozenset({"add", "batch_norm"}) | RELUS
COLUMNS = (
    Column("operation", "name"),
    Column("kind", "kind"),
    Column("behind", "behind", about="the convolution or linear layer whose result it reads"),
    Column("why not fused", "why"),
    Column("try", "hint"),
)


@dataclass(frozen=True)
class UnfusedRow:
    """One operation that stands alone behind a product."""

    name: str
    kind: str
    behind: str
    why: str
    hint: str
    flagged: bool = True


def check_unfused(model: nn.Module, inputs: Any = None) -> Report[UnfusedRow]:
    """What stands behind a convolution or linear layer, could be part of it, and isn't. Each costs a rounding.

    `model`: a float model, which `inputs` (the tuple of a call's arguments) are needed for, or a prepared one.
    """
    if inputs is None and is_prepared(model):
        inputs = model.meta["example_inputs"]  # type: ignore[index]
    from ..capturing import arguments

    prepared = as_prepared(model, arguments(inputs))
    modules = dict(prepared.named_modules())
    rows = tuple(r for n in prepared.graph.nodes if (r := _row(n, modules)) is not None)
    notes = tuple(f"{r.name} ({r.kind}) behind {r.behind}: {r.why}" for r in rows) or ("nothing is left unfused",)
    return Report("Unfused operations", "behind convolutions and linear layers", COLUMNS, rows, notes)


def _row(node: fx.Node, modules: dict[str, nn.Module]) -> UnfusedRow | None:
    unit = modules.get(str(node.target)) if node.op == "call_module" else None
    kind = unit.operation if isinstance(unit, QuantizedOperation) else operation(node, modules)
    if kind not in FUSABLE or (isinstance(unit, QuantizedUnit) and not isinstance(unit, QuantizedOperation)):
        return None
    for source in node.all_input_nodes:
        product = modules.get(str(source.target)) if source.op == "call_module" else None
        if isinstance(product, QuantizedWeighted):
            name = str(node.target) if unit is not None else node.name
            why, hint = _why(node, source, kind, product, in_reals=not isinstance(unit, QuantizedOperation))
            return UnfusedRow(name, kind, f"{source.target} ({kind_of(product)})", why, hint)
    return None


def _why(node: fx.Node, source: fx.Node, kind: str, product: QuantizedWeighted, *, in_reals: bool) -> tuple[str, str]:
    if in_reals:
        return "it is computed in reals, on the CPU", "leave it out of `cpu`, or in front of the DeQuantStub"
    others = [str(u.target) for u in source.users if u is not node]
    if others:
        return f"{source.target} is read by {', '.join(others)}, too", "let one operation read it"
    if product.activation:
        return (
            f"a {product.activation} is fused into {source.target} before it",
            f"move it in front of the {product.activation}",
        )
    if kind == "batch_norm":
        if product.has_addend:
            return "an addition stands before it", "move it in front of the addition"
        return _why_no_batch_norm(source, product)
    if kind == "add":
        return _why_no_addition(node, source, product)
    return "nothing is known that hinders it", "report it"


def _why_no_batch_norm(source: fx.Node, product: QuantizedWeighted) -> tuple[str, str]:
    if product.bn is not None:
        return "there is a batch norm already", "one is enough: merge them"
    if product.transposed and product.groups != 1:
        return "a grouped transposed convolution has no place for it", "use groups=1"
    if product.kind is nn.Linear and len(source.meta.get("shape", (0, 0))) != 2:
        return "a batch norm's channels aren't the linear layer's", "normalise the last axis"
    return "it keeps no running statistics", "track_running_stats=True"


def _why_no_addition(node: fx.Node, source: fx.Node, product: QuantizedWeighted) -> tuple[str, str]:
    if product.kind not in ADDABLE:
        return f"the accumulator of {product.kind.__name__} takes no second operand", "nothing: it is one more rounding"
    if product.has_addend:
        return "another addition is fused already", "nothing: an accumulator takes one"
    tensors = node.all_input_nodes
    if len(tensors) < 2:
        return "its other operand is a constant or itself", "use the layer's bias"
    shapes = [tuple(n.meta.get("shape", ())) for n in tensors]
    if len(set(shapes)) > 1:
        return f"its operands differ in shape: {' and '.join(map(str, shapes))}", "expand the smaller one before"
    return "its other operand is another product, which it is fused into", "nothing: an addition has one home"
