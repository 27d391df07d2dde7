"""What the nodes of a captured graph are: one name per operation, whichever way the user wrote it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

_ALIASES = {
    "iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "truediv": "div",
    "itruediv": "div", "rtruediv": "rdiv", "true_divide": "div", "divide": "div", "subtract": "sub", "multiply": "mul",
    "concat": "cat", "concatenate": "cat", "rmatmul": "matmul", "bmm": "matmul", "mm": "matmul", "clip": "clamp",
    "view": "reshape", "swapaxes": "transpose", "hardtanh": "clamp",
    "absolute": "abs", "negative": "neg", "unsafe_chunk": "chunk",
    "contiguous": "identity", "clone": "identity", "detach": "identity", "dropout": "identity",
    "dropout2d": "identity",
    "upsample": "interpolate", "ipow": "pow", "max_pool2d_with_indices": "max_pool2d",
    "alpha_dropout": "identity", "feature_dropout": "identity", "rpow": "rpow",
}  # fmt: skip
_MODULES = {
    "ReLU": "relu", "ReLU6": "relu6", "Sigmoid": "sigmoid", "Tanh": "tanh", "SiLU": "silu", "GELU": "gelu",
    "Hardswish": "hardswish", "Hardsigmoid": "hardsigmoid", "LeakyReLU": "leaky_relu", "ELU": "elu", "Mish": "mish",
    "Softplus": "softplus", "Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardtanh": "clamp", "PReLU": "prelu",
    "MaxPool1d": "max_pool1d", "MaxPool2d": "max_pool2d", "AvgPool1d": "avg_pool1d", "AvgPool2d": "avg_pool2d",
    "AdaptiveAvgPool1d": "adaptive_avg_pool1d", "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AdaptiveMaxPool2d": "adaptive_max_pool2d", "Flatten": "flatten", "Unflatten": "reshape", "Identity": "identity",
    "Dropout": "identity", "Dropout1d": "identity", "Dropout2d": "identity", "AlphaDropout": "identity",
    "Upsample": "interpolate", "UpsamplingNearest2d": "interpolate", "UpsamplingBilinear2d": "interpolate",
    "ChannelShuffle": "channel_shuffle",
    "PixelShuffle": "pixel_shuffle", "PixelUnshuffle": "pixel_unshuffle", "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm", "InstanceNorm2d": "instance_norm", "ZeroPad2d": "pad", "ConstantPad2d": "pad",
    "BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm", "BatchNorm3d": "batch_norm", "Softsign": "softsign",
    "QuantStub": "quant_stub", "DeQuantStub": "dequant_stub", "Sequential": "identity", "RMSNorm": "rms_norm",
    "SegmentLUT": "segment_lut", "CenteredYuv444": "colour",
    "PixelSample": "pixel_sample",
}  # fmt: skip
WEIGHTED = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
)  # fmt: skip
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Results have the operand's integers, in other places.
MOVES = frozenset({
    "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "chunk", "split", "take", "getitem",
    "narrow", "select", "expand", "expand_as", "repeat", "pixel_shuffle", "pixel_unshuffle", "max_pool1d", "max_pool2d",
    "identity", "dequant_stub", "pad", "unbind", "adaptive_max_pool2d", "amax", "amin", "unflatten", "tile", "flip",
    "view_as", "reshape_as", "index_select", "movedim", "channel_shuffle", "roll", "Unfold", "unfold", "Fold",
    "MaxPool3d", "max_pool3d", "swapdims", "moveaxis", "tensor_split", "repeat_interleave", "rot90",
})  # fmt: skip
CLIPPED = frozenset({"add", "sub", "mul", "matmul", "batch_norm"})  # a relu behind these is their own clip
RELUS = frozenset({"relu", "relu6"})
# Computed in integers by the compiler, each with a scale of its own.
ARITHMETIC = frozenset({
    "add", "sub", "rsub", "mul", "div", "rdiv", "matmul", "cat", "stack", "relu", "relu6", "clamp", "sigmoid", "tanh",
    "silu", "gelu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "mish", "softplus", "softsign", "softmax",
    "log_softmax", "prelu", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "layer_norm",
    "rms_norm", "group_norm", "instance_norm", "batch_norm", "mean", "sum", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "abs", "neg", "sin", "cos", "erf", "floor", "ceil", "round", "square", "pow", "maximum", "minimum", "interpolate",
    "grid_sample", "pixel_sample", "where", "segment_lut", "baddbmm", "einsum", "logsigmoid", "normalize", "with_item",
    "CELU", "celu", "SELU", "selu", "LogSigmoid", "Tanhshrink", "tanhshrink", "Softshrink", "softshrink", "Hardshrink",
    "hardshrink", "Threshold", "threshold", "rpow", "expm1", "log1p", "exp2", "log2", "tan", "atan", "sinh", "cosh",
})  # fmt: skip


def name_of_function(target: Any) -> str:
    """One name for a function or method, its in-place and reflected forms included."""
    text = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    text = text.strip("_")
    return _ALIASES.get(text, text)


def operation(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """The operation that a node is; "" for placeholders, attributes and outputs."""
    if node.op == "call_module":
        kind = type(modules[str(node.target)]).__name__
        return _MODULES.get(kind, kind)
    if node.op in {"call_function", "call_method"}:
        name = name_of_function(node.target)
        if name == "boolean_dispatch":
            return "max_pool2d"
        if name in {"max", "min"}:
            return {"max": "maximum", "min": "minimum"}[name] if _is_pair(node) else name
        if name == "interpolate" and node.kwargs.get("mode", "nearest") in {"nearest", "nearest-exact"}:
            return "interpolate"
        return name
    return ""


def _is_pair(node: fx.Node) -> bool:
    return len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args)


def is_float(node: fx.Node) -> bool:
    """True for a node that gives a tensor of floats."""
    dtype = node.meta.get("dtype")
    return dtype is not None and bool(dtype.is_floating_point)


def is_kept(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """True for an operation that the user keeps on the CPU, by name or type or by `wrap`."""
    return bool(node.meta.get("cpu")) and operation(node, modules) not in {"dequant_stub", ""}


def is_nearest(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """True for a resize that copies pixels: no arithmetic."""
    if operation(node, modules) != "interpolate":
        return False
    if node.op == "call_module":
        return str(getattr(modules[str(node.target)], "mode", "nearest")).startswith("nearest")
    mode = node.kwargs.get("mode", node.args[3] if len(node.args) > 3 else "nearest")
    return str(mode).startswith("nearest")


def is_move(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """True where a node's result holds its operand's integers."""
    return operation(node, modules) in MOVES or is_nearest(node, modules)


def is_weighted(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """True for a convolution or linear layer that pads with zeros."""
    if node.op != "call_module":
        return False
    module = modules[str(node.target)]
    return type(module) in WEIGHTED and getattr(module, "padding_mode", "zeros") == "zeros"


def constant_of(value: object, root: nn.Module) -> Tensor | None:
    """The tensor that a get_attr node names."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    found: Any = root
    for part in str(value.target).split("."):
        found = getattr(found, part)
    return found if isinstance(found, Tensor) else None
