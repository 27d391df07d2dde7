"""TensorProto → NumPy: every length is checked before anything is decoded, external data stay inside their folder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from hbc.diagnostics import BadExternalData, BadTensor, TooLarge
from hbc_runtime.types import DType

from .building import LARGEST
from .problem import problem, quoted

DTYPES: dict[int, DType] = {
    TensorProto.INT8: DType.I8, TensorProto.UINT8: DType.U8, TensorProto.INT16: DType.I16, TensorProto.UINT16:
    DType.U16, TensorProto.INT32: DType.I32, TensorProto.UINT32: DType.U32, TensorProto.INT64: DType.I64,
    TensorProto.UINT64: DType.U64, TensorProto.FLOAT16: DType.F16, TensorProto.FLOAT: DType.F32,
    TensorProto.DOUBLE: DType.F64, TensorProto.BOOL: DType.BOOL,
}  # fmt: skip
ELEM_TYPES: dict[DType, int] = {v: k for k, v in DTYPES.items()}
# Narrow integers are carried in a byte each, where the values are the same: (bits, signed). The 2-bit types came with
# opset 25; an onnx package from before doesn't name them.
PACKED: dict[int, tuple[int, bool]] = {
    TensorProto.INT4: (4, True), TensorProto.UINT4: (4, False),
    getattr(TensorProto, "INT2", 26): (2, True), getattr(TensorProto, "UINT2", 25): (2, False),
}  # fmt: skip

# Which field holds the values of a type where `raw_data` does not (onnx.proto), and how many entries an element takes.
_TYPED_FIELD: dict[int, str] = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data", TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data", TensorProto.UINT64: "uint64_data",
}  # fmt: skip


def dtype_name(elem_type: int) -> str:
    """ONNX's own name of an element type: `FLOAT`, `INT4`; its number where onnx knows none."""
    names: dict[int, str] = {v: k for k, v in TensorProto.DataType.items()}
    return names.get(elem_type, f"number {elem_type}")


def packed_limits(elem_type: int) -> tuple[int, int] | None:
    """Smallest and largest value of an integer type below 8 bits; None for any other type."""
    if elem_type not in PACKED:
        return None
    bits, signed = PACKED[elem_type]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def carrier(elem_type: int) -> DType | None:
    """The dtype in which values of `elem_type` are held; None for a type that isn't taken."""
    if elem_type in PACKED:
        return DType.I8 if PACKED[elem_type][1] else DType.U8
    return DTYPES.get(elem_type)


def decode(tensor: TensorProto, folder: Path | None, file: str) -> np.ndarray:
    """The values of `tensor`, read-only where NumPy can share.

    Integers below 8 bits come as int8 or uint8, bfloat16 as float32: the same numbers.

    FrontendError names the tensor where its type is none of `DTYPES`, a dimension is negative, its data have another
    length than its shape says, or its external data are missing, too short or outside `folder`.
    """
    where = f"{file}: tensor {quoted(tensor.name)}"
    if tensor.data_type not in {*DTYPES, *PACKED, TensorProto.BFLOAT16}:
        hint = "convert the model to float32 or to 8 and 16 bit integers"
        raise problem(
            f"element type {dtype_name(tensor.data_type)} isn't taken", where=where, hint=hint, kind=BadTensor
        )
    elements = _elements(tensor, where)
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = _with_external_data(tensor, folder, where)
    _check_length(tensor, elements, where)
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise problem("the tensor can't be decoded", where=where, why=str(error), kind=BadTensor) from error
    if tensor.data_type == TensorProto.BFLOAT16:
        return array.astype(np.float32)
    held = carrier(tensor.data_type)
    return array.astype(held.numpy) if held is not None and tensor.data_type in PACKED else array


