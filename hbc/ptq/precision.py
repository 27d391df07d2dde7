"""From a configuration's names to the ops and tensors of a model: which stay in reals, which have how many bits."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.diagnostics import BadQuantizeConfig, error, nearest
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import source_nodes
from hbc.ir.types import DType

from .config import QuantizeConfig
from .errors import QuantizeError
from .points import EIGHT_BITS, Plan

BITS = {"int8": 8, "int16": 16}


@dataclass
class Wishes:
    """What the configuration asks for, in terms of one module.

    `floats`: ops that stay in reals. `ops`: bits by op, of what it reads and makes. `tensors`: bits by tensor name.
    `notes`: what could not be had, in words.
    """

    config: QuantizeConfig
    march: MarchSpec
    floats: set[Op] = field(default_factory=set)
    ops: dict[Op, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def has_int16(self) -> bool:
        """Whether the march has 16-bit activations."""
        return DType.I16 in self.march.activations


def wishes(module: Module, config: QuantizeConfig) -> Wishes:
    """The configuration read against `module`. QuantizeError for a name that there is none of, or no int16."""
    made = Wishes(config, MARCHES[module.march])
    body = [op for op in module.graph.ops if not isinstance(op, ops.Const)]
    by_type = {kind: [op for op in body if kind in kinds_of(op)] for kind in {k for op in body for k in kinds_of(op)}}
    by_node: dict[str, list[Op]] = {}
    for op in body:
        for name in nodes_of(op):
            by_node.setdefault(name, []).append(op)
    _apply(made, config.ops, by_type, "operator", globs=False)
    _apply(made, config.nodes, by_node, "node", globs=True)
    made.tensors = {name: BITS[rule.dtype] for name, rule in config.tensors.items() if rule.dtype is not None}
    wanted = [*config.ops.values(), *config.nodes.values(), *(r.dtype for r in config.tensors.values())]
    if not made.has_int16 and ("int16" in wanted or config.activations.dtype == "int16"):
        title = f"{module.march} has no int16"
        hint = "int8 or float; or another march"
        raise error(QuantizeError, title, why="its activations are int8 only", hint=hint, kind=BadQuantizeConfig)
    return made


def kinds_of(op: Op) -> tuple[str, ...]:
    """The ONNX operators that the op comes from."""
    return tuple(dict.fromkeys(n.op_type for n in source_nodes(op.loc) if n.op_type))


def nodes_of(op: Op) -> tuple[str, ...]:
    """The user's nodes that the op comes from."""
    return tuple(dict.fromkeys(n.node for n in source_nodes(op.loc)))


def _apply(made: Wishes, wanted: Mapping[str, str], known: dict[str, list[Op]], what: str, *, globs: bool) -> None:
    for name, precision in wanted.items():
        matching = fnmatch.filter(known, name) if globs and any(c in name for c in "*?[") else [name]
        found = [op for key in matching for op in known.get(key, ())]
        if not found:
            unknown(name, known, what, f"{what}s" if what == "node" else "ops")
        for op in found:
            made.floats.discard(op)
            made.ops.pop(op, None)
            if precision == "float":
                made.floats.add(op)
            else:
                made.ops[op] = BITS[precision]


def unknown(name: str, known: Iterable[str], what: str, key: str) -> None:
    """QuantizeError for a name in the configuration."""
    names = list(known)
    hint = nearest(name, names) or f"there are {', '.join(names[:12])}{' …' if len(names) > 12 else ''}"
    raise error(
        QuantizeError, f"there is no {what} named {name!r}", where=f"config: {key}", hint=hint, kind=BadQuantizeConfig
    )


def require_tensors(made: Wishes, plan: Plan) -> None:
    """QuantizeError for a tensor in the configuration that isn't quantised."""
    known = {str(v.name): None for v in (*plan.activations, *plan.weights.values())}
    for name in made.config.tensors:
        if name not in known:
            unknown(name, known, "quantised tensor", "tensors")


