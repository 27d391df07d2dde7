"""The networks of `python -m bench.qat`: a residual net, inverted bottlenecks, one for lanes, one of attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def _conv(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
    ]


class Basic(nn.Module):
    """Two convolutions and a sum."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Sequential(*_conv(cin, cout, 3, stride), nn.ReLU())
        self.b = nn.Sequential(*_conv(cout, cout))
        self.skip = nn.Sequential(*_conv(cin, cout, 1, stride)) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.b(self.a(x)) + self.skip(x))


class Residual(nn.Module):
    """ResNet's kind: three stages of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(2))
        widths = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.body = nn.Sequential(*[Basic(*w) for w in widths])
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(self.stem(x))).flatten(1))


class Bottleneck(nn.Module):
    """Expand, depthwise, project; a sum where the shapes agree."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        wide = 4 * cin
        layers = [*_conv(cin, wide, 1), nn.ReLU6(), *_conv(wide, wide, 3, stride, wide), nn.ReLU6()]
        self.body = nn.Sequential(*layers, *_conv(wide, cout, 1))
        self.adds = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class Mobile(nn.Module):
    """MobileNetV2's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv(3, 16, 3, 2), nn.ReLU6())
        widths = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)]
        self.body = nn.Sequential(*[Bottleneck(*w) for w in widths])
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(self.stem(x))).flatten(1))


class Factorised(nn.Module):
    """ERFNet's block: 3×1 and 1×3 convolutions, one pair of them depthwise, and a sum."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        d = dilation
        self.body = nn.Sequential(
            nn.Conv2d(width, width, (3, 1), padding=(1, 0)), nn.ReLU(),
            nn.Conv2d(width, width, (1, 3), padding=(0, 1), bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, (3, 3), padding=(d, d), dilation=(d, d), groups=width), nn.ReLU(),
            nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + x)


class Down(nn.Module):
    """A convolution beside a pool, concatenated, with a batch norm behind."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(cin, cout - cin, 3, 2, 1), nn.MaxPool2d(2)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(torch.cat([self.conv(x), self.pool(x)], 1)))


class Lanes(nn.Module):
    """LaneAF's kind: an encoder of factorised blocks, a deconvolution, a resized skip, three heads at a quarter."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(Down(3, 16), Down(16, 32))
        self.quarter = Factorised(32, 1)
        self.deep = nn.Sequential(Down(32, 48), Factorised(48, 2), Factorised(48, 4))
        self.up = nn.Sequential(nn.ConvTranspose2d(48, 32, 3, 2, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.side = nn.Conv2d(48, 16, 1)
        self.mix = nn.Sequential(*_conv(48, 32, 1), nn.ReLU())
        self.hm, self.vaf, self.haf = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 2, 1), nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        near = self.quarter(self.down(x))
        far = self.deep(near)
        side = functional.interpolate(self.side(far), scale_factor=2, mode="bilinear", align_corners=False)
        y = self.mix(torch.cat([self.up(far) + near, side], 1))
        return {"hm": self.hm(y), "vaf": self.vaf(y), "haf": self.haf(y)}


class Block(nn.Module):
    """A transformer's block: norm, attention of several heads, norm, two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, count, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (p.reshape(n, count, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        share = functional.softmax(q @ k.transpose(-2, -1), -1)
        x = x + self.mix((share @ v).transpose(1, 2).reshape(n, count, width))
        return x + self.narrow(functional.relu(self.wide(self.behind(x))))


class Attention(nn.Module):
    """A vision transformer's kind: patches, two blocks, a head of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.blocks = nn.Sequential(Block(64, 4), Block(64, 4))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(tokens).mean(1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (8, 3, 160, 160)),
    "mobile": (Mobile, (8, 3, 160, 160)),
    "lanes": (Lanes, (2, 3, 288, 832)),  # LaneAF's size
    "lanes-small": (Lanes, (2, 3, 96, 256)),  # a size at which Python's own time shows
    "attention": (Attention, (8, 3, 128, 128)),
    "attention-small": (Attention, (2, 3, 32, 32)),
}
