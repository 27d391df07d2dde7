"""What a model's author writes into it: where numbers become integers, where they become reals again, and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class QuantStub(nn.Module):
    """Here a real tensor becomes integers. `scale`: fixed, else calibrated."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.fixed_scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x


class DeQuantStub(nn.Module):
    """Here integers become a real tensor again; what follows is not quantised."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def _cap(x: Tensor, low: float, high: float) -> Tensor:
    return torch.clamp(x, low, high)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "matmul": torch.matmul,
    "cat": torch.cat,
    "sum": torch.sum,
    "mean": torch.mean,
    "pow": torch.pow,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "softmax": torch.softmax,
    "clamp": _cap,
}


class FloatFunctional(nn.Module):
    """One arithmetic operation with statistics of its own: `self.add = FloatFunctional()`, `self.add.add(x, y)`.

    Each instance belongs to one place in `forward`: its name is the operation's, and so is its scale. A second call
    in one forward is an error when the model is prepared.
    """

    def forward(self, function: str, *args: Any, **kwargs: Any) -> Tensor:
        return _FUNCTIONS[function](*args, **kwargs)

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self("add", x, y)

    def sub(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self("sub", x, y)

    def mul(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self("mul", x, y)

    def div(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self("div", x, y)

    add_scalar = add
    mul_scalar = mul

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        return self("matmul", x, y)

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        return self("cat", tensors, dim=dim)

    def sum(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:  # noqa: FBT001, FBT002
        return self("sum", x, dim=dim, keepdim=keepdim)

    def mean(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:  # noqa: FBT001, FBT002
        return self("mean", x, dim=dim, keepdim=keepdim)

    def pow(self, x: Tensor, exponent: float) -> Tensor:
        return self("pow", x, exponent)

    def sqrt(self, x: Tensor) -> Tensor:
        return self("sqrt", x)

    def exp(self, x: Tensor) -> Tensor:
        return self("exp", x)

    def maximum(self, x: Tensor, y: Tensor) -> Tensor:
        return self("maximum", x, y)

    def minimum(self, x: Tensor, y: Tensor) -> Tensor:
        return self("minimum", x, y)

    def softmax(self, x: Tensor, dim: int) -> Tensor:
        return self("softmax", x, dim=dim)

    def clamp(self, x: Tensor, low: float, high: float) -> Tensor:
        return self("clamp", x, low, high)
