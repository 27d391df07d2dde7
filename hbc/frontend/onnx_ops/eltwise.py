"""Elementwise arithmetic with broadcasting, and batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from hbc.ir.core import Op, Value
from hbc.ir.ops import Add, BatchNorm, Cast, Div, Maximum, Minimum, Mul, Pow, Sub
from hbc.ir.types import DType

from ..onnx_node import Node, Results
from .registry import onnx_op

_BINARY: dict[str, type[Op]] = {"Add": Add, "Sub": Sub, "Mul": Mul, "Div": Div}
_FOLDED: dict[str, type[Op]] = {"Max": Maximum, "Min": Minimum, "Sum": Add}


@onnx_op("Add", "Sub", "Mul", "Div")
def binary(n: Node) -> Results:
    """Reals, or plain integers of one dtype."""
    operands = alike(n)
    return n.call() if operands is None else n.op(_BINARY[n.op_type], *operands)


@onnx_op("Div", domain="hbc")
def division(n: Node) -> Results:
    """A division of the quantisation kit's: `divisor` holds the least and the largest integer of its divisor."""
    operands = alike(n)
    divisor = n.ints("divisor") or ()
    if operands is None or len(operands) != 2 or len(divisor) not in {0, 2}:
        raise n.fail("a division of hbc's own takes two tensors and a divisor's two limits", hint="export it again")
    return n.op(Div, *operands, divisor=divisor)


@onnx_op("Max", "Min", "Sum")
def folded(n: Node) -> Results:
    """Any number of operands, folded from the left."""
    operands = alike(n)
    if operands is None:
        return n.call()
    return reduce(lambda a, b: n.op(_FOLDED[n.op_type], a, b), operands)


@onnx_op("Mean")
def mean(n: Node) -> Results:
    """The mean of operands: their sum, scaled."""
    operands = n.reals()
    if not operands:
        return n.call()
    total = reduce(lambda a, b: n.op(Add, a, b), operands)
    return n.op(Mul, total, n.const(np.float32(1 / len(operands))))


@onnx_op("Pow")
def power(n: Node) -> Results:
    """base ** exponent; an integer exponent of a real base is read as a real."""
    base, exponent = n.plain(0), n.plain(1)
    if base.type.dtype is not DType.F32:
        return n.call()
    if exponent.type.dtype is not DType.F32:
        known = n.array(1)
        exponent = n.op(Cast, exponent, to=DType.F32) if known is None else n.const(known.astype(np.float32))
    return n.op(Pow, base, exponent)


def alike(n: Node) -> Sequence[Value] | None:
    """The operands as numbers where they share one arithmetic dtype, else None."""
    values = [n.plain(i) for i in range(len(n.proto.input)) if n.has(i)]
    dtypes = {v.type.dtype for v in values}
    ok = len(dtypes) == 1 and (dtypes == {DType.F32} or next(iter(dtypes)).is_integer)
    return values if ok else None


@onnx_op("BatchNormalization")
def batch_normalization(n: Node) -> Results:
    """Inference form: multiplier = scale/√(var + ε), offset = bias − mean·multiplier, folded in float64."""
    operands = n.reals()
    parameters = [n.array(i) for i in range(1, 5)]
    training = n.integer("training_mode") or any(n.wants(i) for i in range(1, len(n.proto.output)))
    if operands is None or training or n.x(0).type.rank < 2 or any(p is None for p in parameters):
        return n.call()
    scale, bias, average, variance = (np.asarray(p, np.float64).reshape(-1) for p in parameters)
    with np.errstate(all="ignore"):
        multiplier = scale / np.sqrt(variance + n.number("epsilon", 1e-5))
        offset = bias - average * multiplier
    if not (np.isfinite(multiplier).all() and np.isfinite(offset).all()):
        raise n.fail(
            "the folded parameters are not finite",
            why="a variance is negative, NaN or infinite",
            hint="check the training",
        )
    return n.op(BatchNorm, operands[0], n.const(multiplier.astype(np.float32)), n.const(offset.astype(np.float32)))
