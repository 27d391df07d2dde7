"""Quantised units: one operation with what is fused into it, and the FakeQuantize of its result.

`activation_post_process` is that FakeQuantize; None means a high-precision output (the i32 accumulator).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from hbc.diagnostics import NormInTraining, WrongDevice

from .errors import trouble
from .fake_quantize import FakeQuantize, is_tracing

MARK = "_hbc_source"  # attribute of an eager unit's result: the FakeQuantize whose integers it holds
MODES = ("auto", "exact", "plain")
_FUNCTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
    nn.ConvTranspose1d: functional.conv_transpose1d,
    nn.ConvTranspose2d: functional.conv_transpose2d,
    nn.ConvTranspose3d: functional.conv_transpose3d,
    nn.Linear: functional.linear,
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
}


class QuantizedUnit(nn.Module, abc.ABC):
    """Base of what `prepare` puts in the place of operations.

    `mode`: `exact` computes the integers of the compiled program, `plain` fake-quantised reals, `auto` is exact in eval
    and plain in training. `sources`: per operand the FakeQuantize that its values come from, None where it is real.
    """

    is_unit = True
    eager = False  # in a model of method="eager": where operands come from is seen at each call
    activation_post_process: FakeQuantize | None

    def __init__(self, name: str, march: str) -> None:
        super().__init__()
        self.unit_name, self.march, self.mode = name, march, "auto"
        self.sources: list[FakeQuantize | None] = []
        self.exact: Any = None  # the strategy of exact forward, made when it is first needed
        self.activation_post_process = None

    def is_exact(self) -> bool:
        """True where this call computes the program's integers."""
        if self.mode == "plain" or (self.mode == "auto" and self.training) or is_tracing():
            return False
        fq = self.activation_post_process
        if fq is not None and not fq.quantizing:
            return False
        return bool(self.sources) and all(s is not None and s.quantizing for s in self.sources)

    def forward(self, *operands: Tensor) -> Tensor:
        if self.eager:
            self.sources = [getattr(x, MARK, s) for x, s in zip(operands, self.sources, strict=True)]
        y = self._result(operands)
        if self.eager:
            setattr(y, MARK, self.activation_post_process)
        return y

    def _result(self, operands: Sequence[Tensor]) -> Tensor:
        if self.is_exact():
            from .exact import strategy

            if self.exact is None:
                self.exact = strategy(self)
            with torch.autocast(operands[0].device.type, enabled=False):  # half precision would round the integers
                return self.exact(self, operands)
        return self.plain(*operands)

    def plain(self, *operands: Tensor) -> Tensor:
        """Reals on the grid of the result's FakeQuantize."""
        y = self.compute(*operands)
        fq = self.activation_post_process
        return y if fq is None else fq(y)

    @abc.abstractmethod
    def compute(self, *operands: Tensor) -> Tensor:
        """The operation in reals, before its result is quantised."""

    def reach(self) -> tuple[int, int]:
        """The least and the largest integer of the result, as far as the unit alone says."""
        from .exact import strategy

        fq = self.activation_post_process
        assert fq is not None
        if self.sources and all(s is not None for s in self.sources):
            if self.exact is None:
                self.exact = strategy(self)
            return self.exact.reach(self, fq) if hasattr(self.exact, "reach") else (fq.spec.qmin, fq.spec.qmax)
        return fq.spec.qmin, fq.spec.qmax

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "exact": None}  # holds compiled programs, which can't be copied


class QuantizedInput(QuantizedUnit):
    """Where reals become integers: an input of the model, a QuantStub, or a result of the CPU's."""

    def is_exact(self) -> bool:
        fq = self.activation_post_process
        if self.mode == "plain" or (self.mode == "auto" and self.training) or is_tracing():
            return False
        return fq is not None and fq.quantizing

    def forward(self, *operands: Tensor) -> Tensor:
        self._check_device(operands[0])
        return super().forward(*operands)

    def _check_device(self, x: Tensor) -> None:
        fq = self.activation_post_process
        if fq is not None and x.device != fq.scale.device:
            raise trouble(
                "model and input are on different devices",
                where=f"module {self.unit_name!r}",
                why=f"its scale is on {fq.scale.device}, the input is on {x.device}",
                hint=f"move the input, x.to({str(fq.scale.device)!r}), or all of the model",
                kind=WrongDevice,
            )

    def compute(self, *operands: Tensor) -> Tensor:
        return operands[0]


