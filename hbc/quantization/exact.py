"""Exact forward: a unit computes the integers of the compiled program, with straight-through gradients.

Several ways, the same integers. Weighted units and the common operations compute in torch (`exact_weighted`,
`exact_operations`, `exact_sample`), and so do softmax and the norms, by the parts that the compiler makes of them
(`exact_composites`). A function of one tensor is a table of its compiled program's answers. Everything else runs its
own compiled program in the forward, and has the gradient of the operation in reals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc_runtime import Session
from hbc_runtime.numerics import ScaleRangeError

from .emit import unit_model
from .exact_composites import COMPOSITES, Composite
from .exact_cpu import PLACED_BY_TYPE, OnCpu, on_grid
from .exact_integers import Through
from .exact_matmul import Matmul
from .exact_operations import Operation, fingerprint, reals, wants_gradient
from .exact_sample import has_rule
from .exact_table import Table
from .exact_weighted import Weighted
from .units import QuantizedInput, QuantizedOperation, QuantizedUnit, QuantizedWeighted

Strategy = Callable[[QuantizedUnit, Sequence[Tensor]], Tensor]
TABLED = frozenset({
    "relu", "relu6", "clamp", "sigmoid", "tanh", "silu", "gelu", "hardswish", "hardsigmoid", "leaky_relu", "elu",
    "mish", "softplus", "softsign", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "neg", "sin", "cos", "erf",
    "floor", "ceil", "round", "square", "segment_lut",
})  # fmt: skip
# With constants that are one number, these are functions of one tensor as well.
_OF_A_NUMBER = frozenset({"add", "sub", "rsub", "mul", "div", "rdiv", "pow", "maximum", "minimum"})


def strategy(unit: QuantizedUnit) -> Strategy:
    """How a unit computes its integers."""
    if isinstance(unit, QuantizedInput):
        return quantize_input
    if isinstance(unit, QuantizedWeighted):
        return Weighted(unit, Program())
    assert isinstance(unit, QuantizedOperation)
    if len(unit.sources) == 1 and (unit.operation in TABLED or _is_of_numbers(unit)):
        return Table(Program())
    if unit.operation in COMPOSITES:
        return Composite(unit, Program())
    if unit.operation == "matmul":
        return Matmul(unit, Program())
    return Operation(unit, Program()) if has_rule(unit) else Program()


def _is_of_numbers(unit: QuantizedOperation) -> bool:
    """True for x · 2, x + x and the like: elementwise, of the operand's shape."""
    nodes = [n for n in unit.body.graph.nodes if n.op not in {"output", "get_attr"}]
    same = len({n.meta.get("shape") for n in nodes}) == 1 and nodes[0].meta.get("shape") is not None
    single = all(t.numel() == 1 for t in (*unit.body.parameters(), *unit.body.buffers()))
    return unit.operation in _OF_A_NUMBER and same and single


def straight_through(exact: Tensor, plain: Tensor) -> Tensor:
    """The exact values with the gradient of the plain ones."""
    return Through.apply(plain, exact, None, 0, 0)  # type: ignore[no-untyped-call]


def quantize_input(unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
    """Reals become integers by the march's rule (NUMERICS 2), and the reals that these stand for."""
    (x,) = operands
    fq = unit.activation_post_process
    assert fq is not None
    if fq.observes():
        fq.observe(x)
    fq.require_scale()
    fq.keep_positive()
    scale = fq.scale.detach()
    with torch.no_grad():
        exact = on_grid(x, scale, (fq.spec.qmin, fq.spec.qmax), unit.march) * scale
    return straight_through(exact, fq.quantized(x)) if wants_gradient(unit, operands) else exact


class Program:
    """The unit's own compiled program; compiled again when scales, weights or shapes change."""

    def __init__(self) -> None:
        self.key: Any = None
        self.session: Session | None = None
        self.host: OnCpu | None = None  # the program where all that it computes is on the CPU, for `host_key`
        self.host_key: Any = None

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        grad = wants_gradient(unit, operands)
        return self.through(unit, operands, observed(unit, operands, grad=grad) if grad or observes(unit) else None)

    def through(self, unit: QuantizedUnit, operands: Sequence[Tensor], y: Tensor | None) -> Tensor:
        """The program's answer, with the gradient of the reals `y` where they are given and have one."""
        exact = self.run(unit, operands)
        if y is None or not y.requires_grad:
            return exact
        fq = unit.activation_post_process
        return straight_through(exact, y if fq is None else fq.quantized(y))

    def run(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        """The program's answer."""
        shapes = [tuple(x.shape) for x in operands]
        fq, sources = unit.activation_post_process, [s for s in unit.sources if s is not None]
        own = _own(unit, shapes)
        if own is not None and own == self.host_key and self.host is not None and fq is not None:
            try:
                return self.host.run(operands, sources, fq)
            except ScaleRangeError:
                pass  # the program's error names tensors and scales
        session = self.prepared(unit, shapes)
        feeds = {f"x{i}": x.detach().cpu().float().numpy() for i, x in enumerate(operands)}
        y = session.run({info.name: feeds[info.name] for info in session.inputs})["y"]
        result = torch.from_numpy(np.array(y)).to(operands[0].device)
        if own is not None and own != self.host_key and fq is not None:
            self.host, self.host_key = OnCpu.of(session.program, sources, fq, unit.march), own
            if self.host is not None and not torch.equal(self.host.run(operands, sources, fq), result):
                self.host = None
        return result

    def prepared(self, unit: QuantizedUnit, shapes: list[tuple[int, ...]]) -> Session:
        """The session for these shapes."""
        key = (tuple(shapes), fingerprint(unit))
        if key != self.key or self.session is None:
            with torch.no_grad():
                proto = unit_model(unit, shapes)
            compiled = compile_model(proto, CompileOptions(march=unit.march, name="unit"))
            self.session, self.key = Session(compiled.program, engine="reference"), key
        return self.session


def _own(unit: QuantizedUnit, shapes: list[tuple[int, ...]]) -> Any:
    """What changes when the unit's program does, scales apart; None where scales may change where it runs."""
    if not isinstance(unit, QuantizedOperation) or unit.operation not in PLACED_BY_TYPE:
        return None
    own = (*unit.body.parameters(), *unit.body.buffers())
    return tuple(shapes), tuple((id(t), t._version) for t in own)  # noqa: SLF001


def observes(unit: QuantizedUnit) -> bool:
    """True where the unit's result is looked at in this call."""
    fq = unit.activation_post_process
    return fq is not None and fq.observes()


def observed(unit: QuantizedUnit, operands: Sequence[Tensor], *, grad: bool) -> Tensor:
    """The unit in reals, which its observer has seen where it observes."""
    with torch.set_grad_enabled(grad):
        y = reals(unit, operands)
    if observes(unit):
        assert unit.activation_post_process is not None
        unit.activation_post_process.observe(y)
    return y
