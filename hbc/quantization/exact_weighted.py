"""Exact forward of convolutions and linear layers: integers in float tensors, constants by NUMERICS 3 to 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.ir.fixed_point import conv as rules
from hbc.ir.semantics import Semantics
from hbc.native.accumulators import Held
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import ScaleRangeError

from . import exact_constants as constants
from .exact_constants import Floats, Ints, Requantization
from .exact_integers import FLOAT32, Through, holder, on_device, put, recovered, requantized_, within
from .exact_native import KINDS, Accumulators, serves, unpacked
from .fake_quantize import BITS, FakeQuantize
from .onnx_rules import pair
from .units import ACTIVATIONS, QuantizedUnit, QuantizedWeighted

if TYPE_CHECKING:
    from .exact import Program

CLIPS = {"": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}
ROOM = 1 << 26  # as hbc.passes.weak_channels: beyond, the compiler changes a channel's scale


@dataclass(frozen=True)
class _Job:
    """One call: the operands' integers and everything that scales alone determine."""

    acc_scale: Floats
    bias: Ints  # in accumulator steps, without the rounding term
    addend: tuple[Ints, Ints] | None
    products: float  # the magnitude of the products' sum
    bound: float  # the accumulator's, in steps
    kind: torch.dtype
    along: list[int]
    splits: bool  # int16 operands as 256 · high + low, whose products float32 holds


