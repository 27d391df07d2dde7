"""FakeQuantize: integers in training, as the reals that they stand for. Switches are plain bools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hbc.diagnostics import BadQConfig, NotCalibrated, OptionError, error

from .errors import no_such, trouble
from .observers import OBSERVERS, Observer, make_observer

DTypeName = Literal["int8", "int16"]
BITS = {"int8": 8, "int16": 16}
KINDS = ("plain", "lsq", "pact")


@dataclass(frozen=True)
class FakeQuantSpec:
    """How one tensor is quantised.

    `dtype`: int8 or int16. `observer`: one of OBSERVERS. `kind`: `plain` (straight-through gradients), `lsq` (learned
    step size), `pact` (learned clipping). `narrow`: without the least integer, as −127 … 127. `averaging`: weight of
    one batch in a moving average; 0 keeps the calibrated scale. `scale`: fixed, whatever is observed. `percentile`: the
    share of magnitudes that the percentile observer keeps.
    """

    dtype: DTypeName = "int8"
    observer: str = "moving-average"
    kind: str = "plain"
    narrow: bool = False
    averaging: float = 0.01
    scale: float | None = None
    percentile: float = 0.9999

    def __post_init__(self) -> None:
        for what, value, known in (
            ("dtype", self.dtype, BITS),
            ("observer", self.observer, OBSERVERS),
            ("fake quantisation", self.kind, KINDS),
        ):
            if value not in known:
                raise no_such(what, str(value), known)
        if self.observer == "fixed" and self.scale is None:
            hint = "FakeQuantSpec(observer='fixed', scale=1 / 128)"
            raise error(OptionError, "the observer 'fixed' has no scale", hint=hint)
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise error(OptionError, f"the fixed scale is {self.scale!r}", hint="give a positive number")

    @property
    def qmin(self) -> int:
        """The least integer."""
        return -(1 << (BITS[self.dtype] - 1)) + self.narrow

    @property
    def qmax(self) -> int:
        """The largest integer."""
        return (1 << (BITS[self.dtype] - 1)) - 1

    def changed(self, **fields: Any) -> FakeQuantSpec:
        """The same with other fields."""
        return replace(self, **fields)


class FakeQuantize(nn.Module):
    """Rounds a tensor to integers of `scale` and back; observes ranges meanwhile.

    q = clamp(floor(x / scale + 1/2), qmin, qmax); the result is q · scale (public QAT manual). The scale of an observed
    tensor is its threshold / −qmin: absmax / 128 for int8, / 32768 for int16. `axis` and `channels`: one scale per
    output channel of a weight. `observing` and `quantizing` are the switches; `set_fake_quantize` turns them.
    """

    scale: Tensor

    def __init__(self, spec: FakeQuantSpec | None = None, *, axis: int | None = None, channels: int = 1) -> None:
        super().__init__()
        self.spec = spec or FakeQuantSpec()
        self.maker: tuple[Any, ...] = ()  # the unit whose result this is; a tuple, so that it is no part of this module
        self.axis, self.name = axis, ""
        self.observing, self.quantizing, self.ready = True, True, False
        start = torch.full((channels,), self.spec.scale or 0.0)
        if self.spec.kind == "plain" or self.spec.scale is not None:
            self.register_buffer("scale", start)
        else:
            self.scale = nn.Parameter(start)
        spec = self.spec
        self.observer: Observer | None = make_observer(spec, axis, channels) if spec.scale is None else None

    @staticmethod
    def with_args(**fields: Any) -> FakeQuantSpec:
        """A spec from its fields, to put into a QConfig. OptionError for fields that there are none of."""
        known = FakeQuantSpec.__dataclass_fields__
        for name in fields:
            if name not in known:
                raise no_such("argument of FakeQuantize", name, known)
        return FakeQuantSpec(**{k: v.removeprefix("q") if k == "dtype" else v for k, v in fields.items()})

    @property
    def is_learned(self) -> bool:
        """True where the scale is a parameter."""
        return isinstance(self.scale, nn.Parameter)

    def forward(self, x: Tensor) -> Tensor:
        if self.observing and (self.training or not self.quantizing):
            self.observe(x)
        return self.quantized(x) if self.quantizing else x

    def observes(self) -> bool:
        """True where training looks at a tensor that passes, and its scale may move."""
        return self.observing and self.training and not self._is_settled()

    def quantized(self, x: Tensor) -> Tensor:
        """A tensor by the scale as it is, not observed."""
        self.require_scale()
        if is_tracing():
            return self._traced(x)
        self.keep_positive()
        return fake_quantize(x, self.along(x.dim()), self.spec.qmin, self.spec.qmax, self.spec.kind)

    @torch.no_grad()
    def keep_positive(self) -> None:
        """A step of the optimizer may carry a small learned scale past 0."""
        if self.is_learned and self.training and bool((self.scale < LEAST_SCALE).any()):
            self.scale.clamp_(min=LEAST_SCALE)

    def _traced(self, x: Tensor) -> Tensor:
        """torch's own operator, for files: half to even at ties, where training rounds half up."""
        low, high = self.spec.qmin, self.spec.qmax
        zero = torch.zeros(self.scale.shape, dtype=torch.int32, device=self.scale.device)
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(x, self.scale.detach(), zero, low, high)
        return torch.fake_quantize_per_channel_affine(x, self.scale.detach(), zero, self.axis, low, high)

    def along(self, rank: int) -> Tensor:
        """The scale, shaped to run along `axis` of a tensor of `rank` axes."""
        if self.axis is None:
            return self.scale
        return self.scale.view([-1 if i == self.axis else 1 for i in range(rank)])

    def integers(self, x: Tensor) -> Tensor:
        """The integers of `x` as a float tensor; gradients pass straight through, over the scale."""
        self.require_scale()
        return _Integers.apply(x, self.along(x.dim()).detach(), self.spec.qmin, self.spec.qmax)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Look at a tensor. Moving averages and ranges become the scale at once, histograms when asked."""
        if self.observer is None or not x.numel() or self._is_settled():
            return
        self.observer.add(x.detach())
        if self.observer.is_cheap or self.quantizing:
            self.compute_scale()

    def _is_settled(self) -> bool:
        """True where training leaves the scale: fixed or learned ones, and in training what a histogram chose stays."""
        if self.observer is None:
            return True
        if not self.quantizing:
            return False
        if self.is_learned:
            return self.ready
        stays = not self.observer.is_cheap or (self.axis is None and self.spec.averaging == 0)
        return stays and self.is_ready()

    @torch.no_grad()
    def compute_scale(self) -> None:
        """Make the scale of what was observed; nothing where nothing was."""
        if self.observer is None or not self.observer.seen:
            return
        threshold = self.observer.threshold(self.spec)
        scale = torch.where(threshold > 0, threshold, torch.ones_like(threshold)) / -self.spec.qmin
        self.scale.copy_(scale.clamp_min(LEAST_SCALE))
        self.ready = True

    @torch.no_grad()
    def set_scale(self, scale: float | Tensor) -> None:
        """Set the scale by hand, one for all or one per channel, and observe no longer."""
        value = torch.as_tensor(scale, dtype=self.scale.dtype, device=self.scale.device)
        if not bool(((value > 0) & torch.isfinite(value)).all()):
            raise error(OptionError, f"the scale of {self.name!r} is {value.tolist()}", hint="give positive numbers")
        self.scale.copy_(value.expand_as(self.scale))
        self.observing, self.ready = False, True

    def is_ready(self) -> bool:
        """True where there is a scale."""
        self.ready = self.ready or bool((self.scale > 0).all())
        return self.ready

    def require_scale(self) -> None:
        """NotCalibrated where there is no scale."""
        if not self.ready and not self.is_ready():
            raise trouble(
                f"{self.name or 'a FakeQuantize'!r} has no scale yet",
                why="no data went through it while it observed",
                hint="calibrate(model, loader), or train in state QAT, before this",
                kind=NotCalibrated,
            )

    def extra_repr(self) -> str:
        scales = "per channel" if self.axis is not None else f"{float(self.scale.detach()[0]):.6g}"
        return f"{self.spec.dtype}, scale={scales}, observer={self.spec.observer}, {self.spec.kind}"


LEAST_SCALE = 1e-12  # of a tensor of next to nothing: ratios of scales stay inside of the fixed point's range


def is_tracing() -> bool:
    """True inside of torch.jit.trace."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def fake_quantize(x: Tensor, scale: Tensor, qmin: int, qmax: int, kind: str = "plain") -> Tensor:
    """clamp(floor(x/scale + 1/2), qmin, qmax) · scale. Gradients: 1 inside of the range, 0
    outside; by `kind`, the scale's.
    """
    if kind == "plain" or not scale.requires_grad:
        return _Fake.apply(x, scale.detach(), qmin, qmax)  # type: ignore[no-untyped-call]
    return _Learned.apply(x, scale, qmin, qmax, kind)  # type: ignore[no-untyped-call]


