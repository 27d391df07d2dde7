"""Which tensors share memory, and where in it: what writing in place (`torch_views`) has to know.

Tensors on the example are PyTorch's own, so it is PyTorch that says whether a result is a view: `reshape` gives one of
a tensor that lies in order, and a copy of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def shares(part: Any, whole: Any) -> bool:
    """Whether two tensors lie in the same memory. Empty ones lie nowhere."""
    if part is whole or not part.numel() or not whole.numel():
        return False
    return bool(part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr())


def laid_out(torch: Any, tensor: Any, like: Any) -> Any:
    """`tensor` in the order of `like`'s memory: what is written in place stays where it is."""
    if tensor.is_quantized or tensor.shape != like.shape or tensor.stride() == like.stride():
        return tensor
    if 0 in like.stride():
        return tensor  # an expanded one: PyTorch doesn't write to it
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype).copy_(tensor)


def axes_order(torch: Any, function: Callable[..., Any], rest: Sequence[Any], rank: int) -> list[int]:
    """The order into which `function` brings the axes of a tensor of `rank`: transpose, permute, movedim, mT …"""
    probe = torch.empty([2] * rank, device="meta")  # every axis has a stride of its own
    strides = probe.stride()
    return [strides.index(s) for s in function(probe, *rest).stride()]


def places(torch: Any, function: Callable[..., Any], rest: Sequence[Any], shape: Sequence[int]) -> Any:
    """For each element of the view that `function` takes of a tensor of `shape`: its place among all, in order."""
    counted = torch.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))
    return function(counted, *rest).reshape(-1)


def strided_places(torch: Any, tensor: Any, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Any:
    """For each element of `tensor.as_strided(size, stride, offset)`: its place in `tensor`, in order.

    As a tensor of `size`; None where it reads memory that is no part of `tensor`.
    """
    start = tensor.storage_offset()
    end = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = torch.full((end,), -1)
    memory.as_strided(tensor.shape, tensor.stride(), start).copy_(torch.arange(tensor.numel()).reshape(tensor.shape))
    found = memory.as_strided(tuple(size), tuple(stride), start if offset is None else offset)
    return None if bool((found < 0).any()) else found.clone()
