"""Sparse tensors of the file, made dense: the BPU has no other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, SparseTensorProto

from hbc.diagnostics import BadTensor, TooLarge

from .building import LARGEST
from .onnx_tensors import decode
from .problem import problem, quoted


def dense(tensor: SparseTensorProto, folder: Path | None, file: str) -> np.ndarray:
    """The whole array: zeros, and the listed values at their places.

    FrontendError names the tensor where a place lies outside the shape, places and values differ in number, or the
    dense array would take over 2 GiB.
    """
    where = f"{file}: sparse tensor {quoted(tensor.values.name)}"
    values, places = (decode(t, folder, file) for t in (tensor.values, tensor.indices))
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0 or math.prod(shape) * values.itemsize > LARGEST:
        hint = "check how the model was exported"
        raise problem(f"the dense shape {list(shape)} is beyond 2 GiB", where=where, hint=hint, kind=TooLarge)
    linear = places.ndim == 1
    fits = values.ndim == 1 and places.dtype == np.int64 and places.shape[:1] == values.shape
    fits = fits and (linear or places.shape[1:] == (len(shape),))
    limits = np.asarray([math.prod(shape)] if linear else shape)
    if not fits or (places < 0).any() or (places.reshape(values.size, -1) >= limits).any():
        why = f"{values.size} values, places of shape {list(places.shape)}, dense shape {list(shape)}"
        hint = "export or download the model again"
        raise problem("the sparse tensor's places don't fit it", where=where, why=why, hint=hint, kind=BadTensor)
    array = np.zeros(shape, values.dtype)
    if linear:
        array.reshape(-1)[places] = values
    else:
        array[tuple(places.T)] = values
    return array


def densify(graph: GraphProto, folder: Path | None, file: str) -> None:
    """Make the sparse initializers of `graph` ordinary ones, in place."""
    for tensor in graph.sparse_initializer:
        graph.initializer.append(onnx.numpy_helper.from_array(dense(tensor, folder, file), tensor.values.name))
    del graph.sparse_initializer[:]
