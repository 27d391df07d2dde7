"""What each operation of a captured graph is in ONNX, by name (`hbc.quantization.ops`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, fx, nn

from .onnx_writer import Writer

Rule = Callable[["Call"], Any]
RULES: dict[str, Rule] = {}


class NoForm(Exception):  # noqa: N818 - no error: the operation is written in another way
    """A rule has no form of a node; hbc's front end for PyTorch is asked."""


@dataclass
class Call:
    """One operation: its operands as names of ONNX values, numbers or constants; a module's settings by attribute."""

    writer: Writer
    node: fx.Node
    kind: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module | None
    shapes: dict[str, tuple[int, ...]]
    rank: int

    def get(self, index: int, name: str, default: Any = None) -> Any:
        """Argument `index` (of a function, the tensor is 0), keyword or module attribute `name`."""
        if self.module is not None:
            return getattr(self.module, name, default)
        if len(self.args) > index:
            return self.args[index]
        return self.kwargs.get(name, default)

    def x(self, index: int = 0) -> str:
        """Operand `index` as the name of a value; numbers and tensors become constants."""
        return self.value(self.args[index] if len(self.args) > index else next(iter(self.kwargs.values())))

    def value(self, item: Any) -> str:
        """The name of a value."""
        if isinstance(item, str):
            return item
        array = item.detach().cpu().numpy() if isinstance(item, Tensor) else np.asarray(item, np.float32)
        return self.writer.const(array.astype(np.float32) if array.dtype.kind in "fiub" else array)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of operand `index`."""
        return self.shapes[self.args[index]]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(self.node.meta["shape"])

    def op(self, kind: str, *inputs: str, **attributes: Any) -> Any:
        """One ONNX node."""
        return self.writer.op(kind, inputs, **attributes)

    def ints(self, values: Any) -> str:
        """A constant of int64."""
        return self.writer.const(np.asarray(values, np.int64))

    def refused(self, why: str) -> NoForm:
        """The rule has no form of this node."""
        return NoForm(f"{self.kind}: {why}")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under names of operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def pair(value: Any, count: int = 2) -> list[int]:
    """A number for each of `count` axes."""
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else [int(value)] * count


_UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish", "mish": "Mish", "exp": "Exp",
    "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "abs": "Abs", "neg": "Neg", "sin": "Sin", "cos": "Cos",
    "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round", "softplus": "Softplus", "softsign": "Softsign",
    "logical_not": "Not", "sign": "Sign",
}  # fmt: skip
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "matmul": "MatMul", "maximum": "Max", "minimum": "Min",
    "eq": "Equal", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual",
}  # fmt: skip


def _unary(c: Call) -> Any:
    return c.op(_UNARY[c.kind], c.x())


def _binary(c: Call) -> Any:
    if c.kwargs.get("alpha", 1) != 1:
        raise c.refused(f"its alpha is {c.kwargs['alpha']}")
    return c.op(_BINARY[c.kind], *(_counted(c, i) for i in (0, 1)))


def _counted(c: Call, index: int) -> str:
    """An operand; truth values as 0 and 1."""
    operand = c.node.args[index] if len(c.node.args) > index else None
    is_truth = isinstance(operand, fx.Node) and operand.meta.get("dtype") is torch.bool
    return str(c.op("Cast", c.x(index), to=TensorProto.FLOAT)) if is_truth else c.x(index)


RULES.update(dict.fromkeys(_UNARY, _unary))
RULES.update(dict.fromkeys(_BINARY, _binary))


@rule("rsub", "rdiv")
def reflected(c: Call) -> Any:
    return c.op("Sub" if c.kind == "rsub" else "Div", c.x(1), c.x(0))


@rule("square")
def square(c: Call) -> Any:
    return c.op("Mul", c.x(), c.x())


@rule("pow")
def power(c: Call) -> Any:
    return c.op("Mul", c.x(), c.x()) if c.args[1] == 2 else c.op("Pow", c.x(), c.value(c.args[1]))


@rule("rsqrt")
def rsqrt(c: Call) -> Any:
    return c.op("Reciprocal", c.op("Sqrt", c.x()))


@rule("silu")
def silu(c: Call) -> Any:
    return c.op("Mul", c.x(), c.op("Sigmoid", c.x()))


@rule("gelu")
def gelu(c: Call) -> Any:
    return c.op("Gelu", c.x(), approximate=str(c.get(1, "approximate", "none")))


@rule("hardsigmoid")
def hardsigmoid(c: Call) -> Any:
    return c.op("HardSigmoid", c.x(), alpha=1 / 6, beta=0.5)


@rule("leaky_relu")
def leaky_relu(c: Call) -> Any:
    return c.op("LeakyRelu", c.x(), alpha=float(c.get(1, "negative_slope", 0.01)))


@rule("elu")
def elu(c: Call) -> Any:
    return c.op("Elu", c.x(), alpha=float(c.get(1, "alpha", 1.0)))


@rule("prelu")
def prelu(c: Call) -> Any:
    slope: Any = c.module.weight if c.module is not None else c.args[1]
    array = slope.detach().cpu().numpy()
    return c.op("PRelu", c.x(), c.writer.const(array.reshape([-1] + [1] * (c.rank - 2)) if array.size > 1 else array))


@rule("relu6", "clamp")
def clamp(c: Call) -> Any:
    module: Any = c.module
    low: Any
    high: Any
    if c.kind == "relu6":
        low, high = 0.0, 6.0
    elif c.module is not None:
        low, high = module.min_val, module.max_val
    else:
        low = c.get(1, "min", c.kwargs.get("min_val"))
        high = c.get(2, "max", c.kwargs.get("max_val"))
    ends = [("" if v is None else c.writer.const(np.float32(v))) for v in (low, high)]
    return c.op("Clip", c.x(), *ends)


@rule("softmax", "log_softmax")
def softmax(c: Call) -> Any:
    dim = c.get(1, "dim")
    return c.op(
        "Softmax" if c.kind == "softmax" else "LogSoftmax", c.x(), axis=int(-1 if dim is None else dim) % c.rank
    )


@rule("cat", "stack")
def cat(c: Call) -> Any:
    tensors, dim = c.args[0], int(c.get(1, "dim", 0))
    names = [c.value(t) for t in tensors]
    if c.kind == "stack":
        dim %= len(c.out_shape)
        names = [c.op("Unsqueeze", n, c.ints([dim])) for n in names]
    return c.op("Concat", *names, axis=dim % len(c.out_shape))


@rule("reshape", "flatten", "view_as", "reshape_as", "unflatten")
def reshape(c: Call) -> Any:
    return c.op("Reshape", c.x(), c.ints(c.out_shape))


@rule("squeeze", "unsqueeze")
def squeeze(c: Call) -> Any:
    return c.op("Reshape", c.x(), c.ints(c.out_shape))


@rule("identity", "dequant_stub", "to", "float", "type_as")
def identity(c: Call) -> Any:
    return c.x()


@rule("permute", "transpose", "t", "movedim")
def permute(c: Call) -> Any:
    axes = list(range(c.rank))
    if c.kind == "permute":
        given = c.args[1] if isinstance(c.args[1], (tuple, list)) else c.args[1:]
        axes = [int(a) % c.rank for a in given]
    elif c.kind == "movedim":
        axes.insert(int(c.args[2]) % c.rank, axes.pop(int(c.args[1]) % c.rank))
    else:
        a, b = (0, 1) if c.kind == "t" else (int(c.args[1]) % c.rank, int(c.args[2]) % c.rank)
        axes[a], axes[b] = axes[b], axes[a]
    return c.op("Transpose", c.x(), perm=axes)


@rule("chunk", "split", "unbind")
def split(c: Call) -> Any:
    dim = int(c.get(2 if c.kind != "unbind" else 1, "dim", 0)) % c.rank
    size = c.shape()[dim]
    if c.kind == "unbind":
        return [c.op("Gather", c.x(), c.writer.const(np.int64(i)), axis=dim) for i in range(size)]
    given = c.args[1]
    if isinstance(given, (list, tuple)):
        sizes = [int(v) for v in given]
    else:
        step = -(-size // int(given)) if c.kind == "chunk" else int(given)
        sizes = [min(step, size - at) for at in range(0, size, step)]
    parts = c.op("Split", c.x(), c.ints(sizes), axis=dim, outputs=len(sizes))
    return parts if isinstance(parts, list) else [parts]


@rule("narrow", "select")
def narrow(c: Call) -> Any:
    dim = int(c.args[1]) % c.rank
    if c.kind == "select":
        return c.op("Gather", c.x(), c.writer.const(np.int64(c.args[2])), axis=dim)
    start, length = int(c.args[2]), int(c.args[3])
    return c.op("Slice", c.x(), c.ints([start]), c.ints([start + length]), c.ints([dim]))


@rule("getitem")
def getitem(c: Call) -> Any:
    index = c.args[1] if isinstance(c.args[1], tuple) else (c.args[1],)
    if any(not isinstance(i, (int, slice, type(None), type(...))) for i in index):
        raise c.refused("it is indexed by a tensor")
    fixed = sum(isinstance(i, (int, slice)) for i in index)
    if ... in index:
        at = index.index(...)
        index = (*index[:at], *[slice(None)] * (c.rank - fixed), *index[at + 1 :])
    y, shape = c.x(), c.shape()
    starts, ends, axes, steps = [], [], [], []
    for axis, item in enumerate(i for i in index if i is not None):
        if isinstance(item, int):
            start = item % shape[axis]
            bounds = (start, start + 1, 1)
        else:
            bounds = item.indices(shape[axis])
        if bounds != (0, shape[axis], 1):
            starts.append(bounds[0])
            ends.append(bounds[1])
            axes.append(axis)
            steps.append(bounds[2])
    if axes:
        y = c.op("Slice", y, c.ints(starts), c.ints(ends), c.ints(axes), c.ints(steps))
    return c.op("Reshape", y, c.ints(c.out_shape))


@rule("expand", "expand_as")
def expand(c: Call) -> Any:
    return c.op("Expand", c.x(), c.ints(c.out_shape))


@rule("repeat", "tile")
def repeat(c: Call) -> Any:
    given = c.args[1] if isinstance(c.args[1], (tuple, list)) else c.args[1:]
    return c.op("Tile", c.op("Reshape", c.x(), c.ints([1] * (len(given) - c.rank) + list(c.shape()))), c.ints(given))


@rule("pixel_shuffle")
def pixel_shuffle(c: Call) -> Any:
    return c.op("DepthToSpace", c.x(), blocksize=int(c.get(1, "upscale_factor")), mode="CRD")


@rule("pixel_unshuffle")
def pixel_unshuffle(c: Call) -> Any:
    n, ch, h, w = c.shape()
    r = int(c.get(1, "downscale_factor"))
    y = c.op("Reshape", c.x(), c.ints([n, ch, h // r, r, w // r, r]))
    return c.op("Reshape", c.op("Transpose", y, perm=[0, 1, 3, 5, 2, 4]), c.ints(c.out_shape))


@rule("pad")
def pad(c: Call) -> Any:
    given = c.module.padding if c.module is not None else c.args[1]
    widths = pair(given, 4)
    mode = "constant" if c.module is not None else str(c.get(2, "mode", "constant"))
    if mode not in {"constant", "reflect", "replicate", "circular"}:
        raise c.refused(f"its mode is {mode}")
    fill = getattr(c.module, "value", 0.0) if c.module is not None else (c.get(3, "value") or 0.0)
    before, after = [0] * c.rank, [0] * c.rank
    for i in range(len(widths) // 2):
        before[-1 - i], after[-1 - i] = widths[2 * i], widths[2 * i + 1]
    value = [c.writer.const(np.float32(fill))] if mode == "constant" else []
    return c.op(
        "Pad", c.x(), c.ints(before + after), *value, mode={"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    )


@rule("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")
def pool(c: Call) -> Any:
    n = c.rank - 2
    kernel = pair(c.get(1, "kernel_size"), n)
    stride = c.get(2, "stride", None)
    pads = pair(c.get(3, "padding", 0), n) * 2
    fields: dict[str, Any] = {"kernel_shape": kernel, "pads": pads, "strides": pair(stride, n) if stride else kernel}
    if c.kind.startswith("max"):
        fields["dilations"] = pair(c.get(4, "dilation", 1), n)
        ceil = c.get(5, "ceil_mode", False)
        if c.get(6, "return_indices", False) is True:
            raise c.refused("it returns indices")
        return c.op("MaxPool", c.x(), ceil_mode=int(bool(ceil)), **fields)
    if c.get(6, "divisor_override", None):
        raise c.refused("it has a divisor_override")
    fields["count_include_pad"] = int(bool(c.get(5, "count_include_pad", True)))
    return c.op("AveragePool", c.x(), ceil_mode=int(bool(c.get(4, "ceil_mode", False))), **fields)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive(c: Call) -> Any:
    n = c.rank - 2
    size, out = c.shape()[2:], c.out_shape[2:]
    kind = "AveragePool" if "avg" in c.kind else "MaxPool"
    if all(o == 1 for o in out):
        return c.op("GlobalAveragePool" if "avg" in c.kind else "GlobalMaxPool", c.x())
    if any(s % o for s, o in zip(size, out, strict=True)):
        raise c.refused(f"{list(size)} isn't a multiple of {list(out)}: its windows differ in size")
    kernel = [s // o for s, o in zip(size, out, strict=True)]
    return c.op(kind, c.x(), kernel_shape=kernel, strides=kernel, pads=[0] * (2 * n))


@rule("mean", "sum", "amax", "amin")
def reduce(c: Call) -> Any:
    dim = c.get(1, "dim", None)
    axes = list(range(c.rank)) if dim is None or dim == () else [d % c.rank for d in pair(dim, 1)]
    kind = {"mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin"}[c.kind]
    return c.op(kind, c.x(), c.ints(axes), keepdims=int(bool(c.get(2, "keepdim", False))))


@rule("argmax", "argmin")
def position(c: Call) -> Any:
    dim = c.get(1, "dim", None)
    if dim is None:
        raise c.refused("it has no dim")
    kind = "ArgMax" if c.kind == "argmax" else "ArgMin"
    return c.op(kind, c.x(), axis=int(dim) % c.rank, keepdims=int(bool(c.get(2, "keepdim", False))))


@rule("where")
def where(c: Call) -> Any:
    return c.op("Where", c.x(0), c.x(1), c.x(2))


@rule("layer_norm")
def layer_norm(c: Call) -> Any:
    shape = pair(c.get(1, "normalized_shape"), 1)
    weight, bias = c.get(2, "weight"), c.get(3, "bias")
    ones = np.ones(shape, np.float32) if weight is None else weight
    operands = [c.x(), c.value(ones), *([c.value(bias)] if bias is not None else [])]
    return c.op("LayerNormalization", *operands, axis=-len(shape), epsilon=float(c.get(4, "eps", 1e-5)))


@rule("group_norm")
def group_norm(c: Call) -> Any:
    channels = c.out_shape[1]
    weight, bias = c.get(2, "weight"), c.get(3, "bias")
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    operands = [c.value(ones if weight is None else weight), c.value(zeros if bias is None else bias)]
    groups, eps = int(c.get(1, "num_groups")), float(c.get(4, "eps", 1e-5))
    return c.op("GroupNormalization", c.x(), *operands, num_groups=groups, epsilon=eps)


@rule("instance_norm")
def instance_norm(c: Call) -> Any:
    if c.get(1, "running_mean") is not None:
        raise c.refused("it keeps running statistics")
    channels = c.out_shape[1]
    weight, bias = c.get(3, "weight"), c.get(4, "bias")
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    operands = [c.value(ones if weight is None else weight), c.value(zeros if bias is None else bias)]
    return c.op("InstanceNormalization", c.x(), *operands, epsilon=float(c.get(7, "eps", 1e-5)))


@rule("rms_norm")
def rms_norm(c: Call) -> Any:
    """By its parts, since the operator came after the opset that is written; hbc's importer joins them again."""
    count, eps = len(pair(c.get(1, "normalized_shape"), 1)), c.get(3, "eps")
    epsilon = np.finfo(np.float32).eps if eps is None else eps
    square = c.op("ReduceMean", c.op("Mul", c.x(), c.x()), c.ints(range(c.rank - count, c.rank)), keepdims=1)
    y = c.op("Div", c.x(), c.op("Sqrt", c.op("Add", square, c.value(np.float32(epsilon)))))
    weight = c.get(2, "weight")
    return y if weight is None else c.op("Mul", y, c.value(weight))


