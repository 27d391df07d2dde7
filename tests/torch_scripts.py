"""Modules that tests script. TorchScript reads their source: arguments without annotations are tensors."""

# ruff: noqa: ANN001, ANN201, ANN204, RET505

from __future__ import annotations

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch makes and runs these models")
nn, F = torch.nn, torch.nn.functional
Heads = namedtuple("Heads", ["hm", "vaf"])  # noqa: PYI024 - as TorchScript takes it


class TwoInputs(nn.Module):
    def forward(self, image, ids, scaled: bool = True):
        return {"a": image * 2 if scaled else image, "b": ids + 1}


class Lists(nn.Module):
    def forward(self, xs):
        # type: (List[Tensor]) -> Tensor
        return xs[0]


class Nested(nn.Module):
    def forward(self, xs):
        # type: (List[List[Tensor]]) -> Tensor
        return xs[0][0]


class FromDict(nn.Module):
    def forward(self, data):
        # type: (Dict[str, Tensor]) -> Tensor
        return data["image"] * 2 + data["bias"]


class FromMany(nn.Module):
    def forward(self, pair, xs):
        # type: (Tuple[Tensor, Tensor], List[Tensor]) -> Tensor
        return pair[0] + pair[1] + torch.cat(xs, 1).sum(1)


class Grid(nn.Module):
    """A fake quantiser of the user's own, with a switch in a buffer and the fake quantisation behind an `if`."""

    def __init__(self, scale, zero_point, low=-128, high=127):
        super().__init__()
        self.register_buffer("scale", torch.tensor([scale]))
        self.register_buffer("zero_point", torch.tensor([zero_point], dtype=torch.int32))
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))
        self.low, self.high = low, high

    def forward(self, x):
        if int(self.fake_quant_enabled[0]) == 1:
            x = torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero_point, self.low, self.high)
        return x


class Holding(nn.Module):
    def __init__(self, q):
        super().__init__()
        self.q = q

    def forward(self, x):
        return self.q(x)


class MyFakeQuantize(Grid):
    """The same under a name that says what it is."""


class GridConv(nn.Module):
    """A convolution whose weight is fake-quantised."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) * 0.3)

    def forward(self, x):
        return F.conv2d(x, torch.fake_quantize_per_tensor_affine(self.weight, 0.01, 0, -127, 127), padding=1)


class Block(nn.Module):
    def __init__(self, channels, scale):
        super().__init__()
        self.conv = GridConv(channels)
        self.norm = nn.BatchNorm2d(channels)
        self.grid = Grid(scale, 0)

    def forward(self, x):
        return self.grid(F.relu(self.norm(self.conv(x))))


class Blocks(nn.Module):
    """A loop over modules, a size, a list that grows, an assertion."""

    def __init__(self):
        super().__init__()
        self.first = Grid(0.05, 0)
        self.blocks = nn.ModuleList([Block(3, 0.1), Block(3, 0.2)])

    def forward(self, x):
        assert x.dim() == 4
        x = self.first(x)
        seen = [x]
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        total = seen[0]
        for i in range(1, len(seen)):
            total = total + seen[i]
        if x.size(2) > 4:
            total = F.interpolate(total, scale_factor=2.0, mode="nearest")
        return torch.cat(seen, 1), total.view(x.shape[0], -1)


class Decides(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        else:
            return x - 1


class Named(nn.Module):
    def forward(self, x):
        return Heads(x + 1, x * 2)


class Checked(nn.Module):
    def forward(self, x):
        if x.dim() != 4:
            raise ValueError("it takes images")
        return x + 1


class Counts(nn.Module):
    """While, break, integers, a dict of tensors, an attribute that it sets."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        found = {"x": x}
        i = 0
        while True:
            found["x"] = found["x"] * 2
            i += 1
            if i >= 3:
                break
        self.steps = i
        return found["x"] + float(self.steps)


class Scripted(nn.Module):
    """Choosing, indexing and resizing as a script says it."""

    def forward(self, x):
        values, places = torch.topk(x, 2, dim=1)
        taken = torch.gather(x, 1, places)
        y = F.interpolate(taken + values, scale_factor=2.0, mode="bicubic", align_corners=False)
        rows = x.mean(dim=[2, 3]).argmax(dim=1)
        z = x[torch.arange(x.size(0)), rows]
        half = x[:, :, x.size(2) // 2 :]
        w = F.interpolate(half, size=[x.size(2), x.size(3)], mode="bilinear", align_corners=True)
        u = x.clone()
        u[:, :, ::2] = 0.0
        return y, z, w + u, torch.cumsum(x, 1), F.group_norm(x, 2), torch.where(x > 0, x, x * 0.5)


class QuantisedVolume(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 3, 3, 3) * 0.2)
        self.first, self.last = Grid(0.05, 0), Grid(0.05, 0)

    def forward(self, x):
        weight = torch.fake_quantize_per_tensor_affine(self.weight, 0.01, 0, -127, 127)
        y = F.relu(F.conv3d(self.first(x), weight, padding=1))
        return self.last(F.max_pool3d(y, 2))
