"""Exact forward of functions of one tensor: a table of the compiled program's answers, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.semantics import Semantics
from hbc.options import CompileOptions
from hbc.passes.lower_to_lut import Expression, table_values

from .emit import unit_model
from .exact_integers import Through, recovered
from .exact_operations import reals, wants_gradient
from .fake_quantize import BITS, FakeQuantize
from .units import QuantizedUnit, source_reach

if TYPE_CHECKING:
    from .exact import Program

_SQUARE = (1, 1, 1, 256)  # the shape in which the program is asked for the integers of int8


class Table:
    """The strategy of a function of one tensor.

    The first table is the program's. Where hbc's own pass makes that program's table of an expression, the expression
    gives the tables of other scales, without compiling again; it is kept where its first table is the program's.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.key: Any = None
        self.table: Tensor | None = None
        self.expression: Expression | None = None
        self.is_known = False  # whether there is an expression

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        (x,) = operands
        source, fq = unit.sources[0], unit.activation_post_process
        assert source is not None
        assert fq is not None
        grad = wants_gradient(unit, operands)
        y = reals(unit, operands) if grad or fq.observes() else None
        if y is not None and fq.observes():
            fq.observe(y)
        fq.require_scale()
        fq.keep_positive()
        with torch.no_grad():
            table = self._table(unit, source, fq, x.device)
            index = recovered(x, source.scale).add_(table.numel() // 2).to(torch.int64)
            exact = table.index_select(0, index.reshape(-1)).view(x.shape)
        if y is None or not grad:
            return exact
        if fq.is_learned:
            return Through.apply(fq.quantized(y), exact, None, 0, 0)  # type: ignore[no-untyped-call]
        q = y.detach() / fq.scale.detach()
        return Through.apply(y, exact, q, fq.spec.qmin, fq.spec.qmax)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def reach(self, unit: QuantizedUnit, fq: FakeQuantize) -> tuple[int, int]:
        """The least and the largest integer in the table, for what the source can hold."""
        source = unit.sources[0]
        assert source is not None
        fq.require_scale()
        lo, hi = source_reach(source)
        zero = 1 << (BITS[source.spec.dtype] - 1)  # where the table has its answer for 0
        table = self._table(unit, source, fq, fq.scale.device)[zero + lo : zero + hi + 1]
        scale = fq.scale.item()
        return round(table.min().item() / scale), round(table.max().item() / scale)

    def _table(self, unit: QuantizedUnit, source: FakeQuantize, fq: FakeQuantize, device: torch.device) -> Tensor:
        """Reals for the source's integers from the least on."""
        own = tuple((id(t), t._version) for t in (*unit.parameters(), *unit.buffers()) if t is not fq.scale)  # noqa: SLF001
        own = own if any(p.requires_grad for p in unit.parameters() if p is not fq.scale) else ()
        key = (source.scale.item(), fq.scale.item(), own, device)
        if key != self.key or self.table is None:
            known = self._values(source, fq) if self.expression is not None and not own else None
            table = self._asked(unit, source) if known is None else known
            if not self.is_known and not own:
                self._learn(unit, source, fq, table)
            self.table, self.key = table.to(device), key
        return self.table

    def _asked(self, unit: QuantizedUnit, source: FakeQuantize) -> Tensor:
        """The program's answers."""
        count = 1 << BITS[source.spec.dtype]
        q = torch.arange(count) - count // 2
        x = (q.float() * source.scale.detach().cpu()).reshape(1, 1, -1, 256)
        return self.program.run(unit, [x]).reshape(-1)

    def _values(self, source: FakeQuantize, fq: FakeQuantize) -> Tensor | None:
        """The expression's table; None where the compiler makes a clip of it (fixed_point.clamp_limits)."""
        assert self.expression is not None
        scale, out = source.scale.item(), fq.scale.item()
        if scale == out and all(isinstance(o, ops.Clip) for o in self.expression.ops):
            return None
        q = table_values(self.expression, np.arange(-128, 128), scale, out, 0, (fq.spec.qmin, fq.spec.qmax))
        return torch.from_numpy(q).float() * fq.scale.detach().cpu()

    def _learn(self, unit: QuantizedUnit, source: FakeQuantize, fq: FakeQuantize, asked: Tensor) -> None:
        """Look for the expression, and keep it where its table is the program's."""
        self.is_known = True
        if source.spec.dtype != "int8" or fq.spec.narrow:
            return
        options = CompileOptions(march=unit.march, name="unit")
        module = lower_model(unit_model(unit, [_SQUARE]), options, stop_after="fuse")
        found = [q for q in module.graph.walk(ops.Quantize) if q.x.op is not None]
        self.expression = Expression.over_one_tensor(found[0].x, Semantics(unit.march)) if len(found) == 1 else None
        known = None if self.expression is None else self._values(source, fq)
        if known is not None and not np.array_equal(known.numpy(), asked.cpu().numpy()):
            self.expression = None