class Weighted:
    """The strategy of a weighted unit; `program` serves what torch has no exact form for."""

    def __init__(self, unit: QuantizedWeighted, program: Program) -> None:
        self.program = program
        self.by_program = unit.weight_fake_quant.spec.dtype != "int8"
        self.on_bpu: dict[Any, bool] = {}  # by shapes, of convolutions over volumes: whether the program has integers

    def __call__(self, unit: QuantizedUnit, operands: Sequence[Tensor]) -> Tensor:
        assert isinstance(unit, QuantizedWeighted)
        if not unit.weight_fake_quant.is_ready() or (self.by_program and unit.weight_fake_quant.observes()):
            unit.weight_fake_quant.observe(unit.folded()[0])
        try:
            y = None if self.by_program or not self._has_integers(unit, operands) else self._in_torch(unit, operands)
        except ScaleRangeError:
            y = None  # the program's error names tensors and scales
        return self.program(unit, operands) if y is None else y

    def _has_integers(self, unit: QuantizedWeighted, operands: Sequence[Tensor]) -> bool:
        """False where the program computes in reals, as it does for some volumes: it is asked once."""
        if unit.kind not in {nn.Conv3d, nn.ConvTranspose3d}:
            return True
        shapes = tuple(tuple(x.shape) for x in operands)
        if shapes not in self.on_bpu:
            model = self.program.prepared(unit, list(shapes)).program.models[0]
            self.on_bpu[shapes] = all(hasattr(s, "instructions") for s in model.segments)
        return self.on_bpu[shapes]

    def _in_torch(self, unit: QuantizedWeighted, operands: Sequence[Tensor]) -> Tensor | None:
        weight, bias = unit.folded()
        weight = unit.weight_fake_quant(weight)
        with torch.no_grad():
            ints = (weight / unit.weight_fake_quant.along(weight.dim())).round_()
            job = self._job(unit, ints, bias)
        if job is None:
            return None
        fq = unit.activation_post_process
        addend = operands[1] if unit.has_addend else None

        def run(*, keeps: bool) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
            return self._run(unit, job, ints, operands, keeps=keeps)

        if (fq is not None and fq.is_learned) or not _is_plain(unit):
            return _by_reals(unit, operands, weight, bias, run)
        return _Product.apply(operands[0], weight, bias, addend, unit, run)  # type: ignore[no-untyped-call]

    def _job(self, unit: QuantizedWeighted, ints: Tensor, bias: Tensor | None) -> _Job | None:
        """None where the compiler would change a channel's scale, or a float can't hold the accumulator."""
        source, other = unit.sources[0], unit.sources[1] if unit.has_addend else None
        assert source is not None
        channels = unit.out_channels
        s_in, s_w = source.scale.item(), _scale(unit.weight_fake_quant)
        acc_scale = _spread(s_in * s_w, channels)
        sums = ints.abs().sum([d for d in range(ints.dim()) if d != unit.axis]).cpu().numpy().astype(np.float64)
        sums = _spread(sums, channels)
        reach = 0.0 if other is None else float(_scale(other)[0] * -other.spec.qmin / acc_scale.min())
        value = np.zeros(channels) if bias is None else bias.detach().cpu().numpy().astype(np.float64)
        steps = np.abs(value) / acc_scale + reach
        dead = (sums == 0) & (steps > 0)
        if (bias is not None or other is not None) and bool(((steps > numerics.I32_MAX - ROOM) | dead).any()):
            return None
        whole = constants.bias_steps(value, acc_scale)
        mixed = None if other is None else constants.addend(_scale(other)[0] / acc_scale)
        products = float(sums.max(initial=0.0)) * (1 << (BITS[source.spec.dtype] - 1))
        bound = products + float(np.abs(whole).max(initial=0)) + reach + 1
        kind = holder(max(bound, 0.0 if other is None else 32767.0 * -other.spec.qmin))
        along = [1] * ints.dim()
        along[-1 if unit.kind is nn.Linear else 1] = -1
        splits = kind is torch.float64 and source.spec.dtype == "int16" and 255 * sums.max(initial=0.0) < FLOAT32
        return None if kind is None else _Job(acc_scale, whole, mixed, products, bound, kind, along, splits)

    def _run(
        self, unit: QuantizedWeighted, job: _Job, ints: Tensor, operands: Sequence[Tensor], *, keeps: bool
    ) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
        """(reals of the result, its integers before the clamp where they are to be kept, the clamp)."""
        x, source, fq = operands[0], unit.sources[0], unit.activation_post_process
        assert source is not None
        if _is_native(unit, ints, operands):
            return self._run_native(unit, job, ints, operands, keeps=keeps)
        if unit.kind is nn.Linear and x.dim() != len(job.along):
            job = replace(job, along=[1] * (x.dim() - 1) + [-1])
        acc = self._accumulator(unit, job, ints, recovered(x, source.scale))
        if job.addend is not None:
            acc += self._addend(unit, job, operands[1])
        if fq is not None and fq.observes():
            (scale,) = put([job.acc_scale], job.along, x.device, torch.float32)
            fq.observe(_looked_at(unit, acc * scale))
        if fq is not None:
            fq.keep_positive()
        r, offset, bound = self._requantization(unit, job)
        kind = holder(bound) or torch.float64  # the rounding term may be the larger one
        q = requantized_(acc.to(kind), on_device(r, offset, job.along, x.device, kind, bound), bound)
        if fq is None:
            (out,) = put([job.acc_scale.astype(np.float32)], job.along, x.device)
            return q * out, q, (numerics.I32_MIN, numerics.I32_MAX)
        low, high = clamp_of(fq, CLIPS[unit.activation])
        return q.clamp(low, high).mul_(fq.scale.detach()), q, (low, high)

    def _run_native(
        self, unit: QuantizedWeighted, job: _Job, ints: Tensor, operands: Sequence[Tensor], *, keeps: bool
    ) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
        """As `_run`, by kernels of the CPU."""
        fq = unit.activation_post_process
        acc = self._products(unit, job, ints, operands)
        if fq is not None and fq.observes():
            fq.observe(_ends_of(unit, acc, job.acc_scale))
        if fq is not None:
            fq.keep_positive()
        r, offset, _ = self._requantization(unit, job)
        low, high = (numerics.I32_MIN, numerics.I32_MAX) if fq is None else clamp_of(fq, CLIPS[unit.activation])
        scales = job.acc_scale if fq is None else _scale(fq)
        y, q = acc.finished(r, offset, scales, (low, high), keeps=keeps and fq is not None)
        return y, q, (low, high)

    @staticmethod
    def _products(unit: QuantizedWeighted, job: _Job, ints: Tensor, operands: Sequence[Tensor]) -> Accumulators:
        x, source = operands[0], unit.sources[0]
        assert source is not None
        held = Held.F32 if job.products < FLOAT32 else Held.SPLIT if job.splits else Held.F64
        q = unpacked(x, source.scale.item(), held)
        if held is Held.SPLIT:  # both halves as one batch
            y = unit.product(q if unit.kind is nn.Linear else q.flatten(0, 1), ints).contiguous()
            y = y if unit.kind is nn.Linear else y.view(2, x.shape[0], *y.shape[1:])
        else:
            y = unit.product(q, ints.to(KINDS[held]))
        rank = y.dim() - (held is Held.SPLIT)
        axis = rank - 1 if unit.kind is nn.Linear else 1
        acc = Accumulators(y.contiguous(), held, axis, len(job.bias), job.bias, job.bound)
        if not unit.has_addend:
            return acc
        other = unit.sources[1]
        assert other is not None
        joined = operands[1].expand(y.shape[1:] if held is Held.SPLIT else y.shape).contiguous()
        return replace(acc, addend=joined, addend_scale=other.scale.item(), mixed=job.addend)

    @staticmethod
    def _accumulator(unit: QuantizedWeighted, job: _Job, ints: Tensor, q: Tensor) -> Tensor:
        """Products and bias."""
        (bias,) = put([job.bias], job.along, q.device, job.kind)
        with _by_sums(q):
            if not job.splits:
                return unit.product(q.to(job.kind), ints.to(job.kind), bias.view(-1))
            high = (q * 2.0**-8).floor_()
            low = q.sub_(high, alpha=256)
            above, below = (unit.product(part, ints) for part in (high, low))
        return above.to(job.kind).mul_(256).add_(below).add_(bias)

    @staticmethod
    def _requantization(unit: QuantizedWeighted, job: _Job) -> tuple[Requantization, Ints, float]:
        """(parameters, what joins the accumulator yet: the rounding term as the march stores it, the bound)."""
        fq = unit.activation_post_process
        if fq is None:
            zero = np.zeros(len(job.acc_scale), np.int64)
            r = Requantization(Scheme.NONE, zero, zero, zero, zero)
        else:
            ratio = job.acc_scale / fq.scale.item()
            r = constants.requantization(ratio, wide=fq.spec.dtype == "int16", bias=True)
        offset = stored(job.bias + r.rounding, unit.march) - job.bias
        return r, offset, job.bound + float(np.abs(offset).max(initial=0))

    @staticmethod
    def _addend(unit: QuantizedWeighted, job: _Job, addend: Tensor) -> Tensor:
        """floor(q · multiplier / 2^shift), exact as the product stays below the mantissa (D5)."""
        source = unit.sources[1]
        assert source is not None
        assert job.addend is not None
        mult, shift = job.addend
        (factor,) = put([np.ldexp(mult.astype(np.float64), -shift)], job.along, addend.device, job.kind)
        return recovered(addend, source.scale, job.kind).mul_(factor).floor_()


