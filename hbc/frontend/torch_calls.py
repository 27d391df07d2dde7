"""What only ONNX Runtime has, for PyTorch's operators: a `call` with the node that computes the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from hbc.ir.core import Value
from hbc.ir.ops import Call
from hbc.ir.types import DType, TensorType

from .onnx_encode import encoded
from .torch_node import TorchNode

OPSET = 20  # the first with GridSample of volumes; ONNX Runtime has all of it since 1.17
Attr = int | float | str | Sequence[int]


def called(
    n: TorchNode,
    op_type: str,
    operands: Sequence[Value | None],
    types: Sequence[TensorType | None],
    *,
    reason: str = "",
    hint: str = "",
    **attrs: Attr,
) -> list[Value]:
    """A node of ONNX on plain numbers, which runs on the CPU; one Value per result that has a type.

    None among `operands` is an optional one that is missing, among `types` a result that nobody reads. `reason` and
    `hint` are what a report says of the node.
    """
    given = [None if v is None else n.stripped(v) for v in operands]
    there = [v for v in given if v is not None]
    places = iter(range(len(there)))
    inputs = ["" if v is None else f"operand:{next(places)}" for v in given]
    wanted = [t for t in types if t is not None]
    counted = iter(range(len(wanted)))
    outputs = ["" if t is None else f"result:{next(counted)}" for t in types]
    node = helper.make_node(op_type, inputs, outputs)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attrs.items())
    op = n.scope.op(
        Call, *there, loc=n.loc, types=wanted, op_type=op_type, domain="", opset=OPSET,
        node_proto=encoded(node), reason=reason, hint=hint,
    )  # fmt: skip
    return list(op.results)


def call_like(
    n: TorchNode, op_type: str, operands: Sequence[Value | None], *, reason: str = "", hint: str = "", **attrs: Attr
) -> Value:
    """A call whose only result has the type of the operator's first."""
    type_ = TensorType(n.result.shape, n.dtype)
    return called(n, op_type, operands, [type_], reason=reason, hint=hint, **attrs)[0]


def int64(n: TorchNode, values: int | Sequence[int] | np.ndarray) -> Value:
    """A constant of 64-bit integers, as ONNX takes axes, sizes and indices."""
    return n.const(np.asarray(values, np.int64))


def as_index(n: TorchNode, value: Value) -> Value:
    """A computed tensor as 64-bit integers."""
    return n.cast(value, DType.I64)
