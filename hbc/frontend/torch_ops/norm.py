"""Softmax and the normalisations."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax

from ..torch_node import Results, TorchNode
from .registry import torch_op

TRAINING = (
    "call model.eval() before torch.jit.trace or torch.export.export; of a QAT program of torch.export, "
    "move_exported_model_to_eval"
)


@torch_op("aten::softmax", "aten::_softmax", "aten::_safe_softmax", "quantized::softmax")
def softmax(n: TorchNode) -> Results:
    """Along one axis."""
    x = n.real()
    return n.op(Softmax, x, axis=n.axis("dim", x.type.rank))


@torch_op("aten::log_softmax", "aten::_log_softmax")
def log_softmax(n: TorchNode) -> Results:
    """x − log Σ eˣ along one axis."""
    x = n.real()
    return n.op(LogSoftmax, x, axis=n.axis("dim", x.type.rank))


@torch_op("aten::batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit_no_training",
          "aten::cudnn_batch_norm", "aten::_batch_norm_no_update", "aten::_native_batch_norm_legit")  # fmt: skip
def batch_norm(n: TorchNode) -> Results:
    """Inference form: multiplier = weight/√(var + ε), offset = bias − mean·multiplier, folded in float64."""
    if not n.has("running_mean") and n.shape()[0] == 1 and len(n.shape()) > 2:  # how an instance norm is decomposed
        return _first(n, n.op(InstanceNorm, n.real(), *_per_channel(n), epsilon=n.number("eps", 1e-5)))
    if n.arg("training") or n.arg("train") or not n.has("running_mean"):
        raise n.refuse("it normalises by the batch's own mean, as in training", TRAINING)
    x = n.real()
    average, variance = n.known("running_mean").astype(np.float64), n.known("running_var").astype(np.float64)
    weight = n.known("weight").astype(np.float64) if n.has("weight") else np.ones_like(average)
    bias = n.known("bias").astype(np.float64) if n.has("bias") else np.zeros_like(average)
    with np.errstate(all="ignore"):
        multiplier = weight / np.sqrt(variance + n.number("eps", 1e-5))
        offset = bias - average * multiplier
    if not (np.isfinite(multiplier).all() and np.isfinite(offset).all()):
        why = "a variance is negative, NaN or infinite"
        raise n.fail("the folded parameters are not finite", why=why, hint="check the training")
    y = n.op(BatchNorm, x, n.const(multiplier.astype(np.float32)), n.const(offset.astype(np.float32)))
    return _first(n, y)


@torch_op("aten::layer_norm", "aten::native_layer_norm", "quantized::layer_norm")
def layer_norm(n: TorchNode) -> Results:
    """Over the last axes, as many as `normalized_shape` lists."""
    x, rank = n.real(), len(n.shape())
    axes = tuple(range(rank - len(n.ints("normalized_shape")), rank))
    y = n.op(LayerNorm, x, _optional(n, "weight"), _optional(n, "bias"), axes=axes, epsilon=n.number("eps", 1e-5))
    return _first(n, y)


@torch_op("aten::rms_norm")
def rms_norm(n: TorchNode) -> Results:
    """Over the last axes; without a given ε PyTorch takes float32's own."""
    x, rank = n.real(), len(n.shape())
    axes = tuple(range(rank - len(n.ints("normalized_shape")), rank))
    epsilon = n.number("eps", float(np.finfo(np.float32).eps))
    return n.op(RmsNorm, x, _optional(n, "weight"), axes=axes, epsilon=epsilon)


@torch_op("aten::group_norm", "aten::native_group_norm", "quantized::group_norm")
def group_norm(n: TorchNode) -> Results:
    """Per sample and group of channels."""
    groups = n.integer("num_groups" if n.has("num_groups") else "group")
    y = n.op(GroupNorm, n.real(), *_per_channel(n), groups=groups, epsilon=n.number("eps", 1e-5))
    return _first(n, y)


@torch_op("aten::instance_norm", "quantized::instance_norm")
def instance_norm(n: TorchNode) -> Results:
    """Per sample and channel; with running statistics it is a batch norm."""
    if not n.flag("use_input_stats", default=True):
        return batch_norm(n)
    return n.op(InstanceNorm, n.real(), *_per_channel(n), epsilon=n.number("eps", 1e-5))


def _per_channel(n: TorchNode) -> tuple[Value, Value]:
    channels = n.shape()[1]
    weight, bias = _optional(n, "weight"), _optional(n, "bias")
    return (
        n.const(np.ones(channels, np.float32)) if weight is None else weight,
        n.const(np.zeros(channels, np.float32)) if bias is None else bias,
    )


def _optional(n: TorchNode, name: str) -> Value | None:
    return n.real(name) if n.has(name) else None


def _first(n: TorchNode, y: Value) -> Results:
    """`y`, and nothing for the statistics that some forms return too."""
    return [y, *[None] * (len(n.record.results) - 1)]
