"""Exact forward: a unit computes the integers of the compiled program, with straight-through gradients.

Three ways, the same integers. A weighted unit computes in torch, by the constants that `hbc.ir.fixed_point` derives,
as the compiler does. A function of one tensor is a table of its compiled program's answers. Everything else runs its
own compiled program in the forward, and has the gradient of the operation in reals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.driver import compile_model
from hbc.ir.semantics import Semantics
from hbc.options import CompileOptions
from hbc_runtime import Session
from hbc_runtime.isa import Rounding

from .emit import unit_model
from .exact_weighted import Weighted
from .fake_quantize import BITS, FakeQuantize
from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted

Strategy = Callable[[QuantizedUnit, Sequence[Tensor]], Tensor]
TABLED = frozenset({
    "relu", "relu6", "clamp", "sigmoid", "tanh", "silu", "gelu", "hardswish", "hardsigmoid", "leaky_relu", "elu",
    "mish", "softplus", "softsign", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "neg", "sin", "cos", "erf",
    "floor", "ceil", "round", "square", "segment_lut",
})  # fmt: skip


def strategy(unit: QuantizedUnit) -> Strategy:
    """How a unit computes its integers."""
    if isinstance(unit, QuantizedInput):
        return quantize_input
    if isinstance(unit, QuantizedWeighted):
        return Weighted(unit, Program())
    assert isinstance(unit, QuantizedOperation)
    if unit.operation in TABLED and len(unit.sources) == 1:
        return Table()
    return Program()


def straight_through(exact: Tensor, plain: Tensor) -> Tensor:
    """The exact values with the gradient of the plain ones."""
    return _Through.apply(plain, exact)  # type: ignore[no-untyped-call]


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Tensor, exact: Tensor) -> Tensor:
        return exact.view_as(exact)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def quantize_input(unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
    """Reals become integers by the march's rule (NUMERICS 2), and the reals that these stand for."""
    (x,) = operands
    fq = unit.activation_post_process
    assert fq is not None
    fq.require_scale()
    scale = fq.scale.detach()
    with torch.no_grad():
        v = torch.nan_to_num(x.detach().float(), nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        if Semantics(unit.march).rounding is Rounding.HALF_EVEN_F32:
            q = torch.round(v / scale)
        else:
            t = v.double() / scale.double()
            whole = torch.trunc(t)
            q = whole + torch.where((t - whole).abs() >= 0.5, torch.sign(t), 0.0)
        exact = q.clamp(fq.spec.qmin, fq.spec.qmax).float() * scale
    return straight_through(exact, fq(x)) if torch.is_grad_enabled() and x.requires_grad else exact


class Program:
    """The unit's own compiled program; compiled again when scales, weights or shapes change."""

    def __init__(self) -> None:
        self.key: Any = None
        self.session: Session | None = None

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        exact = self.run(unit, operands)
        if not torch.is_grad_enabled() or not _wants_gradient(unit, operands):
            return exact
        return straight_through(exact, frozen_plain(unit, operands))

    def run(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        """The program's answer."""
        session = self.prepared(unit, [tuple(x.shape) for x in operands])
        feeds = {f"x{i}": x.detach().cpu().float().numpy() for i, x in enumerate(operands)}
        y = session.run({info.name: feeds[info.name] for info in session.inputs})["y"]
        return torch.from_numpy(np.array(y)).to(operands[0].device)

    def prepared(self, unit: QuantizedUnit, shapes: list[tuple[int, ...]]) -> Session:
        """The session for these shapes."""
        key = (tuple(shapes), _fingerprint(unit))
        if key != self.key or self.session is None:
            with torch.no_grad():
                proto = unit_model(unit, shapes)
            compiled = compile_model(proto, CompileOptions(march=unit.march, name="unit"))
            self.session, self.key = Session(compiled.program, engine="reference"), key
        return self.session


class Table:
    """A function of one tensor: its program's answer for every integer, looked up."""

    def __init__(self) -> None:
        self.key: Any = None
        self.table: Tensor | None = None

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        (x,) = operands
        source = unit.sources[0]
        assert source is not None
        key = (_fingerprint(unit), x.device)
        if key != self.key or self.table is None:
            self.table, self.key = self._made(unit, source).to(x.device), key
        with torch.no_grad():
            q = torch.round(x.detach() / source.scale.detach()).to(torch.int64)
            exact = self.table[q + (1 << (BITS[source.spec.dtype] - 1))]
        if not torch.is_grad_enabled() or not _wants_gradient(unit, operands):
            return exact
        return straight_through(exact, unit.plain(x))

    def _made(self, unit: QuantizedUnit, source: FakeQuantize) -> Tensor:
        count = 1 << BITS[source.spec.dtype]
        q = torch.arange(count) - count // 2
        x = (q.float() * source.scale.detach().cpu()).reshape(1, 1, -1, 256)
        twin = Program().run(unit, [x])
        return twin.reshape(-1)


def frozen_plain(unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
    """The unit in reals with batch norms of frozen statistics, as the program has them."""
    training = unit.training
    unit.eval()
    try:
        return unit.plain(*operands)
    finally:
        unit.train(training)


def _wants_gradient(unit: QuantizedUnit, operands: Sequence[Tensor]) -> bool:
    return any(x.requires_grad for x in operands) or any(p.requires_grad for p in unit.parameters())


def _fingerprint(unit: QuantizedUnit) -> Any:
    """What changes when the unit's program changes: scales, and versions of its tensors."""
    scales = [fq.scale for fq in (*unit.sources, unit.activation_post_process) if fq is not None]
    own = [*unit.parameters(), *unit.buffers()]
    return tuple(tuple(s.detach().tolist()) for s in scales), tuple((id(t), t._version) for t in own)  # noqa: SLF001
