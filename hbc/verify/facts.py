"""What a model says about its tensors: scales, steps of floats, and which names stand for one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hbc.ir import ops
from hbc.ir.core import Module, Value
from hbc_runtime.types import DType, Quant

SUFFIXES = (
    "_QuantizeLinear_Output",
    "_DequantizeLinear_Output",
    "_quantized",
    "_dequantized",
    "_QuantizeLinear",
    "_DequantizeLinear",
)


@dataclass(frozen=True)
class Facts:
    """By tensor name.

    `quant`: how integers stand for reals. `step`: of a float that is quantised next, or was dequantised. `root`: the
    float that a quantised or dequantised tensor is a copy of. `elements`: how many it has.
    """

    quant: dict[str, Quant] = field(default_factory=dict)
    step: dict[str, float] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)

    def fitting(self, names: Sequence[str], budget: int) -> int:
        """How many of `names`, from the first on, `budget` bytes hold: at least 1, elements counted as float32's."""
        room = budget
        for count, name in enumerate(names):
            room -= 4 * self.elements.get(name, self.elements.get(self.group(name), budget >> 8))
            if room < 0:
                return max(1, count)
        return len(names)

    def group(self, name: str) -> str:
        """One name for a tensor and its quantised and dequantised copies."""
        return self.root.get(name, name)

    def quantum(self, name: str, quants: Iterable[Quant | None]) -> float | None:
        """The step of tensor `name`: of the first of `quants` that there is, else of the float itself."""
        for quant in quants:
            if quant is not None:
                return max(quant.scale)
        return self.step.get(name)


def facts_of(module: Module) -> Facts:
    """Read off a module as it was taken in."""
    facts = Facts()
    for op in module.graph.ops:
        for value in op.results:
            _note(facts, value)
    for output in module.graph.outputs:
        if output.value.name and output.name != output.value.name:
            facts.root.setdefault(output.name, facts.group(output.value.name))
    return facts


def _note(facts: Facts, value: Value) -> None:
    name, op = value.name, value.op
    if isinstance(op, ops.Const):
        return
    if name:
        facts.elements[name] = 0 if value.type.is_dynamic else value.type.elements
    if value.type.quant is not None and name:
        facts.quant[name] = value.type.quant
    for user in value.users:
        if isinstance(user, ops.Quantize) and user.out.type.quant is not None and name:
            facts.step.setdefault(name, max(user.out.type.quant.scale))
    if not isinstance(op, ops.Quantize | ops.Dequantize) or not name:
        return
    quant = op.x.type.quant if isinstance(op, ops.Dequantize) else None
    if quant is not None and op.x.type.dtype is not DType.I32:
        facts.step[name] = max(quant.scale)
    source = op.x.name or stripped(name)
    facts.root[name] = facts.group(source)


def stripped(name: str) -> str:
    """The name of the float behind `x_quantized`, as generators of quantised models append words to it."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
