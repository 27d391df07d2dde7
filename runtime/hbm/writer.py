"""`Program` → the bytes of a `.hbm`. The same program gives the same bytes: no time, path or set order in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt

from ..commands import CommandStream
from ..isa import Instruction
from ..program import ALIGN, BpuSegment, BuildInfo, Model, NativeCode, Program, Segment, Tensor, TensorInfo
from ..stream.sound import check_streams
from ..types import Quant
from ._generated import schema_generated
from .attributes import Kind, encode
from .checks import check_program
from .layout import DIGEST_SIZE, IDENTIFIER, MAX_FILE, NATIVE_VERSION, PLAIN_VERSION, VERSION, behind, digest
from .streams import to_columns
from .verifier import program_size, version_and_digest

fb: Any = schema_generated  # flatc's output carries no types
_UNKNOWN = 64  # File.size until it is known; a default of 0 would leave the field out
_ATTRIBUTE = np.dtype(  # schema.fbs, struct Attribute
    {"names": ["name", "count", "kind"], "formats": ["<u4", "<u4", "u1"], "offsets": [0, 4, 8], "itemsize": 12}
)


def write(program: Program) -> bytes:
    """The container of `program`. Raises ValueError where `read` would refuse the result, saying which part and why.

    Command streams are checked, too, which `read` does not do: a run does not need them.
    """
    check_program(program)
    check_streams(program)
    return encode_program(program)


def encode_program(program: Program) -> bytes:
    """The container of `program` without any check of its meaning (tests of the reader need unsound files)."""
    size = sum(len(m.constants) for m in program.models)
    native = sum(behind(len(n.data)) for n in program.natives)
    if size + native + (1 << 20) > MAX_FILE:
        also = f" and native code {native}" if native else ""
        msg = f"the constants have {size} bytes{also}; a .hbm file holds at most 2 GiB"
        raise ValueError(msg)
    writer = _Writer(flatbuffers.Builder(size + (1 << 16)))
    writer.builder.Finish(writer.file(program), file_identifier=IDENTIFIER)
    data = writer.builder.Output()
    return seal(_with_natives(data, program.natives) if program.natives else data)


def _with_natives(data: bytearray, natives: Sequence[NativeCode]) -> bytearray:
    """A FlatBuffer that knows its size, and native code behind it; each piece begins on a page of its own."""
    size = len(data)
    _, at = program_size(memoryview(bytes(data)))
    assert at is not None
    data[at : at + 8] = size.to_bytes(8, "little")
    for native in natives:
        data.extend(bytes(behind(len(data)) - len(data)))
        data.extend(native.data.data)
    return data


def seal(data: bytes | bytearray) -> bytes:
    """`data` with its digest made right."""
    out = bytearray(data)
    _, at = version_and_digest(memoryview(out))
    size, _ = program_size(memoryview(out))
    out[at : at + DIGEST_SIZE] = digest(memoryview(out)[:size], at)
    return bytes(out)


def _version(p: Program) -> int:
    """The lowest schema version that says all of `p`."""
    segments = (s for m in p.models for s in m.segments)
    if any(isinstance(s, BpuSegment) and s.commands is not None for s in segments):
        return VERSION
    return NATIVE_VERSION if p.natives else PLAIN_VERSION


class _Writer:
    """Children before parents, as FlatBuffers wants it; the string table grows while instructions are written."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.strings: dict[str, int] = {}

    # ---- pieces

    def vector(
        self, values: Sequence[Any] | npt.NDArray[Any] | memoryview, dtype: npt.DTypeLike, align: int = 0
    ) -> int:
        """A vector of scalars or structs, little-endian; aligned to its elements' size unless `align` is given."""
        array = np.ascontiguousarray(values, dtype)
        self.builder.StartVector(array.itemsize, array.size, align or array.itemsize)
        end = self.builder.head
        self.builder.head = end - array.nbytes
        self.builder.Bytes[self.builder.head : end] = array.view(np.uint8).data
        return int(self.builder.EndVector())

    def offsets(self, offsets: Iterable[int]) -> int:
        """A vector of tables or strings."""
        items = list(offsets)
        self.builder.StartVector(4, len(items), 4)
        for offset in reversed(items):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def text(self, text: str) -> int:
        return int(self.builder.CreateString(text))

    def string_index(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def table(self, name: str, **fields: int | None) -> int:
        """A table by the generated functions; None leaves a field out."""
        getattr(fb, f"{name}Start")(self.builder)
        for field, value in fields.items():
            if value is not None:
                getattr(fb, f"{name}Add{field}")(self.builder, value)
        return int(getattr(fb, f"{name}End")(self.builder))

    # ---- tables

    def quant(self, quant: Quant | None) -> int | None:
        if quant is None:
            return None
        return self.table(
            "Quant",
            Scale=self.vector(quant.scale, "<f4"),
            ZeroPoint=self.vector(quant.zero_point, "<i4"),
            Axis=-1 if quant.axis is None else quant.axis,
        )

    def tensor(self, t: Tensor) -> int:
        name, shape, quant = self.text(t.name), self.vector(t.shape, "<i8"), self.quant(t.quant)
        return self.table(
            "Tensor", Name=name, Shape=shape, Dtype=int(t.dtype), Storage=int(t.storage),
            Offset=t.offset, Index=t.index, Quant=quant,
        )  # fmt: skip

    def info(self, t: TensorInfo) -> int:
        name, shape, quant = self.text(t.name), self.vector(t.shape, "<i8"), self.quant(t.quant)
        return self.table(
            "TensorInfo", Name=name, Shape=shape, Dtype=int(t.dtype), Layout=int(t.layout), Quant=quant, Tensor=t.tensor
        )

    def instruction(self, op: Instruction) -> int:
        rows: list[tuple[int, int, Kind]] = []
        ints: list[float] = []
        floats: list[float] = []
        for name, kind, value in encode(op):
            stored = self.string_index(value) if isinstance(value, str) else value
            entries = stored if isinstance(stored, tuple) else (stored,)
            (floats if kind in {Kind.FLOAT, Kind.FLOATS} else ints).extend(entries)
            rows.append((self.string_index(name), len(entries), kind))
        return self.table(
            "Instruction",
            Opcode=int(op.opcode),
            Inputs=self.vector(op.inputs, "<i4"),
            Outputs=self.vector(op.outputs, "<i4"),
            Attributes=self.attributes(rows),
            Ints=self.vector(ints, "<i8"),
            Floats=self.vector(floats, "<f8"),
            Loc=self.vector([self.string_index(s) for s in op.loc], "<u4"),
        )

    def attributes(self, rows: list[tuple[int, int, Kind]]) -> int:
        array = np.zeros(len(rows), _ATTRIBUTE)  # zeros: padding bytes must not depend on what memory held
        for i, row in enumerate(rows):
            array[i] = row
        return self.vector(array, _ATTRIBUTE, align=4)

    def segment(self, s: Segment) -> int:
        name = self.text(s.name)
        if isinstance(s, BpuSegment):
            instructions = self.offsets([self.instruction(i) for i in s.instructions])
            commands = None if s.commands is None else self.commands(s.commands)
            return self.table("Segment", Name=name, Instructions=instructions, Commands=commands)
        cpu = self.table(
            "Cpu",
            Inputs=self.vector(s.inputs, "<i4"),
            Outputs=self.vector(s.outputs, "<i4"),
            Onnx=self.vector(memoryview(s.onnx), np.uint8, align=1),
            Reasons=self.offsets([self.text(r) for r in s.reasons]),
            Loc=self.vector([self.string_index(x) for x in s.loc], "<u4"),
        )
        return self.table("Segment", Name=name, Cpu=cpu)

    def commands(self, stream: CommandStream) -> int:
        c = to_columns(stream)
        return self.table(
            "Commands",
            Engines=self.vector(c.engines, np.uint8),
            Instructions=self.vector(c.instructions, "<u4"),
            Counts=self.vector(c.counts, "<u4"),
            Entries=self.vector(c.entries, "<u4"),
            Tensors=self.vector(c.tensors, "<u4"),
            Addresses=self.vector(c.addresses, "<i8"),
            Boxes=self.vector(c.boxes, "<i8"),
            Views=self.vector(c.views, "<i8"),
            Places=self.vector(c.places, "<i8"),
            OnChipBytes=stream.on_chip_bytes,
            ScratchBytes=stream.scratch_bytes,
        )

    def model(self, m: Model) -> int:
        constants = self.vector(m.constants.data, np.uint8, align=ALIGN)
        return self.table(
            "Model",
            Name=self.text(m.name),
            Inputs=self.offsets([self.info(i) for i in m.inputs]),
            Outputs=self.offsets([self.info(i) for i in m.outputs]),
            Tensors=self.offsets([self.tensor(t) for t in m.tensors]),
            Segments=self.offsets([self.segment(s) for s in m.segments]),
            ArenaSize=m.arena_size,
            Constants=constants,
        )

    def build(self, b: BuildInfo) -> int:
        options = [self.table("Option", Key=self.text(k), Value=self.text(v)) for k, v in b.options]
        return self.table(
            "BuildInfo",
            Producer=self.text(b.producer),
            Source=self.text(b.source),
            SourceSha256=self.text(b.source_sha256),
            Options=self.offsets(options),
        )

    def natives(self, natives: Sequence[NativeCode]) -> int:
        """What is said of native code, and where its bytes will be."""
        tables, offset = [], 0
        for n in natives:
            texts = {"Key": n.key, "Cpu": n.cpu, "Features": n.features, "MadeBy": n.made_by}
            placed = {name: self.text(text) for name, text in texts.items()}
            tables.append(self.table("Native", Model=n.model, **placed, Offset=offset, Size=len(n.data)))
            offset = behind(offset + len(n.data))
        return self.offsets(tables)

    def file(self, p: Program) -> int:
        natives = self.natives(p.natives) if p.natives else None
        models = self.offsets([self.model(m) for m in p.models])
        strings = self.offsets([self.text(s) for s in self.strings])  # after the models: they filled the table
        march, arith, build = self.text(p.march), self.text(p.arith), self.build(p.build)
        fb.FileStart(self.builder)
        if natives is not None:
            fb.FileAddNatives(self.builder, natives)
            fb.FileAddSize(self.builder, _UNKNOWN)
        fb.FileAddModels(self.builder, models)
        fb.FileAddStrings(self.builder, strings)
        fb.FileAddBuild(self.builder, build)
        fb.FileAddArith(self.builder, arith)
        fb.FileAddMarch(self.builder, march)
        fb.FileAddDigest(self.builder, fb.CreateSha256(self.builder, bytes(DIGEST_SIZE)))  # zeros until `seal`
        fb.FileAddVersion(self.builder, _version(p))
        return int(fb.FileEnd(self.builder))
