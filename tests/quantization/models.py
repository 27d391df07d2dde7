"""Small models, one for each thing that a captured graph may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hbc.quantization import DeQuantStub, FloatFunctional, QuantStub, wrap


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.a = nn.Conv2d(8, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = functional.relu(self.bn(self.a(x)) + x)
        x = self.b(x) + x
        return self.head(x)


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.bn0 = nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12)
        self.depth, self.bn1 = nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=12), nn.BatchNorm2d(12)
        self.act = nn.ReLU6()
        self.project = nn.Conv2d(12, 6, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn0(self.expand(x)))
        x = self.act(self.bn1(self.depth(x)))
        return self.head(self.pool(self.project(x)).flatten(1))


class Deconv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.grouped = nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2)
        self.head = nn.Conv2d(4, 2, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(
            functional.relu(self.grouped(functional.relu(self.bn(self.up(functional.relu(self.down(x)))))))
        )


class ConcatNorm(nn.Module):
    """A batch norm behind a concat of a convolution and a pool, as in ENet and ERFNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.MaxPool2d(2)
        self.bn, self.head = nn.BatchNorm2d(8), nn.Conv2d(8, 3, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.bn(torch.cat([self.conv(x), self.pool(x)], 1))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, t, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, c))
        return self.down(functional.gelu(self.up(x)))


class Sampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.offset, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        return self.head(functional.grid_sample(self.features(x), grid, align_corners=True))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.sum = FloatFunctional()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = self.shared(self.stem(x))
        b = self.shared(torch.sigmoid(a))
        return {"small": self.head(a), "large": self.head(self.sum.add(a, b))}


class Heads(nn.Module):
    """Outputs in a list of a dict, inputs in a dict; real parts outside of the stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.body, self.hm, self.vaf = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 1, 1), nn.Conv2d(6, 2, 1)

    def forward(self, data: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        x = functional.leaky_relu(self.body(self.quant(data["image"])), 0.1)
        return [{"hm": self.dequant(self.hm(x)), "vaf": self.dequant(functional.relu(self.vaf(x)))}]


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.hardswish(self.conv(x))
        small = functional.max_pool2d(functional.avg_pool2d(x, 3, stride=2, padding=1), 3, stride=1, padding=1)
        up = functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        near = functional.interpolate(small, scale_factor=2, mode="nearest")
        return self.head(torch.cat([up * x, near - x], 1))


class Pair(NamedTuple):
    boxes: Tensor
    scores: Tensor


@dataclass
class Detections:
    pair: Pair
    extra: Tensor


@wrap
def decode(x: Tensor) -> Tensor:
    return torch.clamp(x, -0.5, 0.5) * 2.0


class Mixed(nn.Module):
    """A wrapped function and structured outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.box, self.score = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Detections:
        x = torch.tanh(self.conv(x))
        a, b = x.chunk(2, dim=1)
        return Detections(Pair(decode(self.box(x)), self.score(x)), (a * b)[:, :, 1:, ::2].flatten(2))


IMAGE = (2, 3, 12, 16)
MODELS: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
    "residual": (Residual, IMAGE),
    "depthwise": (Depthwise, IMAGE),
    "deconv": (Deconv, IMAGE),
    "concat-norm": (ConcatNorm, IMAGE),
    "attention": (Attention, (2, 10, 16)),
    "grid-sample": (Sampler, IMAGE),
    "shared": (Shared, IMAGE),
    "heads": (Heads, IMAGE),
    "pools": (Pools, IMAGE),
    "mixed": (Mixed, IMAGE),
}


def built(name: str, seed: int = 0) -> tuple[nn.Module, list[Any]]:
    """A model with weights and statistics that aren't trivial, and four batches for it."""
    kind, shape = MODELS[name]
    torch.manual_seed(seed)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    batches = [torch.randn(shape) * 1.5 for _ in range(4)]
    return model.eval(), [({"image": b},) if name == "heads" else (b,) for b in batches]
