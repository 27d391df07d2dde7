"""Exact forward of softmax and the norms: the parts that the compiler makes of them, made anew where scales change.

What depends on scales and weights are the parts' types, constants, tables and form, which follow from the pass that
makes them (`hbc.passes.decompose`). So that pass is asked again, for the one op, and its parts are computed in torch;
nothing else of the compiler runs again. The unit's own program is compiled once for each set of shapes, to see that its
integers are the same; where they aren't, the program itself runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hbc.backend.bpu.target import Target
from hbc.diagnostics import Rejection
from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.types import Quant
from hbc.options import CompileOptions
from hbc.passes.decompose import decomposed
from hbc.passes.matching import activation_behind
from hbc_runtime.numerics import ScaleRangeError

from .emit import unit_model
from .exact_integers import recovered
from .exact_native import serves
from .exact_operations import Exact, Operation, fingerprint
from .exact_parts import Plan
from .exact_rows import Rows
from .exact_weighted import CLIPS, clamp_of
from .fake_quantize import FakeQuantize
from .lean_parts import LeanParts
from .units import QuantizedOperation

if TYPE_CHECKING:
    from .exact import Program

COMPOSITES = frozenset({"softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm", "rms_norm"})
_TRAINED = {  # (name, position in a function's call) of what is trained, in the order of the IR's operands
    "layer_norm": (("weight", 2), ("bias", 3)),
    "group_norm": (("weight", 2), ("bias", 3)),
    "instance_norm": (("weight", 3), ("bias", 4)),
    "rms_norm": (("weight", 2),),
}


@dataclass(frozen=True)
class _Skeleton:
    """The IR of a unit before it is decomposed: its integers, the op, the result's quantize, and trained constants."""

    x: Value
    op: ops.Composite
    quantize: ops.Quantize
    constants: tuple[tuple[ops.Const, Tensor], ...]

    def follow(self, source: FakeQuantize, fq: FakeQuantize) -> None:
        """Take the scales and constants of now."""
        for value, owner in ((self.x, source), (self.quantize.out, fq)):
            value.type = replace(value.type, quant=Quant.per_tensor(owner.scale.item()))
        for const, tensor in self.constants:
            const.attrs["value"] = tensor.detach().cpu().numpy().reshape(const.value.shape)


class Composite(Operation):
    """The strategy of a composite; `program` serves what isn't decomposed, as on a march that leaves it to the CPU."""

    def __init__(self, unit: QuantizedOperation, program: Program) -> None:
        super().__init__(unit, program)
        nodes = [n for n in unit.body.graph.nodes if n.op not in {"placeholder", "output", "get_attr"}]
        self.fits = len(nodes) == 1 and len(unit.sources) == 1 and unit.activation_post_process is not None
        self.skeletons: dict[Any, _Skeleton | None] = {}
        self.key: Any = None
        self.plan: Plan | Rows | None = None

    def _tables(self, unit: QuantizedOperation, operands: Sequence[Tensor]) -> list[np.ndarray] | None:
        """None where there are no parts, or the program has other integers; what is in the list means nothing."""
        shape = tuple(operands[0].shape)
        if shape not in self.skeletons:
            self.skeletons[shape] = self._skeleton(unit, shape)
        if self.skeletons[shape] is None:
            return None
        if shape not in self.tables:
            fq = unit.activation_post_process
            assert fq is not None
            found = self._exact(unit, operands, fq, None, keeps=False)
            if found is None:  # not decomposed with these scales
                return None
            self.tables[shape] = [] if torch.equal(found[0], self.program.run(unit, operands)) else None
        return self.tables[shape]

    @torch.no_grad()
    def _exact(
        self, unit: QuantizedOperation, xs: Sequence[Tensor], fq: FakeQuantize, tables: Any, *, keeps: bool
    ) -> Exact | None:
        """None where the op stays in reals, or a scale has no multiplier (the program tells)."""
        x, source = xs[0], unit.sources[0]
        assert source is not None
        shape = tuple(x.shape)
        skeleton, target = self.skeletons[shape], Target(unit.march)
        assert skeleton is not None
        key = shape, fingerprint(unit), x.device
        if key != self.key:
            skeleton.follow(source, fq)
            self.key, self.plan = key, self._planned(skeleton, target, x)
        limits = clamp_of(fq, CLIPS[""])
        if isinstance(self.plan, Rows):
            return (*self.plan.run(x, source.scale.item(), fq.scale.item(), limits, keeps=keeps), limits)
        if self.plan is None:
            return None
        q = self.plan.run(recovered(x, source.scale, torch.int32)).float()
        return q.clamp(*limits) * fq.scale.detach(), q, limits

    def _planned(self, skeleton: _Skeleton, target: Target, x: Tensor) -> Plan | Rows | None:
        parts = decomposed(skeleton.op, skeleton.quantize, target, LeanParts)
        if isinstance(parts, Rejection):
            return None
        assert isinstance(parts, LeanParts)
        try:
            scales = [v.type.quant.scale[0] for v in (skeleton.x, skeleton.quantize.out) if v.type.quant is not None]
            found = Rows.of(skeleton.x, parts, target.semantics) if serves([x], scales) else None
            return found or Plan.of(skeleton.x, parts, target.semantics, x.device)
        except ScaleRangeError:
            return None

    def _skeleton(self, unit: QuantizedOperation, shape: tuple[int, ...]) -> _Skeleton | None:
        with torch.no_grad():
            proto = unit_model(unit, [shape])
        module = lower_model(proto, CompileOptions(march=unit.march, name="unit"), stop_after="fuse")
        found = [q for q in module.graph.walk(ops.Quantize) if isinstance(q.x.op, ops.Composite)]
        if len(found) != 1:
            return None
        op = found[0].x.op
        assert isinstance(op, ops.Composite)
        x = activation_behind(op.operands[0])
        constants = self._constants(unit, op)
        whole = x is not None and isinstance(x.op, ops.Quantize) and x.type.shape == shape == op.out.type.shape
        return None if not whole or x is None or constants is None else _Skeleton(x, op, found[0], constants)

    def _constants(self, unit: QuantizedOperation, op: ops.Composite) -> tuple[tuple[ops.Const, Tensor], ...] | None:
        """The op's constants with the tensors that they come from; None where one doesn't hold what the tensor does."""
        held = []
        for value, (name, position) in zip(op.operands[1:], _TRAINED.get(unit.operation, ()), strict=False):
            tensor: Any = self._trained(unit, name, position)
            const = None if value is None else value.defined_by(ops.Const)
            if tensor is None:
                continue
            same = const is not None and np.array_equal(const.value.reshape(-1), _array(tensor).reshape(-1))
            if const is None or not same:
                return None
            held.append((const, tensor))
        return tuple(held)

    def _trained(self, unit: QuantizedOperation, name: str, position: int) -> Tensor | None:
        if self.module is not None:
            return getattr(self.module, name, None)
        node: Any = self.head.args[position] if len(self.head.args) > position else self.head.kwargs.get(name)
        return None if node is None else getattr(unit.body, str(node.target))


def _array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())