def _is_native(unit: QuantizedWeighted, ints: Tensor, operands: Sequence[Tensor]) -> bool:
    """True where kernels of the CPU serve: they look at a range's ends only, and at batches."""
    fq = unit.activation_post_process
    looks = fq is not None and fq.observes() and not (fq.observer is not None and fq.observer.is_cheap)
    if looks or (unit.kind is not nn.Linear and operands[0].dim() != ints.dim()):
        return False
    return serves(operands, [s.scale.item() for s in unit.sources if s is not None])


def _ends_of(unit: QuantizedWeighted, acc: Accumulators, acc_scale: Floats) -> Tensor:
    """The ends of the result's range, before it is quantised."""
    low, high = acc.ends()
    ends = np.array([(low * acc_scale).min(), (high * acc_scale).max()], np.float32)
    return ACTIVATIONS[unit.activation](torch.from_numpy(ends))


def _by_sums(x: Tensor) -> AbstractContextManager[Any]:
    """Products as sums of products, exact in any order. On CUDA, cuDNN may transform them (Winograd, FFT), with reals
    between; without it torch multiplies matrices, whose TF32 holds int8 operands. Not run on such a device yet.
    """
    return torch.backends.cudnn.flags(enabled=False) if x.is_cuda else nullcontext()


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """One per channel, repeated where groups share them."""
    return values if len(values) == count else np.resize(values, count)


