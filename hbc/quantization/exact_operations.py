"""Exact forward of elementwise sums and products, concats, averages, resizes, batch norms and matrix products.

A rule computes an operation's integers in float tensors (`exact_integers`) by the instruction that the compiler makes
of it. The unit's own program is compiled once for each set of shapes, to see that this is the instruction; where it
isn't, as on a march without it, the program itself runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from hbc_runtime import numerics
from hbc_runtime.numerics import ScaleRangeError

from . import exact_constants as constants
from .exact_integers import Through, holder, on_device, put, recovered, requantized_
from .exact_weighted import CLIPS, clamp_of, stored
from .fake_quantize import BITS, FakeQuantize
from .onnx_rules import pair
from .ops import RELUS, operation
from .units import QuantizedOperation, QuantizedUnit

if TYPE_CHECKING:
    from .exact import Program

_MODELESS = (nn.Softmax, nn.LogSoftmax, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.ReLU, nn.ReLU6, nn.AvgPool2d)
_MOVED = frozenset({"Quantize", "Dequantize", "Transpose", "Reshape"})  # around the one that computes


@dataclass(frozen=True)
class Case:
    """A unit with its operands: what a rule computes from."""

    unit: QuantizedOperation
    operands: Sequence[Tensor]
    sources: Sequence[FakeQuantize]
    out: FakeQuantize
    head: fx.Node  # the operation in the unit's body
    module: Any  # its module, None for a function
    tables: Sequence[np.ndarray]  # constants of the program's instructions, in order
    instructions: Sequence[Any]  # those that compute; only what shapes and settings determine may be read

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """A setting of the operation: of its module, or argument `index` of its call."""
        if self.module is not None:
            return getattr(self.module, name, default)
        return self.head.args[index] if len(self.head.args) > index else self.head.kwargs.get(name, default)

    def limit(self, index: int = 0) -> int:
        """The largest magnitude of an operand's integers."""
        return 1 << (BITS[self.sources[index].spec.dtype] - 1)

    def scale(self, index: int = 0) -> float:
        """An operand's scale."""
        return float(self.sources[index].scale.detach()[0])

    @property
    def out_scale(self) -> float:
        """The result's scale."""
        return float(self.out.scale.detach()[0])

    def integers(self, index: int, bound: float) -> Tensor | None:
        """An operand's integers in a float type that holds numbers up to `bound`; None where there is none."""
        kind = holder(bound)
        return None if kind is None else recovered(self.operands[index], self.sources[index].scale, kind)

    def requantized(self, acc: Tensor, ratio: Any, bound: float, along: list[int] | None = None) -> Tensor:
        """Form B, or the wide form for int16, of an accumulator, which is used up."""
        r = constants.requantization(ratio, wide=self.out.spec.dtype == "int16", bias=False)
        none = np.zeros_like(r.rounding)
        tensors = on_device(r, none, along or [1] * acc.dim(), acc.device, acc.dtype, bound)
        return requantized_(acc, tensors, bound)

    def rescaled(self, q: Tensor, index: int = 0) -> Tensor:
        """Integers by the scale of an operand, in the result's scale; used up."""
        if self.scale(index) == self.out_scale and self.sources[index].spec.dtype == self.out.spec.dtype:
            return q.float()
        return self.requantized(q, self.scale(index) / self.out_scale, float(self.limit(index)))


Exact = tuple[Tensor, Tensor | None, tuple[int, int]]  # reals, integers before the clamp where they are kept, the clamp
Rule = Callable[[Case], Tensor | None]  # the result's integers before the clamp; None: the program runs
RULES: dict[str, tuple[Rule, frozenset[tuple[str, ...]]]] = {}


