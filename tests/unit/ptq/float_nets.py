"""Small float nets with what real ones have, and samples for them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx

from tests.unit.frontend.net import Array, Net, floats

Sample = dict[str, Array]


class Maker(Net):
    """A net whose layers have weights of their own."""

    def __init__(self, opset: int = 17) -> None:
        super().__init__(opset)
        self.seed = 0

    def weights(self, *shape: int, gain: float = 1.0) -> str:
        self.seed += 1
        return self.const(gain * floats(self.seed, *shape) / np.sqrt(np.prod(shape[1:])).astype(np.float32))

    def conv(
        self, x: str, cin: int, cout: int, k: int = 3, *, bias: bool = True, group: int = 1, stride: int = 1
    ) -> str:
        operands = [self.weights(cout, cin // group, k, k, gain=1.4)]
        operands += [self.weights(cout, gain=0.3)] if bias else []
        return self.op("Conv", x, *operands, pads=[k // 2] * 4, group=group, strides=[stride] * 2)

    def batch_norm(self, x: str, channels: int) -> str:
        scale = self.const(np.abs(floats(self.seed + 50, channels)) + np.float32(0.5))
        rest = [self.weights(channels, gain=0.3), self.weights(channels, gain=0.3)]
        return self.op("BatchNormalization", x, scale, *rest, self.const(np.ones(channels, np.float32)))

    def done(self, *names: str) -> onnx.ModelProto:
        self.output(*names)
        return self.model()


def residual() -> onnx.ModelProto:
    """conv+bn+relu, a residual block, depthwise, global pool, linear head."""
    n = Maker()
    x = n.op("Relu", n.batch_norm(n.conv(n.input("x", [1, 3, 12, 12]), 3, 8, bias=False), 8))
    y = n.op("Relu", n.batch_norm(n.conv(x, 8, 8), 8))
    y = n.op("Relu", n.op("Add", n.conv(y, 8, 8), x))
    y = n.op("Clip", n.conv(y, 8, 8, group=8), n.const(np.float32(0)), n.const(np.float32(6)))
    y = n.op("Flatten", n.op("GlobalAveragePool", y))
    return n.done(n.op("Gemm", y, n.weights(5, 8), n.weights(5), transB=1, out="y"))


def hardswish() -> onnx.ModelProto:
    """Hard swish spelt out and whole, squeeze and excite, scalar affines behind convolutions, softmax."""
    n = Maker()
    x = n.conv(n.input("x", [1, 3, 10, 10]), 3, 8)
    three, zero, six = (n.const(np.float32(v)) for v in (3, 0, 6))
    x = n.op("Div", n.op("Mul", x, n.op("Clip", n.op("Add", x, three), zero, six)), six)
    y = n.op("Add", n.op("Mul", n.conv(x, 8, 8), n.const(np.float32([0.7]))), n.const(np.float32([0.1])))
    y = n.op("HardSwish", y)
    gate = n.op("HardSigmoid", n.conv(n.op("GlobalAveragePool", y), 8, 8, 1), alpha=1 / 6, beta=0.5)
    y = n.conv(n.op("Mul", y, gate), 8, 6)
    y = n.op("Reshape", n.op("GlobalAveragePool", y), n.const(np.int64([1, 6])))
    return n.done(n.op("Softmax", y, axis=1, out="y"))


def pyramid() -> onnx.ModelProto:
    """Max pool, concat, resizes, a transposed convolution, two heads, one through a sigmoid."""
    n = Maker()
    x = n.op("Relu", n.conv(n.input("x", [1, 3, 16, 16]), 3, 8))
    low = n.op("Relu", n.conv(n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 8, 8))
    up = n.op("Resize", low, "", n.const(np.float32([1, 1, 2, 2])), mode="nearest")
    linear = n.op("Resize", low, "", n.const(np.float32([1, 1, 2, 2])), mode="linear")
    deconv = n.op("ConvTranspose", low, n.weights(8, 8, 2, 2), n.weights(8), strides=[2, 2])
    y = n.op("Concat", x, up, linear, deconv, axis=1)
    y = n.op("Relu", n.conv(y, 32, 8, 1))
    heads = n.op("Sigmoid", n.conv(y, 8, 1), out="heat"), n.op("Identity", n.conv(y, 8, 2), out="offset")
    return n.done(*heads)


def detector() -> onnx.ModelProto:
    """Heads in two resolutions, transposed, reshaped, joined; softmax of the scores, boxes decoded with priors."""
    n = Maker()
    x = n.op("Relu", n.conv(n.input("x", [1, 3, 16, 16]), 3, 8))
    small = n.op("Relu", n.conv(x, 8, 8, stride=2))
    scores, boxes = [], []
    for feature, size in ((x, 256), (small, 64)):
        for width, heads in ((2, scores), (4, boxes)):
            y = n.op("Transpose", n.conv(feature, 8, width), perm=[0, 2, 3, 1])
            heads.append(n.op("Reshape", y, n.const(np.int64([1, size, width]))))
    n.op("Softmax", n.op("Concat", *scores, axis=1), axis=2, out="scores")
    box = n.op("Concat", *boxes, axis=1)
    priors = n.const(np.random.default_rng(3).uniform(0.1, 1, (1, 320, 2)).astype(np.float32))
    where = [n.const(np.int64([v])) for v in (0, 2, 2, 4)]
    axis = n.const(np.int64([2]))
    centre = n.op("Mul", n.op("Slice", box, where[0], where[1], axis), n.const(np.float32(0.1)))
    centre = n.op("Add", n.op("Mul", centre, priors), priors)
    size_ = n.op("Exp", n.op("Mul", n.op("Slice", box, where[2], where[3], axis), n.const(np.float32(0.2))))
    n.op("Concat", centre, n.op("Mul", size_, priors), axis=2, out="boxes")
    return n.done("scores", "boxes")


def attention() -> onnx.ModelProto:
    """One attention block with layer norms spelt out and a GELU, on tokens."""
    n = Maker()
    x = n.input("x", [1, 9, 16])

    def norm(y: str) -> str:
        centred = n.op("Sub", y, n.op("ReduceMean", y, axes=[-1]))
        variance = n.op("ReduceMean", n.op("Mul", centred, centred), axes=[-1])
        root = n.op("Sqrt", n.op("Add", variance, n.const(np.float32(1e-5))))
        return n.op("Mul", n.op("Div", centred, root), n.const(np.ones(16, np.float32)))

    y = norm(x)
    q, k, v = (n.op("Add", n.op("MatMul", y, n.weights(16, 16)), n.weights(16)) for _ in range(3))
    scores = n.op("MatMul", q, n.op("Transpose", k, perm=[0, 2, 1]))
    scores = n.op("Softmax", n.op("Div", scores, n.const(np.float32(4))), axis=-1)
    x = n.op("Add", x, n.op("MatMul", n.op("MatMul", scores, v), n.weights(16, 16)))
    y = n.op("MatMul", norm(x), n.weights(16, 32))
    half = n.op("Add", n.op("Erf", n.op("Div", y, n.const(np.float32(np.sqrt(2))))), n.const(np.float32(1)))
    y = n.op("Mul", n.op("Mul", y, half), n.const(np.float32(0.5)))
    return n.done(n.op("Add", x, n.op("MatMul", y, n.weights(32, 16)), out="y"))


def image() -> onnx.ModelProto:
    """An input of pixels that is normalised inside."""
    n = Maker()
    x = n.op("Div", n.op("Sub", n.input("x", [1, 3, 8, 8]), n.const(np.float32(127))), n.const(np.float32(128)))
    y = n.op("Relu", n.conv(x, 3, 8))
    return n.done(n.op("ReduceMean", n.conv(y, 8, 4), axes=[2, 3], keepdims=0, out="y"))


def branches() -> onnx.ModelProto:
    """Tensors that are read by many: a product that is returned, too, dense concats, shared convolutions."""
    n = Maker()
    x = n.input("x", [1, 4, 8, 8])
    a = n.conv(x, 4, 4)
    b = n.op("Relu", a)
    c = n.conv(n.op("Concat", x, b, axis=1), 8, 4)
    d = n.op("Add", n.op("Concat", x, b, c, axis=1), n.const(np.float32(0.25)))
    e = n.op("Max", n.conv(d, 12, 4), n.op("Tanh", a))
    n.op("Identity", a, out="inner")
    n.op("ArgMax", e, axis=1, keepdims=1, out="best")
    n.output("best", dtype=np.int64)
    return n.done("inner", n.op("Sub", e, b, out="y"))


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    f.__name__: f for f in (residual, hardswish, pyramid, detector, attention, image, branches)
}


@functools.cache
def samples_of(name: str, count: int = 4) -> tuple[Sample, ...]:
    """Samples for a net; pixels for `image`."""
    shape = tuple(d.dim_value for d in NETS[name]().graph.input[0].type.tensor_type.shape.dim)
    made = []
    for i in range(count):
        x = floats(100 + i, *shape)
        made.append({"x": (127 + 50 * x).clip(0, 255).round() if name == "image" else x})
    return tuple(made)
