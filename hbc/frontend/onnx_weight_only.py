"""Weight-only models: integers behind Cast, Sub and Mul are weights as good as those of a DequantizeLinear.

    W int8 ── Cast ── [Sub zero point] ── Mul scale ── [Reshape, Transpose] ── MatMul
    W ── Div scale ── Round ── Clip ── [Sub zero point] ── Mul scale ── Conv

The walk folds such a chain into reals; beside it, this module keeps the integers, so that a product of quantised
activations gets them with their scale. The reals of both are equal bit by bit: float32(q − z) · s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .onnx_blocks import PRODUCTS, blocked_weight
from .onnx_node import Node

NARROW = ("int8", "uint8", "int16", "uint16")
_ROUNDED = {"Round", "Clip", "Floor", "Ceil"}  # fake quantisation: whole numbers in floats
_MOVES = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"}


@dataclass(frozen=True)
class Integers:
    """What a folded tensor was: (values − zero) · scale, all three of one shape; no scale yet where it is None."""

    values: np.ndarray
    zero: np.ndarray
    scale: np.ndarray | None = None


def follow_integers(n: Node, folded: Sequence[np.ndarray]) -> None:
    """Keep the integers behind the folded result of `n`, and make them a weight where a product reads it."""
    if len(folded) != 1 or n.domain or not n.proto.output[0]:
        return
    found = _behind(n, folded[0])
    if found is None:
        return
    name = n.proto.output[0]
    n.scope.integers[name] = found
    if found.scale is not None and folded[0].dtype == np.float32 and _feeds_product(n, name):
        n.scope.values[name] = blocked_weight(n, name, *_held(found))


def _behind(n: Node, result: np.ndarray) -> Integers | None:
    if n.op_type == "Cast":
        return _cast(n, result)
    if n.op_type in _ROUNDED:
        return _whole(result)
    if n.op_type in _MOVES:
        known = n.scope.integers.get(n.name(0))
        return None if known is None else _moved(n, known, result)
    if n.op_type == "Sub":
        return _shifted(n, result)
    return _scaled(n, result) if n.op_type == "Mul" else None


def _cast(n: Node, result: np.ndarray) -> Integers | None:
    """What the cast integers are, where none of them wraps or rounds."""
    known, source = n.scope.integers.get(n.name(0)), n.scope.array(n.name(0))
    if known is None and source is not None and source.dtype.name in NARROW and source.ndim:
        known = Integers(source, np.zeros(source.shape, np.int64))
    if known is None or known.scale is not None or result.dtype.kind not in "if":
        return None
    return known if np.array_equal(result, known.values.astype(np.int64) - known.zero) else None


def _whole(result: np.ndarray) -> Integers | None:
    """Reals that are integers of 8 or 16 bits; None for any others."""
    if result.dtype != np.float32 or not result.ndim or not result.size or not np.isfinite(result).all():
        return None
    low, high = float(result.min()), float(result.max())
    dtypes = [t for t in (np.int8, np.uint8, np.int16) if np.iinfo(t).min <= low and high <= np.iinfo(t).max]
    if not dtypes or (result != np.rint(result)).any():
        return None
    return Integers(result.astype(dtypes[0]), np.zeros(result.shape, np.int64))


def _moved(n: Node, known: Integers, result: np.ndarray) -> Integers:
    def move(array: np.ndarray) -> np.ndarray:
        return array.transpose(n.ints("perm")) if n.op_type == "Transpose" else array.reshape(result.shape)

    return Integers(move(known.values), move(known.zero), None if known.scale is None else move(known.scale))


def _shifted(n: Node, result: np.ndarray) -> Integers | None:
    known, zero = n.scope.integers.get(n.name(0)), n.scope.array(n.name(1))
    if known is None or known.scale is not None or zero is None or result.shape != known.values.shape:
        return None
    whole = np.rint(zero.astype(np.float64))
    if known.zero.any() or not np.isfinite(whole).all() or (whole != zero).any() or np.abs(whole).max() > 1 << 15:
        return None
    return replace(known, zero=np.broadcast_to(whole.astype(np.int64), result.shape))


def _scaled(n: Node, result: np.ndarray) -> Integers | None:
    for x, by in ((0, 1), (1, 0)):
        known, scale = n.scope.integers.get(n.name(x)), n.scope.array(n.name(by))
        if known is None or known.scale is not None or scale is None or result.dtype != np.float32:
            continue
        usable = np.isfinite(scale).all() and (scale >= 0).all()
        if usable and result.shape == known.values.shape:
            return replace(known, scale=np.broadcast_to(scale.astype(np.float32), result.shape))
    return None


def _feeds_product(n: Node, name: str) -> bool:
    readers = n.scope.readers(name)
    return any(r.op_type in PRODUCTS and list(r.input).index(name) == 1 for r in readers)


def _held(found: Integers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, scales and zero points; wider where a zero point doesn't fit beside the values."""
    assert found.scale is not None
    info = np.iinfo(found.values.dtype)
    fits = info.min <= found.zero.min(initial=0) and found.zero.max(initial=0) <= info.max
    values = found.values if fits else found.values.astype(np.int16)
    return np.ascontiguousarray(values), found.scale, found.zero