def bits_of(made: Wishes, plan: Plan, raised: Collection[Value], lowered: Collection[Value]) -> dict[Value, int]:
    """Bits of every activation and weight of `plan`.

    `raised`: those that automatic precision wants in 16 bits; `lowered`: those that the compiler took in 8 bits only.
    """
    explicit = _explicit(made, plan)
    bits: dict[Value, int] = {}
    for first in dict.fromkeys(plan.joined.values()):
        group = plan.group(first)
        said = [explicit[v] for v in group if v in explicit]
        wanted = max(said) if said else max(_default(made, plan, v, raised) for v in group)
        if any(v in lowered for v in group) or any(is_narrow(v) for v in group):
            if said and wanted == 16:
                made.notes[f"tensor {first.name!r} is int8: an op that makes or reads it takes no int16"] = None
            wanted = 8
        bits.update(dict.fromkeys(group, wanted))
    _keep_matmuls_legal(made, plan, bits)
    for op, weight in plan.weights.items():
        bits[weight] = max(bits.get(weight, 8), _weight_bits(made, plan, op, weight, bits, raised))
    return bits


def is_narrow(value: Value) -> bool:
    """True for a tensor that an op of 8 bits reads or makes."""
    read = any(isinstance(u, EIGHT_BITS) and u.operands[0] is value for u in value.users)
    return read or isinstance(value.op, EIGHT_BITS)


def _default(made: Wishes, plan: Plan, value: Value, raised: Collection[Value]) -> int:
    rules = made.config.activations
    if not made.has_int16:
        return 8
    if value in raised:
        return 16
    if value in plan.tail and rules.tail is not None:
        return BITS[rules.tail]
    if rules.image is not None and _is_image(value):
        return BITS[rules.image]
    return BITS[rules.dtype]


def _is_image(value: Value) -> bool:
    """True for an input that only arithmetic reads: its range is that of pixels."""
    readers = value.users
    from_outside = value.op is None or isinstance(value.op, ops.Cast)
    return from_outside and bool(readers) and all(isinstance(u, ops.Binary | ops.BatchNorm) for u in readers)


def _explicit(made: Wishes, plan: Plan) -> dict[Value, int]:
    found: dict[Value, int] = {}
    for op, bits in made.ops.items():
        touched = [plan.root[v] for v in op.operands if v is not None and v in plan.root]
        touched += [plan.inside[op.out]] if len(op.results) == 1 and op.out in plan.inside else []
        for value in (v for v in (*touched, *made_by(op, plan)) if v in plan.joined):
            found[value] = max(bits, found.get(value, 0))
    for value in plan.activations:
        if str(value.name) in made.tensors:
            found[value] = made.tensors[str(value.name)]
    return found


def made_by(op: Op, plan: Plan) -> list[Value]:
    """The activations in which the op's results are first rounded: behind what it is fused with."""
    reached, found = list(op.results), []
    for value in reached:
        if value in plan.root:
            found.append(plan.root[value])
        else:
            reached += [r for u in value.users for r in u.results if r not in reached]
    return found


def _keep_matmuls_legal(made: Wishes, plan: Plan, bits: dict[Value, int]) -> None:
    """At most one operand of a matmul has 16 bits: the first."""
    for op in {u: None for v in plan.root for u in v.users if isinstance(u, ops.Matmul)}:
        roots = [plan.root[v] for v in (op.lhs, op.rhs) if v in plan.root]
        if len(roots) == 2 and roots[0] is not roots[1] and all(bits[r] == 16 for r in roots):
            bits.update(dict.fromkeys(plan.group(roots[1]), 8))
            made.notes[f"tensor {roots[1].name!r} is int8: a matmul takes one int16 operand"] = None


def _weight_bits(
    made: Wishes, plan: Plan, op: Op, weight: Value, bits: dict[Value, int], raised: Collection[Value]
) -> int:
    wanted = made.tensors.get(str(weight.name), 16 if weight in raised else 8)
    if wanted == 8:
        return 8
    x = op.operands[0]
    source = None if x is None else plan.root.get(x)
    if DType.I16 not in made.march.weights:
        why = f"{made.march.name} has int8 weights only"
    elif source is not None and bits.get(source) == 16:
        why = f"its activation {source.name!r} is int16, and never are both"
    else:
        return 16
    made.notes[f"weight {weight.name!r} is int8: {why}"] = None
    return 8
