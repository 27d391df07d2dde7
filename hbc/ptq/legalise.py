"""The plan that the compiler takes: what it would put on the CPU is asked of the compiler itself, and taken back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hbc.backend.cpu.export_model import export_model
from hbc.calibration import Statistics
from hbc.calibration.grid import Array
from hbc.diagnostics import HbcError, error
from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.options import CompileOptions
from hbc.words import some

from .choice import Chooser
from .errors import QuantizeError
from .insert import Inserted, insert
from .points import Plan, plan
from .precision import Wishes, bits_of, made_by, nodes_of
from .settings import Setting

ROUNDS = 12  # of asking the compiler: every round takes something back, and most models need one or two
Collect = Callable[[Sequence[Value]], "dict[Value, Statistics]"]


@dataclass
class Quantised:
    """A plan that was settled, and what follows from it. `left`: why nodes stay off integers, by node."""

    plan: Plan
    settings: dict[Value, Setting]
    inserted: Inserted
    data: bytes
    left: dict[str, str] = field(default_factory=dict)


class Settler:
    """Finds the plan for one module; what was learnt of the compiler holds for every later question."""

    def __init__(self, module: Module, wishes: Wishes, options: CompileOptions, collect: Collect) -> None:
        self.module, self.wishes, self.collect = module, wishes, collect
        self.options = replace(options, shapes=(), example=(), output_names=())  # the module has them
        self.chooser = Chooser(wishes.config)
        self.floats: set[Op] = set(wishes.floats)
        self.unfused: set[Op] = set()
        self.lowered: set[Value] = set()
        self.left: dict[str, str] = {}
        self.corrections: dict[Op, Array] = {}

    def settle(self, raised: frozenset[Value] = frozenset()) -> Quantised:
        """The quantised model, tensors `raised` in 16 bits."""
        for _ in range(ROUNDS):
            made = self.attempt(raised)
            refused = self._refused(made)
            if not self._take_back(made, refused):
                made.left = {node: self.left.get(node, why) for node, why in refused.items()}
                return made
        return self.attempt(raised)

    def attempt(self, raised: frozenset[Value] = frozenset()) -> Quantised:
        """The quantised model by what is known so far."""
        made = plan(self.module.graph, self.floats, self.unfused)
        if not made.activations:
            why = f"off integers: {some(list(self.left))}" if self.left else "no op in it may run on integers"
            raise error(QuantizeError, "there is nothing to quantise in this model", why=why)
        missing = [v for v in made.activations if v not in self.chooser.statistics]
        if missing:
            self.chooser.statistics.update(self.collect(missing))
        self.wishes.notes.clear()  # those of this attempt count
        settings = self.chooser.settings(made, bits_of(self.wishes, made, raised, self.lowered))
        inserted = insert(self.module, made, settings, corrections=self.corrections)
        return Quantised(made, settings, inserted, export_model(inserted.module).to_bytes(), dict(self.left))

    def _refused(self, made: Quantised) -> dict[str, str]:
        """The nodes that the compiler puts on the CPU, with its reasons."""
        try:
            placed = lower_model(made.data, self.options, stop_after="place")
        except HbcError as err:
            raise error(QuantizeError, "the quantised model doesn't compile", why=str(err)) from err
        found: dict[str, str] = {}
        for op in placed.graph.ops:
            if op.placement is not None and op.placement.device == "cpu":
                found.update(dict.fromkeys((re.sub(r"#\d+$", "", n) for n in nodes_of(op)), op.placement.reason))
        return found

    def _take_back(self, made: Quantised, refused: dict[str, str]) -> bool:
        """Ask less of the ops that were refused: no fused addition, 8 bits, at last reals. False where that is done."""
        wrong = [op for op in self.module.graph.ops if self._is_integer(op, made.plan) and op.node in refused]
        changed = False
        for op in wrong:
            adds = [u for v in op.results for u in v.users if isinstance(u, ops.Add) and v not in made.plan.root]
            wide = [v for v in self._touched(op, made.plan) if made.settings[v].bits == 16 and v not in self.lowered]
            if any(a not in self.unfused for a in adds):
                self.unfused.update(adds)
            elif wide:
                self.lowered.update(wide)
            else:
                self.floats.add(op)
                self.left.update(dict.fromkeys(nodes_of(op), refused[op.node]))
            changed = True
        return changed

    def _touched(self, op: Op, made: Plan) -> list[Value]:
        read = [made.root[v] for v in op.operands if v is not None and v in made.root]
        inside = [made.inside[op.out]] if len(op.results) == 1 and op.out in made.inside else []
        return [v for v in (*read, *inside, *made_by(op, made)) if v in made.joined]

    def _is_integer(self, op: Op, made: Plan) -> bool:
        return op in made.integer and op not in self.floats and bool(self._touched(op, made))