@rule("batch_norm")
def batch_norm(c: Call) -> Any:
    mean, variance = c.get(1, "running_mean"), c.get(2, "running_var")
    if mean is None or (c.module is None and c.get(5, "training", False)):
        raise c.refused("it normalises by the batch's own mean")
    n = c.out_shape[1]
    weight, bias = c.get(3, "weight"), c.get(4, "bias")
    weight = np.ones(n, np.float32) if weight is None else weight
    bias = np.zeros(n, np.float32) if bias is None else bias
    operands = [c.value(v) for v in (weight, bias, mean, variance)]
    return c.op("BatchNormalization", c.x(), *operands, epsilon=float(c.get(7, "eps", 1e-5)))


@rule("interpolate")
def interpolate(c: Call) -> Any:
    mode = str(c.get(3, "mode", "nearest"))
    align = bool(c.get(4, "align_corners", False))
    onnx_mode = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear", "linear": "linear"}.get(mode)
    if onnx_mode is None:
        raise c.refused(f"its mode is {mode}")
    if onnx_mode == "nearest":
        where_ = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if mode == "nearest-exact":
            where_ = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    else:
        where_ = {"coordinate_transformation_mode": "align_corners" if align else "pytorch_half_pixel"}
    return c.op("Resize", c.x(), "", "", c.ints(c.out_shape), mode=onnx_mode, **where_)


@rule("pixel_sample")
def pixel_sample(c: Call) -> Any:
    """The form that hbc's importer knows as positions in pixels."""
    m: Any = c.module
    size = np.array(c.shape()[:1:-1], np.float64)
    grid = c.op("Add", c.op("Mul", c.x(1), c.value((2 / size).astype(np.float32))), c.value(1 / size - 1))
    mode = {"bilinear": "linear"}.get(m.mode, m.mode)
    return c.op("GridSample", c.x(0), grid, mode=mode, padding_mode=m.padding_mode, align_corners=0)


@rule("grid_sample")
def grid_sample(c: Call) -> Any:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(str(c.get(2, "mode", "bilinear")), "nearest")
    padding = str(c.get(3, "padding_mode", "zeros"))
    align = int(bool(c.get(4, "align_corners", False)))
    return c.op("GridSample", c.x(0), c.x(1), mode=mode, padding_mode=padding, align_corners=align)