class QuantizedWeighted(QuantizedUnit):
    """{conv, conv transpose, linear, conv3d} [+ bn] [+ add] [+ relu | relu6]."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, name: str, march: str, layer: Any, bn: nn.Module | None, activation: str) -> None:
        super().__init__(name, march)
        self.weight, self.bias = layer.weight, layer.bias
        self.bn, self.kind, self.activation = bn, type(layer), activation
        self.transposed = isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
        self.axis = 1 if self.transposed else 0
        self.has_addend = False
        self.geometry = _geometry(layer)
        self.weight_fake_quant: FakeQuantize

    @property
    def groups(self) -> int:
        """Groups of channels; 1 of a linear layer."""
        return int(self.geometry.get("groups", 1))

    @property
    def out_channels(self) -> int:
        """Channels of the result."""
        return int(self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0])

    def factor(self) -> tuple[Tensor, Tensor]:
        """What a batch norm of frozen statistics multiplies by and adds, per channel."""
        bn: Any = self.bn
        gain = torch.rsqrt(bn.running_var + bn.eps)
        gain = gain if bn.weight is None else gain * bn.weight
        shift = -bn.running_mean * gain
        return gain, shift if bn.bias is None else shift + bn.bias

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with the batch norm in them."""
        if self.bn is None:
            return self.weight, self.bias
        gain, shift = self.factor()
        return self.scaled(gain), shift if self.bias is None else self.bias * gain + shift

    def scaled(self, gain: Tensor) -> Tensor:
        """The weight with every output channel multiplied."""
        return self.weight * gain.view([-1 if i == self.axis else 1 for i in range(self.weight.dim())])

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product alone."""
        return _FUNCTIONS[self.kind](x, weight, bias, **self.geometry)

    def compute(self, *operands: Tensor) -> Tensor:
        x = operands[0]
        if self.bn is not None and self.training and self.bn.training:
            self._check_norm()
            y = self._with_batch_statistics(x)
        else:
            weight, bias = self.folded()
            y = self.product(x, self.weight_fake_quant(weight), bias)
        if self.has_addend:
            y = y + operands[1]
        return ACTIVATIONS[self.activation](y)

    def _check_norm(self) -> None:
        fq = self.weight_fake_quant
        if fq.observing and not fq.quantizing:
            raise trouble(
                f"the batch norm of {self.unit_name!r} is in training mode while the model is calibrated",
                why="its statistics would follow the calibration data",
                hint="model.eval() before the calibration; calibrate(model, loader) does that",
                kind=NormInTraining,
            )

    def _with_batch_statistics(self, x: Tensor) -> Tensor:
        """Weights are quantised as they will be deployed; the batch norm sees the plain convolution."""
        gain, _ = self.factor()
        weight = self.weight_fake_quant(self.scaled(gain))
        y = self.product(x, weight)
        along = [-1 if i == 1 else 1 for i in range(y.dim())]
        y = y / torch.where(gain == 0, torch.ones_like(gain), gain).view(along)
        if self.bias is not None:
            y = y + self.bias.view(along)
        assert self.bn is not None
        return self.bn(y)

    def extra_repr(self) -> str:
        parts = [self.kind.__name__, "x".join(map(str, self.weight.shape))]
        parts += ["add"] if self.has_addend else []
        parts += [self.activation] if self.activation else []
        parts += ["high precision output"] if self.activation_post_process is None else []
        return ", ".join(parts)


def _geometry(layer: Any) -> dict[str, Any]:
    if isinstance(layer, nn.Linear):
        return {}
    names = ["stride", "padding", "dilation", "groups"]
    if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        names.append("output_padding")
    return {name: getattr(layer, name) for name in names}


class QuantizedOperation(QuantizedUnit):
    """Any other operation: `body` is its graph in reals, with one placeholder per operand."""

    def __init__(self, name: str, march: str, operation: str, body: fx.GraphModule) -> None:
        super().__init__(name, march)
        self.operation, self.body = operation, body

    def compute(self, *operands: Tensor) -> Tensor:
        return self.body(*operands)

    def divisor(self) -> tuple[int, ...]:
        """The least and the largest integer of what the unit divides by; () where it is no division of two tensors.

        The compiler is told them: alone and in the whole model a division then becomes the same instructions.
        """
        if self.operation != "div" or len(self.sources) != 2 or self.sources[1] is None:
            return ()
        nodes = [n for n in self.body.graph.nodes if n.op != "output"]
        if len(nodes) != 3 or nodes[2].args != tuple(nodes[:2]) or nodes[2].kwargs:
            return ()
        source = self.sources[1]
        return source_reach(source)

    def extra_repr(self) -> str:
        return self.operation


def source_reach(source: FakeQuantize) -> tuple[int, int]:
    """The least and the largest integer that leaves `source`, as far as the units on the way to it say."""
    return source.maker[0].reach() if source.maker else (source.spec.qmin, source.spec.qmax)


def units_of(model: nn.Module) -> dict[str, QuantizedUnit]:
    """The units of a prepared model by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, QuantizedUnit)}


def is_prepared(model: nn.Module) -> bool:
    """True for a model that `prepare` returned."""
    return any(isinstance(m, QuantizedUnit) for m in model.modules())
