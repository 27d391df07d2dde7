"""A LaneAF-style network on factorised convolutions, as ERFNet has them: three maps, a quarter of the image's size.

Down-samplers are a convolution and a pool side by side, with a batch norm behind the concat; blocks are residual, of
3×1 and 1×3 convolutions with growing dilation; a transposed convolution leads up again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hbc.quantization import DeQuantStub, QuantStub

HEADS = {"hm": 1, "vaf": 2, "haf": 1}
ALL = "all"  # the decoder that every head reads


@dataclass(frozen=True)
class Plan:
    """Widths at a half, a quarter and an eighth of the image, and how many blocks there are.

    `near`: blocks at a quarter. `dilations`: of the blocks at an eighth. `after`: blocks behind the up-sampler.
    `shared`: one decoder for the heads, or one each.
    """

    widths: tuple[int, int, int]
    near: int
    dilations: tuple[int, ...]
    after: int
    shared: bool = True


PLANS = {
    "compact": Plan((8, 24, 48), 1, (2, 4, 8), 1),
    "full": Plan((16, 64, 128), 5, (2, 4, 8, 16, 2, 4, 8, 16), 2, shared=False),
}


class Down(nn.Module):
    """Half the size: a strided convolution and a pool, concatenated and normalised."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out - channels, 3, stride=2, padding=1, bias=False)
        self.pool, self.norm, self.relu = nn.MaxPool2d(2), nn.BatchNorm2d(out), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """f32[N, channels, H, W] → f32[N, out, H/2, W/2]."""
        return self.relu(self.norm(torch.cat([self.conv(x), self.pool(x)], dim=1)))


class Factorised(nn.Module):
    """A residual block of 3×1 and 1×3 convolutions, the second pair dilated."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        d = dilation
        self.down1 = nn.Conv2d(channels, channels, (3, 1), padding=(1, 0))
        self.across1 = nn.Conv2d(channels, channels, (1, 3), padding=(0, 1), bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.down2 = nn.Conv2d(channels, channels, (3, 1), padding=(d, 0), dilation=(d, 1))
        self.across2 = nn.Conv2d(channels, channels, (1, 3), padding=(0, d), dilation=(1, d), bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        y = self.relu(self.norm1(self.across1(self.relu(self.down1(x)))))
        y = self.norm2(self.across2(self.relu(self.down2(y))))
        return self.relu(y + x)


class Up(nn.Module):
    """Twice the size."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out, 3, stride=2, padding=1, output_padding=1, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(out), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """f32[N, channels, H, W] → f32[N, out, 2H, 2W]."""
        return self.relu(self.norm(self.conv(x)))


class LaneNet(nn.Module):
    """image f32[N, 3, H, W] → {"hm": f32[N, 1, H/4, W/4] logits, "vaf": f32[N, 2, …], "haf": f32[N, 1, …]}."""

    def __init__(self, plan: Plan = PLANS["compact"]) -> None:
        super().__init__()
        half, quarter, eighth = plan.widths
        self.quant, self.dequant = QuantStub(scale=1 / 128), DeQuantStub()  # pixels minus 128 are integers already
        near = [Factorised(quarter) for _ in range(plan.near)]
        far = [Factorised(eighth, d) for d in plan.dilations]
        self.encoder = nn.Sequential(Down(3, half), Down(half, quarter), *near, Down(quarter, eighth), *far)
        names = (ALL,) if plan.shared else tuple(HEADS)
        self.decoders = nn.ModuleDict({n: _decoder(eighth, quarter, plan.after) for n in names})
        self.heads = nn.ModuleDict({n: nn.Conv2d(quarter, channels, 1) for n, channels in HEADS.items()})

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """The maps of a batch of images."""
        features = self.encoder(self.quant(image))
        decoded = {name: decoder(features) for name, decoder in self.decoders.items()}
        return {n: self.dequant(head(decoded[n if n in decoded else ALL])) for n, head in self.heads.items()}


def _decoder(channels: int, out: int, after: int) -> nn.Sequential:
    return nn.Sequential(Up(channels, out), *[Factorised(out) for _ in range(after)])