class _Fake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, qmin: int, qmax: int) -> Tensor:
        q = (x / scale).add_(0.5).floor_()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return q.clamp_(qmin, qmax).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside, None, None, None


class _Integers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, qmin: int, qmax: int) -> Tensor:
        q = (x / scale).add_(0.5).floor_()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((q >= qmin) & (q <= qmax), scale)
        return q.clamp_(qmin, qmax)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inside, scale = ctx.saved_tensors
        return grads[0] * inside / scale, None, None, None


class _Learned(torch.autograd.Function):
    """LSQ (Esser et al. 2020): ds = q − x/s inside, qmin or qmax outside, times 1/√(n·qmax). PACT: outside only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, qmin: int, qmax: int, kind: str) -> Tensor:
        t = x / scale
        q = torch.floor(t + 0.5)
        inside = (q >= qmin) & (q <= qmax)
        q = q.clamp_(qmin, qmax)
        slope = torch.where(inside, q - t, q) if kind == "lsq" else torch.where(inside, torch.zeros_like(q), q)
        ctx.save_for_backward(inside, slope)
        ctx.shape, ctx.factor = scale.shape, (x.numel() / scale.numel() * qmax) ** -0.5 if kind == "lsq" else 1.0
        return q * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inside, slope = ctx.saved_tensors
        of_scale = (grads[0] * slope).sum_to_size(_spread(ctx.shape, slope.dim())).reshape(ctx.shape) * ctx.factor
        return grads[0] * inside, of_scale, None, None, None


def _spread(shape: torch.Size, rank: int) -> list[int]:
    return [1] * (rank - len(shape)) + list(shape)


def require_int16(dtype: str, march: str, name: str) -> None:
    """BadQConfig for int16 on a march that has none."""
    from .march import has_int16

    if dtype == "int16" and not has_int16(march):
        where, hint = f"qconfig of {name!r}", "use int8 there, or set_march another chip"
        raise trouble(f"int16 isn't available on {march}", where=where, hint=hint, kind=BadQConfig)
