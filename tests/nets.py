"""Small random nets of i8 images: convolutions of every kind, branches that join, slices, reshapes, pools, tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hbc_runtime import isa
from hbc_runtime.isa import Scheme
from hbc_runtime.program import Program
from hbc_runtime.types import DType
from tests.sketch import Sketch

FULL = {"clamp_min": -128, "clamp_max": 127}
FORM_B = {"scheme": Scheme.FORM_B, **FULL}


class Net:
    """A sketch that grows by layers; every one reads tensors that are there and appends its result."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.m = Sketch()
        shape = (self.int(1, 2), self.int(6, 14), self.int(6, 14), 2 * self.int(1, 6))
        self.images = [self.m.input(shape)]

    def int(self, lo: int, hi: int) -> int:
        return int(self.rng.integers(lo, hi + 1))

    def pick(self) -> int:
        """A recent tensor."""
        return self.images[-1] if self.rng.random() < 0.6 else int(self.rng.choice(self.images[-4:]))

    def shape(self, x: int) -> tuple[int, ...]:
        return self.m.tensors[x].shape

    def params(self, n: int, low: int = 20) -> list[int]:
        """Multiplier and shifts, one or `n`."""
        n = n if self.rng.random() < 0.5 else 1
        return [
            self.m.constant(self.rng.integers(1 << 14, 1 << 15, n), DType.I16),
            self.m.constant(np.zeros(n), DType.I8),
            self.m.constant(self.rng.integers(low, low + 3, n), DType.I8),
        ]

    def weights(self, shape: tuple[int, ...]) -> list[int]:
        bias = self.m.constant(self.rng.integers(-500, 500, shape[0]), DType.I32)
        return [self.m.constant(self.rng.integers(-60, 60, shape), DType.I8), bias, *self.params(shape[0])]


