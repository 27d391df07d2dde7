"""What `schema.fbs` says, as values that the verifier walks by. A test compares this with the schema itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inline:
    """A scalar or struct of `size` bytes, stored at an address that `align` divides."""

    size: int
    align: int


@dataclass(frozen=True)
class Text:
    """A UTF-8 string: length, bytes, NUL."""


@dataclass(frozen=True)
class Vector:
    """A length and that many elements; `align` is that of its first element."""

    of: Inline | Text | Table
    align: int


@dataclass(frozen=True)
class Field:
    """One field of a table; its slot is its place in `Table.fields`."""

    name: str
    type: Inline | Text | Vector | Table
    required: bool = False


@dataclass(frozen=True)
class Table:
    """A table and its fields in the order of their slots."""

    name: str
    fields: tuple[Field, ...]


U8, U16, I32, U32, I64, U64 = (Inline(n, n) for n in (1, 2, 4, 4, 8, 8))
F32, F64 = Inline(4, 4), Inline(8, 8)
SHA256 = Inline(32, 1)
ATTRIBUTE = Inline(12, 4)
TEXT = Text()


def _vector(of: Inline | Text | Table, align: int | None = None) -> Vector:
    return Vector(of, align or (of.align if isinstance(of, Inline) else 4))


def _need(name: str, type_: Inline | Text | Vector | Table) -> Field:
    return Field(name, type_, required=True)


BYTES = _vector(U8)
QUANT = Table("Quant", (_need("scale", _vector(F32)), _need("zero_point", _vector(I32)), Field("axis", I32)))
TENSOR = Table(
    "Tensor",
    (
        _need("name", TEXT), _need("shape", _vector(I64)), Field("dtype", U8), Field("storage", U8),
        Field("offset", U64), Field("index", U32), Field("quant", QUANT),
    ),
)  # fmt: skip
TENSOR_INFO = Table(
    "TensorInfo",
    (
        _need("name", TEXT), _need("shape", _vector(I64)), Field("dtype", U8), Field("layout", U8),
        Field("quant", QUANT), Field("tensor", U32),
    ),
)  # fmt: skip
INSTRUCTION = Table(
    "Instruction",
    (
        Field("opcode", U16), _need("inputs", _vector(I32)), _need("outputs", _vector(I32)),
        _need("attributes", _vector(ATTRIBUTE)), _need("ints", _vector(I64)), _need("floats", _vector(F64)),
        _need("loc", _vector(U32)),
    ),
)  # fmt: skip
CPU = Table(
    "Cpu",
    (
        _need("inputs", _vector(I32)), _need("outputs", _vector(I32)), _need("onnx", BYTES),
        _need("reasons", _vector(TEXT)), _need("loc", _vector(U32)),
    ),
)  # fmt: skip
COMMANDS = Table(
    "Commands",
    (
        _need("engines", _vector(U8)), _need("instructions", _vector(U32)), _need("counts", _vector(U32)),
        _need("entries", _vector(U32)), _need("tensors", _vector(U32)), _need("addresses", _vector(I64)),
        _need("boxes", _vector(I64)), _need("views", _vector(I64)), _need("places", _vector(I64)),
        Field("on_chip_bytes", U64), Field("scratch_bytes", U64),
    ),
)  # fmt: skip
SEGMENT = Table(
    "Segment",
    (
        _need("name", TEXT), Field("instructions", _vector(INSTRUCTION)), Field("cpu", CPU),
        Field("commands", COMMANDS),
    ),
)  # fmt: skip
MODEL = Table(
    "Model",
    (
        _need("name", TEXT), _need("inputs", _vector(TENSOR_INFO)), _need("outputs", _vector(TENSOR_INFO)),
        _need("tensors", _vector(TENSOR)), _need("segments", _vector(SEGMENT)), Field("arena_size", U64),
        _need("constants", _vector(U8, align=64)),
    ),
)  # fmt: skip
OPTION = Table("Option", (_need("key", TEXT), _need("value", TEXT)))
BUILD_INFO = Table(
    "BuildInfo",
    (_need("producer", TEXT), _need("source", TEXT), _need("source_sha256", TEXT), _need("options", _vector(OPTION))),
)
NATIVE = Table(
    "Native",
    (
        Field("model", U32), _need("key", TEXT), _need("cpu", TEXT), _need("features", TEXT), _need("made_by", TEXT),
        Field("offset", U64), Field("size", U64),
    ),
)  # fmt: skip
FILE = Table(
    "File",
    (
        Field("version", U16), _need("digest", SHA256), _need("march", TEXT), _need("arith", TEXT),
        _need("build", BUILD_INFO), _need("strings", _vector(TEXT)), _need("models", _vector(MODEL)),
        Field("size", U64), Field("natives", _vector(NATIVE)),
    ),
)  # fmt: skip
