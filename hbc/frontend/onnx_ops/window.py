"""Kernel, strides, pads and dilations of sliding windows, by ONNX's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..building import Building
from ..onnx_node import Node

LARGEST = 1 << 20  # of a kernel, stride, dilation or pad: beyond any real model, and safe to add and multiply


@dataclass(frozen=True)
class Window:
    """A sliding window; `pads` holds begins, then ends, and may be negative."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def lifted(self) -> Window:
        """A 1-D window as a 2-D one of height 1."""
        (k,), (s,), (d,) = self.kernel, self.strides, self.dilations
        return Window((1, k), (1, s), (0, self.pads[0], 0, self.pads[1]), (1, d))

    def planes(self) -> Window:
        """What a 3-D window does in each plane."""
        pads = (*self.pads[1:3], *self.pads[4:])
        return Window(self.kernel[1:], self.strides[1:], pads, self.dilations[1:])

    def ordered(self, axes: Sequence[int]) -> Window:
        """The window with its axes in another order."""
        rank = len(self.kernel)
        kernel, strides, dilations = (tuple(v[i] for i in axes) for v in (self.kernel, self.strides, self.dilations))
        return Window(kernel, strides, tuple(self.pads[i + j] for j in (0, rank) for i in axes), dilations)

    def count(self, axis: int, size: int, n: Building) -> int:
        """Whole windows along an axis of `size`; FrontendError where there is none."""
        reach = size + self.pads[axis] + self.pads[len(self.kernel) + axis]
        found = (reach - self.dilations[axis] * (self.kernel[axis] - 1) - 1) // self.strides[axis] + 1
        if found < 1:
            raise n.fail("the kernel doesn't fit the padded input", why=f"kernel {list(self.kernel)}, axis of {size}")
        return found


def positive(n: Node, name: str, values: Sequence[int]) -> None:
    """FrontendError unless every value lies in 1..LARGEST."""
    if values and not (min(values) >= 1 and max(values) <= LARGEST):
        raise n.fail(
            f"attribute '{name}' is {list(values)}", why=f"entries lie in 1 to {LARGEST}", hint="export the model again"
        )


def split_padding(total: int, *, upper: bool) -> tuple[int, int]:
    """(begin, end) of an automatic pad; an odd one goes to the end where `upper`."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def read_window(n: Node, size: Sequence[int], kernel: Sequence[int] | None, *, resolve: bool = True) -> Window:
    """The node's window over `size`; `kernel` is the weight's, None where only `kernel_shape` says it.

    With `resolve`, `auto_pad` becomes explicit pads.
    """
    stated = n.ints("kernel_shape")
    if kernel is None:
        if stated is None:
            raise n.fail("attribute 'kernel_shape' is missing", hint="export the model again")
        kernel = stated
    rank = len(size)
    strides = n.ints("strides") or (1,) * rank
    dilations = n.ints("dilations") or (1,) * rank
    pads = n.ints("pads") or (0,) * (2 * rank)
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
    ):
        if len(values) != count:
            raise n.fail(f"attribute '{name}' has {len(values)} entries", why=f"the input has {rank} spatial axes")
        positive(n, name, values)
    if stated is not None and tuple(stated) != tuple(kernel):
        raise n.fail(f"attribute 'kernel_shape' is {list(stated)}", why=f"the weight's kernel is {list(kernel)}")
    if len(pads) != 2 * rank or max(map(abs, pads), default=0) > LARGEST:
        raise n.fail(f"attribute 'pads' is {list(pads)}", why=f"it takes {2 * rank} entries up to {LARGEST}")
    if resolve:
        pads = auto_pads(n, size, kernel, strides, dilations, pads)
    return Window(tuple(kernel), tuple(strides), tuple(pads), tuple(dilations))


def auto_pads(
    n: Node,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[int, ...]:
    """Pads by `auto_pad`: SAME gives ceil(size / stride) windows, VALID no pads, NOTSET `pads` as they are."""
    auto = n.text("auto_pad", "NOTSET")
    if auto in {"NOTSET", ""}:
        return tuple(pads)
    if auto == "VALID":
        return (0,) * (2 * len(size))
    if auto not in {"SAME_UPPER", "SAME_LOWER"}:
        raise n.fail(f"attribute 'auto_pad' is {auto!r}", hint="use NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    begins, ends = [], []
    for d, k, s, dilation in zip(size, kernel, strides, dilations, strict=True):
        total = max(0, (-(-d // s) - 1) * s + dilation * (k - 1) + 1 - d)
        begin, end = split_padding(total, upper=auto == "SAME_UPPER")
        begins.append(begin)
        ends.append(end)
    return (*begins, *ends)
