"""The digits network and its fake quantisation: i8 activations per tensor, i8 weights per output channel."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

QMAX = 127  # the range is [-127, 127]: without -128 it is symmetric, as the BPU's quantisation is


def fake_quantize(x: Tensor, scale: Tensor) -> Tensor:
    """`clamp(round_half_even(x / scale)) · scale`: ONNX's QuantizeLinear and back. Gradients pass where x fits."""
    q = torch.clamp(x / scale, -QMAX, QMAX)
    return (q + (torch.round(q) - q).detach()) * scale


class FakeQuant(nn.Module):
    """Fake quantisation of an activation: follows the largest magnitude while it observes, quantises once told to."""

    absmax: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("absmax", torch.zeros(()))
        self.observing = True
        self.quantizing = False

    @property
    def scale(self) -> Tensor:
        """The scale, a float32 scalar."""
        return self.absmax / QMAX

    def forward(self, x: Tensor) -> Tensor:
        """x, fake-quantised if this module quantises yet."""
        if self.observing and self.training:
            peak = x.detach().abs().max()
            self.absmax.copy_(torch.where(self.absmax == 0, peak, 0.98 * self.absmax + 0.02 * peak))
        return fake_quantize(x, self.scale) if self.quantizing else x


class QuantLayer(nn.Module):
    """A conv or linear layer whose weights are fake-quantised per output channel and whose bias lies on the i32 grid.

    `result` is the fake quantisation of what leaves the layer (behind its relu), or None where that stays unquantised.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, *, relu: bool = False, quantize_result: bool = True) -> None:
        super().__init__()
        self.layer = layer
        self.relu = relu
        self.result = FakeQuant() if quantize_result else None

    def weight_scale(self) -> Tensor:
        """Scales of the weights, float32[O]."""
        return self.layer.weight.detach().flatten(1).abs().amax(1) / QMAX

    def forward(self, x: Tensor, source: FakeQuant) -> Tensor:
        """The layer applied to x, which `source` quantised."""
        weight, bias = self.layer.weight, self.layer.bias
        assert bias is not None
        if source.quantizing:
            scale = self.weight_scale()
            weight = fake_quantize(weight, scale.view(-1, *[1] * (weight.dim() - 1)))
            step = source.scale * scale
            bias = bias + (torch.round(bias / step) * step - bias).detach()
        if isinstance(self.layer, nn.Conv2d):
            conv = self.layer
            x = nn.functional.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
        else:
            x = nn.functional.linear(x, weight, bias)
        x = torch.relu(x) if self.relu else x
        return x if self.result is None else self.result(x)


def conv(channels: int, out: int, kernel: int, *, groups: int = 1, relu: bool = True) -> QuantLayer:
    """A convolution that keeps height and width."""
    return QuantLayer(nn.Conv2d(channels, out, kernel, padding=kernel // 2, groups=groups), relu=relu)


class DigitsNet(nn.Module):
    """f32[N, 1, 8, 8] in 0..1 → logits f32[N, 10].

    conv – (depthwise – pointwise, added to its input) – maxpool – conv – maxpool – linear. The logits are not
    quantised: the last layer's accumulator is the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image = FakeQuant()
        self.stem = conv(1, 16, 3)
        self.depthwise = conv(16, 16, 3, groups=16)
        self.pointwise = conv(16, 16, 1, relu=False)
        self.total = FakeQuant()
        self.wide = conv(16, 32, 3)
        self.head = QuantLayer(nn.Linear(128, 10), quantize_result=False)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images."""
        stem = self.stem(self.image(image), self.image)
        branch = self.depthwise(stem, _quant(self.stem))
        branch = self.pointwise(branch, _quant(self.depthwise))
        x = self.total(torch.relu(stem + branch))
        x = nn.functional.max_pool2d(x, 2)
        x = self.wide(x, self.total)
        x = nn.functional.max_pool2d(x, 2)
        return cast("Tensor", self.head(x.flatten(1), _quant(self.wide)))

    def start_quantizing(self) -> None:
        """End of the float warm-up: every fake quantisation takes effect."""
        for module in self.modules():
            if isinstance(module, FakeQuant):
                module.quantizing = True

    def freeze_scales(self) -> None:
        """Keep the activation scales as they are from here on."""
        for module in self.modules():
            if isinstance(module, FakeQuant):
                module.observing = False


def _quant(layer: QuantLayer) -> FakeQuant:
    assert layer.result is not None
    return layer.result