def _looked_at(unit: QuantizedWeighted, y: Tensor) -> Tensor:
    """What the result's observer sees of `y`, before its relu: of a range its ends are enough."""
    fq = unit.activation_post_process
    ends = fq is not None and fq.observer is not None and fq.observer.is_cheap
    return ACTIVATIONS[unit.activation](torch.stack(torch.aminmax(y)) if ends and y.numel() else y)


def stored(bias: Ints, march: str) -> Ints:
    """What the march keeps of a bias, as int64: where all of them fit, `stored_bias` has nothing to do."""
    sem = Semantics(march)
    if not sem.bias_is_16_bit and int(np.abs(bias).max(initial=0)) <= numerics.I32_MAX:
        return bias
    return rules.stored_bias(bias, sem).astype(np.int64)


def clamp_of(fq: FakeQuantize, clip: tuple[float, float]) -> tuple[int, int]:
    """The integers that a relu leaves of a result's range, as `fixed_point.params.clamp_limits`."""
    scale = fq.scale.item()

    def integer(x: float, end: int) -> int:
        return round(min(max(x / scale, fq.spec.qmin), fq.spec.qmax)) if math.isfinite(x) else end

    return integer(clip[0], fq.spec.qmin), integer(clip[1], fq.spec.qmax)


def _scale(fq: FakeQuantize) -> Floats:
    """Scales as float64 of their float32."""
    scale = fq.scale.detach()
    if scale.numel() == 1:
        return np.array([scale.item()])
    return scale.cpu().numpy().astype(np.float64)


def _is_plain(unit: QuantizedWeighted) -> bool:
    """True where the padding is given in numbers, the same before and behind."""
    return not isinstance(unit.geometry.get("padding", 0), str)


def _by_reals(
    unit: QuantizedWeighted, operands: Sequence[Tensor], weight: Tensor, bias: Tensor | None, run: Any
) -> Tensor:
    """The exact values with the gradient of the unit in reals, that of a learned scale included."""
    with torch.no_grad():
        exact, q, (low, high) = run(keeps=True)
    if not torch.is_grad_enabled():
        return exact
    y = unit.product(operands[0], weight, bias)
    y = ACTIVATIONS[unit.activation](y + operands[1] if unit.has_addend else y)
    fq = unit.activation_post_process
    if fq is not None and fq.is_learned:
        return Through.apply(fq.quantized(y), exact, None, 0, 0)  # type: ignore[no-untyped-call]
    return Through.apply(y, exact, q, low, high)  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """The whole unit: exact forward, and the gradients of the product in reals where the result isn't clamped."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        addend: Tensor | None,
        unit: QuantizedWeighted,
        run: Any,
    ) -> Tensor:
        needed = any(ctx.needs_input_grad[:4])
        y, q, (low, high) = run(keeps=needed)
        if needed:
            ctx.save_for_backward(x, weight, *([] if unit.activation_post_process is None else [q]))
            ctx.limits, ctx.unit = (low - 0.5, high + 0.5), unit
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *rest = ctx.saved_tensors
        grad = within(grads[0], rest[0], *ctx.limits) if rest else grads[0]
        needed = ctx.needs_input_grad
        back = _linear_back if ctx.unit.kind is nn.Linear else _conv_back
        return *back(ctx.unit, grad, x, weight, needed[:3]), grad if needed[3] else None, None, None


def _linear_back(unit: QuantizedWeighted, grad: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]) -> list[Any]:
    rows = grad.reshape(-1, grad.shape[-1])
    return [
        grad @ weight if needed[0] else None,
        rows.T @ x.reshape(-1, x.shape[-1]) if needed[1] else None,
        rows.sum(0) if needed[2] else None,
    ]


def _conv_back(unit: QuantizedWeighted, grad: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]) -> list[Any]:
    g, n = unit.geometry, x.dim() - 2
    output_padding = pair(g.get("output_padding", 0), n)
    numbers = [pair(g[name], n) for name in ("stride", "padding", "dilation")]
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, [unit.out_channels], *numbers, unit.transposed, output_padding, g["groups"], list(needed)
    )
    return list(found)