def conv(net: Net) -> None:
    x = net.pick()
    n, h, w, c = net.shape(x)
    group = int(net.rng.choice([g for g in (1, 2, c) if c % g == 0]))
    out = group * net.int(1, 2 if group > 1 else 9)
    strides, dilations = (net.int(1, 3), net.int(1, 2)), (net.int(1, 3), net.int(1, 2))
    pads = tuple(net.int(0, 3) for _ in range(4))
    room = [d + pads[i] + pads[2 + i] for i, d in enumerate((h, w))]
    kernel = [min(net.int(1, 4), (r - 1) // dilations[i] + 1) for i, r in enumerate(room)]
    size = [(r - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i, r in enumerate(room)]
    parts = net.weights((out, *kernel, c // group))
    same = [y for y in net.images if net.shape(y) == (n, *size, out)]
    addend = [-1, -1, -1]
    if same:
        addend = [same[-1], net.m.constant([3], DType.I16), net.m.constant([-9], DType.I8)]
    window = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    more = {"pad_value": net.int(-3, 3), "scheme": Scheme.FORM_A, **FULL}
    net.images.append(net.m.emit(isa.Conv2d, [x, *parts, *addend], (n, *size, out), DType.I8, **window, **more))


def conv_transpose(net: Net) -> None:
    x = net.pick()
    n, h, w, c = net.shape(x)
    if h * w > 200:
        return
    group = int(net.rng.choice([g for g in (1, c) if c % g == 0]))
    out = group * net.int(1, 3)
    kernel, strides, dilations = [(net.int(1, 3), net.int(1, 3)) for _ in range(3)]
    extra = net.int(0, 1), net.int(0, 2)
    reach = [dilations[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
    pads = tuple(net.int(0, min(2, reach[i % 2] - 1)) for i in range(4))
    size = [
        (d - 1) * strides[i] + reach[i] + extra[i] - pads[i] - pads[2 + i] for i, d in enumerate((h, w))
    ]  # fmt: skip
    if min(size) < 1:
        return
    window = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra, "group": group}
    more = {"x_zero_point": net.int(-3, 3), "scheme": Scheme.FORM_A, **FULL}
    parts = net.weights((out, *kernel, c // group))
    net.images.append(net.m.emit(isa.ConvTranspose2d, [x, *parts], (n, *size, out), DType.I8, **window, **more))


def pool(net: Net) -> None:
    x = net.pick()
    n, h, w, c = net.shape(x)
    kernel = min(net.int(1, 3), h), min(net.int(1, 3), w)
    strides, pads = (net.int(1, 2), net.int(1, 2)), (kernel[0] // 2, kernel[1] // 2) * 2
    size = [(d + 2 * pads[i] - kernel[i]) // strides[i] + 1 for i, d in enumerate((h, w))]
    window = {"kernel": kernel, "strides": strides, "pads": pads}
    if net.rng.random() < 0.5:
        net.images.append(net.m.emit(isa.MaxPool, [x], (n, *size, c), DType.I8, **window))
        return
    params = net.params(size[0] * size[1], 15)
    net.images.append(net.m.emit(isa.AvgPool, [x, *params], (n, *size, c), DType.I8, **window, **FORM_B))


def add(net: Net) -> None:
    x = net.pick()
    other = next(y for y in net.images if net.shape(y) == net.shape(x))
    scale = {"lhs_multiplier": 9000, "rhs_multiplier": 7000, "shift": 14}
    net.images.append(net.m.emit(isa.Add, [x, other], net.shape(x), DType.I8, **scale, **FORM_B))


def table(net: Net) -> None:
    x = net.pick()
    values = net.m.constant(net.rng.integers(-128, 128, 256), DType.I8)
    net.images.append(net.m.emit(isa.Lut, [x, values], net.shape(x), DType.I8))


def split_and_join(net: Net) -> None:
    """Halves of the channels, one of them changed, and what they came from, side by side: YOLO's favourite."""
    x = net.pick()
    shape = net.shape(x)
    half = shape[3] // 2
    if half < 1 or shape[3] > 24:
        return
    low, high = (
        net.m.emit(isa.Slice, [x], (*shape[:3], n), DType.I8, starts=(0, 0, 0, at), steps=(1,) * 4)
        for n, at in ((half, 0), (shape[3] - half, half))
    )
    values = net.m.constant(net.rng.integers(-128, 128, 256), DType.I8)
    changed = net.m.emit(isa.Lut, [high, values], net.shape(high), DType.I8)
    parts = [[low, high, changed], [x, changed], [low, changed, low], [changed, high]][net.int(0, 3)]
    channels = sum(net.shape(p)[3] for p in parts)
    net.images.append(net.m.emit(isa.Concat, parts, (*shape[:3], channels), DType.I8, axis=3))


def attention(net: Net) -> None:
    """Pixels as rows, multiplied by themselves transposed, and back to pixels."""
    x = net.pick()
    n, h, w, c = net.shape(x)
    if h * w > 100:
        return
    rows = net.m.emit(isa.Reshape, [x], (n, h * w, c), DType.I8, alias=True)
    columns = net.m.emit(isa.Transpose, [rows], (n, c, h * w), DType.I8, perm=(0, 2, 1))
    score = net.m.emit(isa.Matmul, [rows, columns, -1, *net.params(h * w)], (n, h * w, h * w), DType.I8, **FORM_B)
    most = net.m.emit(isa.ReduceMax, [score], (n, h * w, 1), DType.I8, axes=(2,))
    scale = {"lhs_multiplier": 9000, "rhs_multiplier": -7000, "shift": 14}
    less = net.m.emit(isa.Add, [score, most], (n, h * w, h * w), DType.I8, **scale, **FORM_B)
    mixed = net.m.emit(isa.Matmul, [less, rows, -1, *net.params(c)], (n, h * w, c), DType.I8, **FORM_B)
    net.images.append(net.m.emit(isa.Reshape, [mixed], (n, h, w, c), DType.I8, alias=True))


def enlarge(net: Net) -> None:
    x = net.pick()
    n, h, w, c = net.shape(x)
    if h * w > 200:
        return
    rows, columns = (net.m.constant(np.repeat(np.arange(d), 2), DType.I32) for d in (h, w))
    net.images.append(net.m.emit(isa.ResizeNearest, [x, rows, columns], (n, 2 * h, 2 * w, c), DType.I8))


def squeeze(net: Net) -> None:
    """A global average, and the image times it."""
    x = net.pick()
    shape = net.shape(x)
    mean = net.m.emit(
        isa.ReduceSum, [x, *net.params(1, 21)], (shape[0], 1, 1, shape[3]), DType.I8, axes=(1, 2), **FORM_B
    )
    net.images.append(net.m.emit(isa.Mul, [x, mean, *net.params(1)], shape, DType.I8, **FORM_B))


LAYERS: tuple[Callable[[Net], None], ...] = (
    conv, conv, conv, conv_transpose, pool, add, table, split_and_join, attention, enlarge, squeeze,
)  # fmt: skip


def random_net(seed: int, layers: int = 7) -> Program:
    """A sound program of about `layers` layers; results that nothing reads are its outputs."""
    net = Net(seed)
    conv(net)
    for _ in range(layers - 1):
        LAYERS[net.int(0, len(LAYERS) - 1)](net)
    return net.m.program()
