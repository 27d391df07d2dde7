"""Small nets that 8 bits with one scale per tensor hardly hold, each for another reason."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class WideChannels(nn.Module):
    """The channels of `spread` differ by a factor of 1000; `gather` makes them equal again."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.gather = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=8)
        scales = torch.logspace(0, -3, 8).reshape(8, 1, 1, 1)
        with torch.no_grad():
            self.spread.weight.copy_(torch.randn(8, 3, 1, 1) * scales)
            self.spread.bias.zero_()
            self.gather.weight.copy_(1 / scales)
            self.gather.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.gather(self.spread(x))


class Asymmetric(nn.Module):
    """The input is 100 ± 0.3: its integers hold the 100, not the rest. `centre` takes the 100 off."""

    def __init__(self) -> None:
        super().__init__()
        self.centre, self.head = nn.Conv2d(3, 3, 1, groups=3), nn.Conv2d(3, 4, 3, padding=1)
        with torch.no_grad():
            self.centre.weight.fill_(-1.0)
            self.centre.bias.fill_(100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.centre(x))


class WideWeights(nn.Module):
    """`mix` has weights of 5 for a channel that is always 0, and of 0.02 for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 4, 1)
        with torch.no_grad():
            self.mix.weight.normal_(0, 0.02)
            self.mix.weight[:, 0] = 5.0
            self.mix.bias.zero_()
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(x)))


class Friendly(nn.Module):
    """Nothing is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


@dataclass(frozen=True)
class Case:
    """A net, its channels in, and what the debug kit shall flag: (unit, what, a word of the reason)."""

    kind: type[nn.Module]
    channels: int
    flags: tuple[tuple[str, str, str], ...]


CASES = {
    "wide-channels": Case(WideChannels, 3, (("spread", "result", "wide"),)),
    "asymmetric": Case(Asymmetric, 3, (("x_quant", "result", "asymmetric"),)),
    "wide-weights": Case(WideWeights, 8, (("mix", "weight", "wide"),)),
    "friendly": Case(Friendly, 3, ()),
}


def hostile(name: str) -> tuple[nn.Module, list[Tensor]]:
    """The net and four batches for it."""
    torch.manual_seed(0)
    case = CASES[name]
    model = case.kind().eval()
    data = [torch.randn(4, case.channels, 8, 8) for _ in range(4)]
    if name == "asymmetric":
        data = [100 + 0.3 * x for x in data]
    if name == "wide-weights":
        for x in data:
            x[:, 0] = 0.0
    return model, data
