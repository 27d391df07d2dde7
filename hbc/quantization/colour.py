"""Colour conversion in front of a net: RGB or BGR → centered YUV444, in the chip's integers.

The BPU's own images are centered YUV444: int8, each channel minus 128. A net that is trained on them needs no
conversion on the board. The matrix is ITU-R BT.601's; `studio` swing is −112 … 107 for Y and ±112 for U and V,
`full` is −128 … 127 (the vendor's manual).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .errors import no_such
from .fake_quantize import FakeQuantize, FakeQuantSpec

Order = Literal["rgb", "bgr"]
Swing = Literal["studio", "full"]
ORDERS, SWINGS = ("rgb", "bgr"), ("studio", "full")
MIDDLE = 128.0
_FULL = (  # Y, U, V of R, G, B: BT.601, with Kr = 0.299 and Kb = 0.114
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.5),
    (0.5, -0.587 / 1.402, -0.114 / 1.402),
)
_STUDIO = (219 / 255, 224 / 255, 224 / 255)
_TRIES = 400  # scales that are tried for the integers of a row


def matrix(order: Order, swing: Swing) -> tuple[Tensor, Tensor]:
    """Weights [3, 3] and offsets [3] from centered RGB or BGR (minus 128) to centered YUV. OptionError for others."""
    for what, value, known in (("order of colours", order, ORDERS), ("swing", swing, SWINGS)):
        if value not in known:
            raise no_such(what, str(value), known)
    weight = torch.tensor(_FULL, dtype=torch.float64)
    if swing == "studio":
        weight = weight * torch.tensor(_STUDIO, dtype=torch.float64).unsqueeze(1)
    sums = torch.tensor([float(weight[0].sum()), 0.0, 0.0], dtype=torch.float64)  # of U and V exactly 0
    offset = MIDDLE * sums + torch.tensor([(16.0 if swing == "studio" else 0.0) - MIDDLE, 0.0, 0.0])
    return (weight.flip(1) if order == "bgr" else weight), offset


class CenteredYuv444(nn.Module):
    """RGB or BGR images [N, 3, H, W] of 0 … 255 → centered YUV444, of reals.

    `centered_input`: the image is −128 … 127 already, as the chip's own `rgb` and `bgr` inputs are; else 128 is
    subtracted first, on the CPU. In a prepared model it is a convolution of int8 by int8 whose scales are 1 for image
    and result, whatever was calibrated: integers in, integers out.
    """

    weight: Tensor
    offset: Tensor

    def __init__(self, order: Order = "rgb", swing: Swing = "studio", *, centered_input: bool = False) -> None:
        super().__init__()
        weight, offset = matrix(order, swing)
        self.order, self.swing, self.centered_input = order, swing, centered_input
        self.register_buffer("weight", weight.float(), persistent=False)
        self.register_buffer("offset", offset.float(), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        x = image if self.centered_input else image - MIDDLE
        return nn.functional.conv2d(x, self.weight.view(3, 3, 1, 1), self.offset)

    def extra_repr(self) -> str:
        return f"{self.order}, {self.swing} swing"

    def layer(self) -> nn.Conv2d:
        """The convolution of centered images that it is; nothing of it is trained."""
        conv = nn.Conv2d(3, 3, 1, device=self.weight.device)
        with torch.no_grad():
            conv.weight.copy_(self.weight.view(3, 3, 1, 1))
            assert conv.bias is not None
            conv.bias.copy_(self.offset)
        return conv.requires_grad_(requires_grad=False)

    def weight_fake_quant(self, name: str) -> FakeQuantize:
        """int8 with the scale of each row that leaves the least error over all colours."""
        fq = FakeQuantize(FakeQuantSpec("int8", scale=1.0), axis=0, channels=3).to(self.weight.device)
        fq.set_scale(torch.tensor([_best_scale(row) for row in self.weight.double().tolist()]))
        fq.name = name
        return fq


def _best_scale(row: list[float]) -> float:
    """Of scales whose largest integer is 64 … 127, the one with the least Σ|w − q·s|."""
    largest = max(abs(w) for w in row)
    scales = [largest / (127 - 63 * i / _TRIES) for i in range(_TRIES + 1)]
    return min(scales, key=lambda s: sum(abs(w - round(w / s) * s) for w in row))


def rgb2centered_yuv(image: Tensor, swing: Swing = "studio") -> Tensor:
    """Images [N, 3, H, W] of 0 … 255 as centered YUV444 of reals; round them to train on what the camera gives."""
    return CenteredYuv444("rgb", swing).to(image.device)(image.float())


def bgr2centered_yuv(image: Tensor, swing: Swing = "studio") -> Tensor:
    """As `rgb2centered_yuv`, of BGR images."""
    return CenteredYuv444("bgr", swing).to(image.device)(image.float())
