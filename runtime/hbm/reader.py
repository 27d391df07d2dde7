"""The bytes of a `.hbm` → `Program`, or an HbmError. After `read` no code asks again whether an offset is in range."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import HbmFormatError, HbmVersionError
from ..isa import INSTRUCTIONS, Instruction, Opcode
from ..program import (
    BpuSegment,
    BuildInfo,
    Constants,
    CpuSegment,
    Model,
    NativeCode,
    Program,
    Segment,
    Storage,
    Tensor,
    TensorInfo,
)
from ..source import Opened, Source, open_source
from ..types import DType, Layout, Quant
from ._generated import schema_generated
from .attributes import Kind, Value, decode
from .checks import check_program
from .layout import DIGEST_SIZE, IDENTIFIER, MAX_FILE, NATIVE_VERSION, VERSION, VERSIONS, behind, digest
from .streams import from_table
from .verifier import has_identifier, program_size, verify, version_and_digest
from .where import within

fb: Any = schema_generated  # flatc's output carries no types
E = TypeVar("E", bound=enum.IntEnum)
T = TypeVar("T")
_ATTRIBUTE = struct.Struct("<IIBxxx")  # schema.fbs, struct Attribute
_REBUILD = "compile the model again with this version of hbc, or copy the file again if it was damaged on its way"


def read(source: Source) -> Program:
    """The program in a file (a path: mapped, so constants are read as they are used) or in a buffer.

    `read(write(p)) == p`. Raises HbmVersionError for a schema version that this runtime does not know,
    HbmFormatError for bytes that are not a sound container, UnreadableProgram for a path that cannot be read.
    Constants stay views of the mapping: replace a file that is in use by renaming another over it, never by writing
    into it.
    """
    return read_opened(open_source(source))


def read_opened(opened: Opened) -> Program:
    """The same for what is open already."""
    name, data = opened.name, opened.data
    if opened.status is not None and len(data) > MAX_FILE:
        raise HbmFormatError(_too_large(name, len(data)))
    with _named(name):
        size = _check_envelope(name, data)
        verify(data[:size])
        program = _file(fb.File.GetRootAs(data[:size], 0), data[behind(size) :])
        check_program(program)
        return program


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as err:
        msg = f"{name} is not a sound .hbm file: {err}\n  try: {_REBUILD}"
        raise HbmFormatError(msg) from err


def _too_large(name: str, size: int) -> str:
    return f"{name} is not a sound .hbm file: it has {size} bytes, the limit is 2 GiB\n  try: {_REBUILD}"


def _check_envelope(name: str, data: memoryview) -> int:
    """The size of the FlatBuffer that `data` begins with, its digest compared. Native code behind it is not touched."""
    if not has_identifier(data):
        what = "only what hbc wrote can be read: no vendor's .hbm, and of an .onnx `hbc compile` makes one"
        msg = f"no identifier {IDENTIFIER.decode()!r} at byte 4; {what}"
        raise ValueError(msg)
    if len(data) > MAX_FILE:
        raise HbmFormatError(_too_large(name, len(data)))
    version, at = version_and_digest(data)
    if version not in VERSIONS:
        known = f"{', '.join(map(str, VERSIONS[:-1]))} and {VERSIONS[-1]}"
        msg = (
            f"{name} has schema version {version}, this runtime reads versions {known}\n"
            "  try: install the hbc that wrote the file, or compile the model again with this one"
        )
        raise HbmVersionError(msg)
    size, marked = program_size(data)
    if version != VERSION and (version == NATIVE_VERSION) != (marked is not None):
        msg = f"schema version {version}, with{'out' if marked is None else ''} native code behind the program"
        raise ValueError(msg)
    if digest(data[:size], at) != data[at : at + DIGEST_SIZE]:
        msg = "its content does not match its SHA-256 digest, so some bytes have changed since it was written"
        raise ValueError(msg)
    return size


# ---- FlatBuffers tables → values. All offsets are verified; what is left to check are numbers that name things.


def _each(label: str, count: int, item: Callable[[int], Any], make: Callable[[Any], T]) -> tuple[T, ...]:
    out = []
    for i in range(count):
        with within(f"{label} {i}"):
            out.append(make(item(i)))
    return tuple(out)


def _file(f: Any, rest: memoryview) -> Program:
    strings = [_utf8(f.Strings(i)) for i in range(f.StringsLength())]
    b = f.Build()
    options = tuple((_utf8(o.Key()), _utf8(o.Value())) for o in map(b.Options, range(b.OptionsLength())))
    build = BuildInfo(_utf8(b.Producer()), _utf8(b.Source()), _utf8(b.SourceSha256()), options)
    models = _each("model", f.ModelsLength(), f.Models, lambda m: _model(m, strings))
    streams = any(isinstance(s, BpuSegment) and s.commands is not None for m in models for s in m.segments)
    if streams != (f.Version() == VERSION):
        msg = f"schema version {f.Version()}, with{'' if streams else 'out'} command streams"
        raise ValueError(msg)
    if f.NativesLength() and not f.Size():
        msg = "native code, but no size of the program that it should lie behind"
        raise ValueError(msg)
    natives = _each("native code", f.NativesLength(), f.Natives, lambda n: _native(n, rest))
    return Program(_utf8(f.March()), _utf8(f.Arith()), build, models, natives)


def _native(n: Any, rest: memoryview) -> NativeCode:
    """Native code, not looked at: where the file was cut short there is less of it, which whoever runs it notices."""
    data = Constants(rest[n.Offset() : n.Offset() + n.Size()])
    return NativeCode(n.Model(), _utf8(n.Key()), _utf8(n.Cpu()), _utf8(n.Features()), _utf8(n.MadeBy()), data)


def _model(m: Any, strings: list[str]) -> Model:
    tensors = _each("tensor", m.TensorsLength(), m.Tensors, _tensor)
    return Model(
        name=_utf8(m.Name()),
        inputs=_each("input", m.InputsLength(), m.Inputs, _info),
        outputs=_each("output", m.OutputsLength(), m.Outputs, _info),
        tensors=tensors,
        segments=_each("segment", m.SegmentsLength(), m.Segments, lambda s: _segment(s, strings, tensors)),
        arena_size=m.ArenaSize(),
        constants=Constants(_bytes(m, 16)),
    )


def _tensor(t: Any) -> Tensor:
    return Tensor(
        name=_utf8(t.Name()),
        shape=_ints(t.ShapeAsNumpy()),
        dtype=_enum(DType, t.Dtype(), "dtype"),
        storage=_enum(Storage, t.Storage(), "storage"),
        offset=t.Offset(),
        index=t.Index(),
        quant=_quant(t.Quant()),
    )


def _info(t: Any) -> TensorInfo:
    return TensorInfo(
        name=_utf8(t.Name()),
        shape=_ints(t.ShapeAsNumpy()),
        dtype=_enum(DType, t.Dtype(), "dtype"),
        layout=_enum(Layout, t.Layout(), "layout"),
        quant=_quant(t.Quant()),
        tensor=t.Tensor(),
    )


def _quant(q: Any) -> Quant | None:
    if q is None:
        return None
    axis = q.Axis()
    return Quant(tuple(q.ScaleAsNumpy().tolist()), _ints(q.ZeroPointAsNumpy()), None if axis == -1 else axis)


def _segment(s: Any, strings: list[str], tensors: tuple[Tensor, ...]) -> Segment:
    cpu = s.Cpu()
    if (cpu is None) == s.InstructionsIsNone():
        msg = "a segment holds either instructions or an ONNX model"
        raise ValueError(msg)
    name = _utf8(s.Name())
    if cpu is None:
        ops = _each("instruction", s.InstructionsLength(), s.Instructions, lambda i: _instruction(i, strings))
        with within("commands"):
            stream = None if s.Commands() is None else from_table(s.Commands(), tensors)
        return BpuSegment(name, ops, stream)
    if s.Commands() is not None:
        msg = "commands for an ONNX model"
        raise ValueError(msg)
    return CpuSegment(
        name=name,
        inputs=_ints(cpu.InputsAsNumpy()),
        outputs=_ints(cpu.OutputsAsNumpy()),
        onnx=bytes(_bytes(cpu, 8)),
        reasons=tuple(_utf8(cpu.Reasons(i)) for i in range(cpu.ReasonsLength())),
        loc=_texts(cpu.LocAsNumpy(), strings),
    )


def _instruction(i: Any, strings: list[str]) -> Instruction:
    cls = INSTRUCTIONS[_enum(Opcode, i.Opcode(), "opcode")]
    with within(cls.__name__):
        return cls(
            inputs=_ints(i.InputsAsNumpy()),
            outputs=_ints(i.OutputsAsNumpy()),
            loc=_texts(i.LocAsNumpy(), strings),
            **decode(cls, _attributes(i, strings)),
        )


def _attributes(i: Any, strings: list[str]) -> dict[str, tuple[Kind, Value]]:
    ints, floats = iter(i.IntsAsNumpy().tolist()), iter(i.FloatsAsNumpy().tolist())
    left = {True: i.FloatsLength(), False: i.IntsLength()}
    out: dict[str, tuple[Kind, Value]] = {}
    for index, count, number in _ATTRIBUTE.iter_unpack(_bytes(i, 10, _ATTRIBUTE.size)):
        name, kind = _text(index, strings), _enum(Kind, number, "attribute kind")
        is_float = kind in {Kind.FLOAT, Kind.FLOATS}
        left[is_float] -= count
        if name in out or left[is_float] < 0 or (count != 1 and kind not in {Kind.INTS, Kind.FLOATS}):
            msg = f"attribute {name!r} comes twice, or with a wrong number of values ({count})"
            raise ValueError(msg)
        values = tuple(next(floats if is_float else ints) for _ in range(count))
        if kind is Kind.TEXT:
            out[name] = kind, _text(values[0], strings)
        else:
            out[name] = kind, values if kind in {Kind.INTS, Kind.FLOATS} else values[0]
    if any(left.values()):
        msg = "some attribute values belong to no attribute"
        raise ValueError(msg)
    return out


# ---- scalars


def _enum(cls: type[E], value: int, what: str) -> E:
    try:
        return cls(value)
    except ValueError:
        msg = f"{what} is {value}; known are {min(cls).value} to {max(cls).value}"
        raise ValueError(msg) from None


def _utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as err:
        msg = f"a string is not UTF-8: {err}"
        raise ValueError(msg) from err


def _ints(array: Any) -> tuple[int, ...]:
    return tuple(array.tolist())


def _text(index: int, strings: list[str]) -> str:
    if not 0 <= index < len(strings):
        msg = f"string {index} of {len(strings)}"
        raise ValueError(msg)
    return strings[index]


def _texts(indices: Any, strings: list[str]) -> tuple[str, ...]:
    return tuple(_text(i, strings) for i in indices.tolist())


def _bytes(table: Any, vtable_offset: int, itemsize: int = 1) -> memoryview:
    """A view of a vector's bytes; the generated accessors have none that does not copy."""
    tab = table._tab  # noqa: SLF001
    at = tab.Offset(vtable_offset)
    start = tab.Vector(at)
    view: memoryview = tab.Bytes[start : start + tab.VectorLen(at) * itemsize]
    return view