def rule(*names: str, makes: Sequence[Sequence[str]]) -> Callable[[Rule], Rule]:
    """Register under names of operations; `makes`: the instructions that it stands for, one set for each way."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, (function, frozenset(tuple(sorted(m)) for m in makes))))
        return function

    return register


class Operation:
    """The strategy of an operation that has a rule; `program` serves what the rule doesn't."""

    def __init__(self, unit: QuantizedOperation, program: Program) -> None:
        self.program = program
        self.tables: dict[Any, list[np.ndarray] | None] = {}
        self.instructions: dict[Any, list[Any]] = {}
        nodes = [n for n in unit.body.graph.nodes if n.op not in {"placeholder", "output", "get_attr"}]
        modules: dict[str, nn.Module] = dict(unit.body.named_modules())
        self.head = nodes[0]
        self.module = modules[str(self.head.target)] if self.head.op == "call_module" else None
        tail = operation(nodes[1], modules) if len(nodes) > 1 else ""
        self.clip = CLIPS[tail] if tail in RELUS or not tail else None
        plain = len(nodes) <= 2 and operation(self.head, modules) == unit.operation
        fq = unit.activation_post_process
        self.fits = plain and self.clip is not None and _takes(self.head) and fq is not None

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        assert isinstance(unit, QuantizedOperation)
        tables = self._tables(unit, operands) if self.fits else None
        if tables is None:
            return self.program(unit, operands)
        fq = unit.activation_post_process
        assert fq is not None
        grad = wants_gradient(unit, operands)
        y = reals(unit, operands) if grad or fq.observes() else None
        if y is not None and fq.observes():
            fq.observe(y)
        fq.keep_positive()
        with torch.no_grad():
            found = self._exact(unit, operands, fq, tables, keeps=grad and not fq.is_learned)
        if found is None:
            return self.program.through(unit, operands, y if grad else None)
        exact, q, (low, high) = found
        if y is None or not grad:
            return exact
        if fq.is_learned:
            return Through.apply(fq.quantized(y), exact, None, 0, 0)  # type: ignore[no-untyped-call]
        return Through.apply(y, exact, q, low, high)  # type: ignore[no-untyped-call]

    def _exact(
        self, unit: QuantizedOperation, xs: Sequence[Tensor], fq: FakeQuantize, tables: Any, *, keeps: bool
    ) -> Exact | None:
        """The unit's result; None where the program has to tell."""
        sources = [s for s in unit.sources if s is not None]
        case = Case(unit, xs, sources, fq, self.head, self.module, tables, self.instructions[_shapes(xs)])
        try:
            q = RULES[unit.operation][0](case)
        except ScaleRangeError:
            return None  # the program's error names tensors and scales
        if q is None:
            return None
        low, high = clamp_of(fq, self.clip or CLIPS[""])
        return q.clamp(low, high).mul_(fq.scale.detach()), q, (low, high)

    def _tables(self, unit: QuantizedOperation, operands: Sequence[Tensor]) -> list[np.ndarray] | None:
        """The program's constant tables where it is what the rule computes, else None."""
        shapes = _shapes(operands)
        if shapes not in self.tables:
            model = self.program.prepared(unit, list(shapes)).program.models[0]
            found = [i for s in model.segments for i in getattr(s, "instructions", ())]
            narrow = any(fq is not None and fq.spec.narrow for fq in (*unit.sources, unit.activation_post_process))
            moved = _MOVED | {"Clamp"} if narrow else _MOVED  # by which operands and results stay narrow
            computing = [i for i in found if type(i).__name__ not in moved]
            names = tuple(sorted(dict.fromkeys(type(i).__name__ for i in computing)))
            whole = all(hasattr(s, "instructions") for s in model.segments)
            fits = whole and names in RULES[unit.operation][1]
            inputs = [t for i in computing for t in i.inputs if t >= 0 and model.tensors[t].storage.name == "CONSTANT"]
            self.tables[shapes] = [model.constant(t) for t in inputs] if fits else None
            self.instructions[shapes] = computing
        return self.tables[shapes]


def _shapes(operands: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(x.shape) for x in operands)


def _takes(head: fx.Node) -> bool:
    """True where the operation's tensors are the unit's operands, in order, each once, with nothing else beside."""
    given = head.args[0] if head.args and isinstance(head.args[0], (list, tuple)) else head.args
    names = [a.name for a in given if isinstance(a, fx.Node)]
    scaled = head.kwargs.get("alpha", 1) != 1
    return not scaled and names == [f"x{i}" for i in range(len(names))] == [n.name for n in head.all_input_nodes]


def wants_gradient(unit: QuantizedUnit, operands: Sequence[Tensor]) -> bool:
    """True where autograd records and an operand or a parameter takes part."""
    if not torch.is_grad_enabled():
        return False
    return any(x.requires_grad for x in operands) or any(p.requires_grad for p in unit.parameters())