def _elements(tensor: TensorProto, where: str) -> int:
    if any(d < 0 for d in tensor.dims):
        raise problem(
            f"the shape {list(tensor.dims)} has a negative size",
            where=where,
            hint="export the model again",
            kind=BadTensor,
        )
    elements = math.prod(tensor.dims)
    if _nbytes(tensor, elements) > LARGEST:
        raise problem(
            f"the shape {list(tensor.dims)} is beyond 2 GiB",
            where=where,
            hint="check how the model was exported",
            kind=TooLarge,
        )
    return elements


def _nbytes(tensor: TensorProto, elements: int) -> int:
    if tensor.data_type in PACKED:
        return -(-elements * PACKED[tensor.data_type][0] // 8)
    return elements * (2 if tensor.data_type == TensorProto.BFLOAT16 else DTYPES[tensor.data_type].size)


def _check_length(tensor: TensorProto, elements: int, where: str) -> None:
    if tensor.HasField("raw_data"):
        got, want, unit = len(tensor.raw_data), _nbytes(tensor, elements), "bytes"
    else:
        field = _TYPED_FIELD.get(tensor.data_type, "int32_data")
        want = _nbytes(tensor, elements) if tensor.data_type in PACKED else elements
        got, unit = len(getattr(tensor, field)), f"entries of {field}"
    if got != want:
        why = f"{dtype_name(tensor.data_type)}{list(tensor.dims)} takes {want} {unit}, the file holds {got}"
        raise problem(
            "the tensor's data don't fit its shape",
            where=where,
            why=why,
            hint="export or download the model again",
            kind=BadTensor,
        )


def _with_external_data(tensor: TensorProto, folder: Path | None, where: str) -> TensorProto:
    entries = {e.key: e.value for e in tensor.external_data}
    path = _inside(entries.get("location", ""), folder, where)
    try:
        offset, length = int(entries.get("offset", "0")), entries.get("length")
        size = path.stat().st_size
        count = size - offset if length is None else int(length)
    except (ValueError, OSError) as error:
        raise problem(
            "the external data entry is malformed", where=where, why=str(error), kind=BadExternalData
        ) from error
    want = _nbytes(tensor, math.prod(tensor.dims))
    if length is None:
        count = min(count, want)
    if offset < 0 or count != want or offset + count > size:
        why = f"bytes {offset} to {offset + count} of {path.name} ({size} bytes); shape and type take {want}"
        raise problem(
            "the external data don't fit the tensor",
            where=where,
            why=why,
            hint="copy the data file again",
            kind=BadExternalData,
        )
    with path.open("rb") as handle:
        handle.seek(offset)
        data = handle.read(count)
    inner = TensorProto()
    inner.name, inner.data_type, inner.raw_data = tensor.name, tensor.data_type, data
    inner.dims.extend(tensor.dims)
    return inner


def _inside(location: str, folder: Path | None, where: str) -> Path:
    """The data file, which must lie in the model's folder: a model must not make hbc read files elsewhere."""
    if folder is None:
        hint = "give the path of the model file instead of its bytes"
        raise problem(
            "the weights lie in a second file",
            where=where,
            why=f"{quoted(location)}, and no folder is known",
            hint=hint,
            kind=BadExternalData,
        )
    try:
        root = folder.resolve()
        path = (root / location).resolve()
        outside = not location or not path.is_relative_to(root)
        missing = not outside and not path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise problem(
            "the external data file has no usable name",
            where=where,
            why=f"{quoted(location)}: {error}",
            kind=BadExternalData,
        ) from error
    if outside:
        why = f"{quoted(location)} lies outside the model's folder"
        raise problem(
            "the external data file isn't read",
            where=where,
            why=why,
            hint="move it beside the model and save again",
            kind=BadExternalData,
        )
    if missing:
        hint = f"put it beside the model, at {path.relative_to(root)}"
        raise problem(
            "the external data file is missing",
            where=where,
            why=f"there is no {quoted(location)}",
            hint=hint,
            kind=BadExternalData,
        )
    return path
