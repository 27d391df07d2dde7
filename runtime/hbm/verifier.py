"""Checks that every offset and length in a FlatBuffer stays inside it, before anything is read through them.

FlatBuffers' C++ has such a verifier, its Python has none: there, a wrong offset is a read from anywhere. The walk is
linear: what it visits is charged to a budget of the file's own size, so an object that is shared a thousand times
(which our writer never does) cannot make a small file expensive.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from .layout import DIGEST_SIZE, IDENTIFIER, MAX_METADATA
from .tables import BYTES, FILE, Field, Inline, Table, Text, Vector

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_HEADER = 8  # offset of the root table, identifier
_HEADER_FIELDS = Table(FILE.name, FILE.fields[:2])  # version, digest
_SIZE = next(i for i, f in enumerate(FILE.fields) if f.name == "size")
_SIZE_FIELDS = Table(FILE.name, tuple(Field(f.name, f.type) for f in FILE.fields[: _SIZE + 1]))  # whatever is missing


class UnsoundError(ValueError):
    """A broken offset or length; `path` is the way to it, outermost last."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).lstrip(".") or "the root table"
        return f"{where}: {self.args[0]}"


def _fail(what: str) -> NoReturn:
    raise UnsoundError(what)


def verify(data: memoryview) -> None:
    """Raise UnsoundError unless `data` is a structurally sound `File`, on which the generated accessors are safe."""
    walk = _Walk(data)
    walk.table(walk.root(), FILE)


def version_and_digest(data: memoryview) -> tuple[int, int]:
    """The schema version, and where the digest's DIGEST_SIZE bytes begin. Looks at the root table's header alone.

    Raises UnsoundError. A newer schema only appends fields, so this much stays readable.
    """
    walk = _Walk(data)
    version, digest = walk.fields(walk.root(), _HEADER_FIELDS, newer=True)
    if digest is None:
        _fail("the digest is missing")
    return (0 if version is None else _U16.unpack_from(data, version)[0]), digest


def program_size(data: memoryview) -> tuple[int, int | None]:
    """How many bytes the FlatBuffer at the beginning of `data` has, and where that number is stored (None: nowhere).

    Raises UnsoundError where it is more than there are. Expects a version that has the field or lacks it.
    """
    walk = _Walk(data)
    at = walk.fields(walk.root(), _SIZE_FIELDS, newer=True)[_SIZE]
    size = len(data) if at is None else _U64.unpack_from(data, at)[0]
    if not _HEADER + DIGEST_SIZE <= size <= len(data):
        _fail(f"the program should have {size} bytes, the file has {len(data)}")
    return size, at


def has_identifier(data: memoryview) -> bool:
    """True where `data` begins like one of our files."""
    return len(data) >= _HEADER and data[4:8] == IDENTIFIER


class _Walk:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.budget = self.size
        self.metadata = MAX_METADATA

    def root(self) -> int:
        """Where the root table begins."""
        if self.size < _HEADER + DIGEST_SIZE:
            _fail(f"the file has only {self.size} bytes")
        return self.follow(0)

    def follow(self, at: int) -> int:
        """The target of the offset stored at `at`, which lies inside the buffer: at least 4 readable, aligned bytes."""
        offset = _U32.unpack_from(self.data, at)[0]
        target: int = at + offset
        if offset == 0 or target % 4 or target + 4 > self.size:
            _fail(f"the offset at byte {at} leads to byte {target} of {self.size}")
        return target

    def charge(self, size: int, *, metadata: bool = True) -> None:
        """Take `size` visited bytes off the budget."""
        self.budget -= size
        if metadata:
            self.metadata -= size
        if self.budget < 0:
            _fail("objects overlap or are shared: together they are larger than the file")
        if self.metadata < 0:
            _fail(f"more than {MAX_METADATA} bytes besides constants")

    def fields(self, at: int, table: Table, *, newer: bool = False) -> list[int | None]:
        """Where the fields of the table at `at` lie (None: absent), each with its inline bytes inside the table."""
        vtable = at - _I32.unpack_from(self.data, at)[0]
        if vtable % 2 or not 0 <= vtable <= self.size - 4:
            _fail(f"the vtable would begin at byte {vtable} of {self.size}")
        vtable_size, size = struct.unpack_from("<HH", self.data, vtable)
        if vtable_size % 2 or vtable_size < 4 or vtable + vtable_size > self.size:
            _fail(f"the vtable at byte {vtable} has {vtable_size} bytes")
        if size < 4 or at + size > self.size:
            _fail(f"the table at byte {at} has {size} bytes, the file {self.size}")
        slots = (vtable_size - 4) // 2
        if slots > len(table.fields) and not newer:
            _fail(f"{table.name} has {slots} fields, {len(table.fields)} are known")
        self.charge(size)
        offsets = struct.unpack_from(f"<{min(slots, len(table.fields))}H", self.data, vtable + 4)
        places = [self._place(at, size, o, f) for o, f in zip(offsets, table.fields, strict=False)]
        return places + [self._place(at, size, 0, f) for f in table.fields[len(places) :]]

    def _place(self, at: int, table_size: int, offset: int, field: Field) -> int | None:
        if offset == 0:
            if field.required:
                _fail(f"field {field.name!r} is missing")
            return None
        inline = field.type if isinstance(field.type, Inline) else Inline(4, 4)
        if offset < 4 or offset + inline.size > table_size or (at + offset) % inline.align:
            _fail(f"field {field.name!r} lies at byte {offset} of a table of {table_size} at byte {at}")
        return at + offset

    def table(self, at: int, table: Table) -> None:
        """Verify the table at `at` and everything below it. The schema has no cycles, so the depth is the schema's."""
        for field, place in zip(table.fields, self.fields(at, table), strict=True):
            if place is None or isinstance(field.type, Inline):
                continue
            try:
                self.value(place, field.type)
            except UnsoundError as err:
                err.path.append("." + field.name)
                raise

    def value(self, at: int, kind: Text | Vector | Table) -> None:
        """Verify what the offset at `at` leads to."""
        target = self.follow(at)
        if isinstance(kind, Table):
            self.table(target, kind)
        elif isinstance(kind, Text):
            self.text(target)
        else:
            self.vector(target, kind)

    def text(self, at: int) -> None:
        """A length, that many bytes, and a NUL."""
        end = at + 4 + _U32.unpack_from(self.data, at)[0]
        if end + 1 > self.size:
            _fail(f"the string at byte {at} would end at byte {end}, the file at {self.size}")
        if self.data[end] != 0:
            _fail(f"the string at byte {at} has no NUL at its end")
        self.charge(end + 1 - at)

    def vector(self, at: int, kind: Vector) -> None:
        """A length and that many elements, aligned."""
        count = _U32.unpack_from(self.data, at)[0]
        first = at + 4
        step = kind.of.size if isinstance(kind.of, Inline) else 4
        if first + count * step > self.size:
            _fail(f"the vector at byte {at} has {count} elements of {step} bytes, the file {self.size} bytes")
        if first % kind.align:
            _fail(f"the vector's elements begin at byte {first}, which {kind.align} does not divide")
        self.charge(4 + count * step, metadata=kind.of != BYTES.of)
        if isinstance(kind.of, Inline):
            return
        for i in range(count):
            try:
                self.value(first + i * step, kind.of)
            except UnsoundError as err:
                err.path.append(f"[{i}]")
                raise