def reals(unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
    """The unit in reals, its result not quantised; batch norms of frozen statistics, as the program has them."""
    training = unit.training
    if not training or not _has_modes(unit):
        return unit.compute(*operands)
    unit.eval()
    try:
        return unit.compute(*operands)
    finally:
        unit.train(training)


def _has_modes(unit: QuantizedUnit) -> bool:
    """True where training may differ from evaluation."""
    inside = unit.body.children() if isinstance(unit, QuantizedOperation) else [unit]
    return not all(isinstance(m, _MODELESS) for m in inside)


def fingerprint(unit: QuantizedUnit) -> Any:
    """What changes when the unit's program changes: scales, and versions of its tensors."""
    scales = [fq.scale for fq in (*unit.sources, unit.activation_post_process) if fq is not None]
    own = [*unit.parameters(), *unit.buffers()]
    divisor = unit.divisor() if isinstance(unit, QuantizedOperation) else ()
    return tuple(tuple(s.detach().tolist()) for s in scales), tuple((id(t), t._version) for t in own), divisor  # noqa: SLF001


# ---- rules


@rule("add", "sub", makes=[["Add"]])
def _sum(c: Case) -> Tensor | None:
    """NUMERICS D6."""
    if len(c.operands) != 2:
        return None
    sign = -1.0 if c.unit.operation == "sub" else 1.0
    ma, mb, shift = numerics.add_params(c.scale(0) / c.out_scale, sign * c.scale(1) / c.out_scale)
    half = 2.0 ** (shift - 1) if shift > 0 else 0.0
    bound = c.limit(0) * abs(ma) + c.limit(1) * abs(mb) + half
    a, b = c.integers(0, bound), c.integers(1, bound)
    if a is None or b is None:
        return None
    total = torch.add(a.mul_(math.ldexp(ma, -shift)), b, alpha=math.ldexp(mb, -shift))
    return (total.add_(0.5) if shift > 0 else total).floor_().float()


@rule("mul", makes=[["Mul"]])
def _product(c: Case) -> Tensor | None:
    """NUMERICS 5."""
    if len(c.operands) != 2:
        return None
    bound = float(c.limit(0) * c.limit(1))
    a, b = c.integers(0, bound), c.integers(1, bound)
    return None if a is None or b is None else c.requantized(a * b, c.scale(0) * c.scale(1) / c.out_scale, bound)


@rule("matmul", makes=[["Matmul"]])
def _matmul(c: Case) -> Tensor | None:
    """NUMERICS 3 and 4."""
    if len(c.operands) != 2:
        return None
    bound = float(c.limit(0) * c.limit(1) * c.operands[0].shape[-1])
    a, b = c.integers(0, bound), c.integers(1, bound)
    return None if a is None or b is None else c.requantized(a @ b, c.scale(0) * c.scale(1) / c.out_scale, bound)


@rule("cat", "stack", makes=[["Concat"], ["Concat", "Requantize"], ["Requantize"]])
def _concat(c: Case) -> Tensor | None:
    """A requantize (D12) of each operand whose scale or type isn't the result's."""
    parts = [_of_scale(c, i) for i in range(len(c.operands))]
    join = torch.cat if c.unit.operation == "cat" else torch.stack
    return join(parts, c.argument(1, "dim", 0))


@rule("maximum", "minimum", makes=[[kind, *more] for kind in ("Maximum", "Minimum") for more in ([], ["Requantize"])])
def _extremum(c: Case) -> Tensor | None:
    """As a concat: of operands in the result's scale."""
    if len(c.operands) != 2:
        return None
    larger = torch.maximum if c.unit.operation == "maximum" else torch.minimum
    return larger(_of_scale(c, 0), _of_scale(c, 1))


def _of_scale(c: Case, index: int) -> Tensor:
    """An operand's integers in the result's scale."""
    return c.rescaled(recovered(c.operands[index], c.sources[index].scale), index)


@rule("mean", "sum", makes=[["ReduceSum"], ["AvgPool"]])
def _reduced(c: Case) -> Tensor | None:
    """NUMERICS 4 and D13: a sum, requantised by s_in / (count · s_out)."""
    x = c.operands[0]
    dim = c.argument(1, "dim")
    axes = list(range(x.dim())) if dim is None or dim == () else [d % x.dim() for d in pair(dim, 1)]
    count = math.prod(x.shape[d] for d in axes)
    bound = float(c.limit() * count)
    q = c.integers(0, bound)
    if q is None:
        return None
    total = q.sum(axes, keepdim=bool(c.argument(2, "keepdim", default=False)))
    return c.requantized(total, _share(c, count if c.unit.operation == "mean" else 1), bound)


def _share(c: Case, count: Any) -> Any:
    """s_in / (count · s_out), rounded as the compiler rounds it."""
    return c.scale() / (np.asarray(count, np.float64) * c.out_scale)


@rule("adaptive_avg_pool2d", makes=[["AvgPool"]])
def _adaptive(c: Case) -> Tensor | None:
    """Windows of one size: an average pool."""
    size, want = c.operands[0].shape[2:], pair(c.argument(1, "output_size"), 2)
    kernel = [s // w for s, w in zip(size, want, strict=True)]
    bound = float(c.limit() * math.prod(kernel))
    q = c.integers(0, bound)
    return (
        None
        if q is None
        else c.requantized(_window_sums(q, kernel, kernel, [0, 0]), _share(c, math.prod(kernel)), bound)
    )


@rule("avg_pool2d", makes=[["AvgPool"]])
def _average(c: Case) -> Tensor | None:
    """One multiplier, or one per position of the result where windows count differently."""
    kernel = pair(c.argument(1, "kernel_size"))
    stride = pair(c.argument(2, "stride") or kernel)
    padding = pair(c.argument(3, "padding", 0))
    bound = float(c.limit() * math.prod(kernel))
    q = c.integers(0, bound)
    if q is None or c.argument(4, "ceil_mode", default=False) or c.argument(6, "divisor_override", None):
        return None
    acc = _window_sums(q, kernel, stride, padding)
    if any(padding) and not c.argument(5, "count_include_pad", default=True):
        counts = _window_sums(torch.ones_like(q[:1, :1]), kernel, stride, padding).cpu().numpy().reshape(-1)
        return c.requantized(acc, _share(c, counts), bound, [1, 1, *acc.shape[2:]])
    return c.requantized(acc, _share(c, math.prod(kernel)), bound)


def _window_sums(q: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    return functional.avg_pool2d(q, kernel, stride, padding, divisor_override=1)


@rule("interpolate", makes=[["ResizeBilinear"], ["Requantize", "ResizeBilinear"]])
def _resized(c: Case) -> Tensor | None:
    """NUMERICS D10: four neighbours by 8-bit weights, half up once; then a requantize where the scales differ."""
    q = c.integers(0, float(c.limit() << 16))
    if q is None:
        return None
    for axis, table in zip((2, 3), c.tables, strict=False):
        low, high, weight = (torch.from_numpy(np.array(table[:, i])).to(q.device) for i in range(3))
        w = weight.to(q.dtype).view([-1 if d == axis else 1 for d in range(4)])
        q = q.index_select(axis, low).mul_(256 - w).addcmul_(q.index_select(axis, high), w)
    q = q.mul_(2.0**-16).add_(0.5).floor_()
    return c.rescaled(q)


@rule("batch_norm", makes=[["Conv2d"]])
def _affine(c: Case) -> Tensor | None:
    """A depthwise 1×1 convolution, as `hbc.ir.fixed_point.conv.batch_norm` makes it of the folded parameters."""
    factor, offset = _folded(c.module)
    steps = c.scale() * np.abs(factor)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # of offsets that are 0
        weight = np.where(offset != 0, np.floor((1 << 30) * steps / np.abs(offset)), 127).clip(0, 127)
    if bool((weight == 0).any() or (factor == 0).any()):
        return None
    acc_scale = steps / weight
    r = constants.requantization(acc_scale / c.out_scale, wide=c.out.spec.dtype == "int16", bias=True)
    bias = stored(constants.bias_steps(offset, acc_scale) + r.rounding, c.unit.march)
    bound = c.limit() * 127.0 + float(np.abs(bias).max())
    q = c.integers(0, bound)
    if q is None:
        return None
    along = [1, -1, *[1] * (q.dim() - 2)]
    w, b = put([weight * np.sign(factor), bias.astype(np.float64)], along, q.device, q.dtype)
    acc = torch.addcmul(b, q, w)
    return requantized_(acc, on_device(r, np.zeros_like(r.rounding), along, q.device, q.dtype, bound), bound)


def _folded(bn: Any) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset as the importer folds them: in float64 of ONNX's float32 epsilon, then float32."""
    count = bn.num_features

    def of(p: Tensor | None, default: float) -> np.ndarray:
        return np.full(count, default) if p is None else p.detach().cpu().numpy().astype(np.float64)

    factor = of(bn.weight, 1.0) / np.sqrt(of(bn.running_var, 1.0) + float(np.float32(bn.eps)))
    offset = of(bn.bias, 0.0) - of(bn.running_mean, 0.0) * factor
    return factor.astype(np.float32).astype(np.float64), offset.astype(np.float32).astype(np.float64)
