"""The structural verifier: what it lets through can be read without leaving the buffer, and its work is bounded."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import Any

import flatbuffers
import pytest

from hbc_runtime import hbm, isa
from hbc_runtime.hbm import layout
from hbc_runtime.hbm._generated import schema_generated as fb
from hbc_runtime.hbm.verifier import UnsoundError, verify, version_and_digest
from hbc_runtime.hbm.writer import _Writer
from hbc_runtime.types import DType
from tests.sketch import BUILD, Sketch


def sound() -> bytearray:
    m = Sketch()
    m.constant(range(10), DType.I32)
    m.emit(isa.Clamp, [m.input((2, 3), name="x")], (2, 3), DType.I8, name="y", clamp_min=-5, clamp_max=7)
    return bytearray(hbm.write(m.program()))


def model_of(data: bytearray) -> Any:
    return fb.File.GetRootAs(bytes(data), 0).Models(0)._tab


def field(tab: Any, slot: int) -> int:
    """Where the field in `slot` lies."""
    return int(tab.Pos + tab.Offset(4 + 2 * slot))


def vector(tab: Any, slot: int) -> int:
    """Where the length of the vector in `slot` lies."""
    return int(tab.Vector(tab.Offset(4 + 2 * slot)) - 4)


def u32(data: bytearray, at: int, value: int) -> bytearray:
    struct.pack_into("<I", data, at, value % (1 << 32))
    return data


def test_a_sound_file_passes() -> None:
    verify(memoryview(sound()))


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (lambda d: 0, 0, "the offset at byte 0 leads to byte 0"),
        (lambda d: 0, 1 << 31, "leads to byte 2147483648"),
        (lambda d: 0, len(sound()) - 2, "leads to byte"),
        (lambda d: model_of(d).Pos, 1 << 30, r"models\[0\]: the vtable would begin at byte -"),
        (lambda d: model_of(d).Pos, -(1 << 30), r"models\[0\]: the vtable would begin at byte"),
        (lambda d: field(model_of(d), 0), 1 << 30, r"models\[0\]\.name: the offset"),
        (lambda d: field(model_of(d), 0), 0, r"models\[0\]\.name: the offset"),
        (lambda d: vector(model_of(d), 0), 1 << 30, r"models\[0\]\.name: the string .* would end"),
        (lambda d: vector(model_of(d), 0), 3, r"models\[0\]\.name: the string .* has no NUL"),
        (lambda d: vector(model_of(d), 3), 1 << 28, r"models\[0\]\.tensors: the vector .* has 268435456 elements"),
        (lambda d: vector(model_of(d), 6), 1000, r"models\[0\]\.constants: the vector .* has 1000 elements"),
        (lambda d: field(model_of(d), 6), 4, r"models\[0\]\.constants: the vector's elements begin at byte"),
    ],
)
def test_a_broken_offset_or_length_is_named(at: Any, value: int, why: str) -> None:
    data = sound()
    with pytest.raises(UnsoundError, match=why):
        verify(memoryview(u32(data, at(data), value)))


@pytest.mark.parametrize(
    ("word", "value", "why"),
    [
        (0, 5, "the vtable at byte .* has 5 bytes"),
        (0, 2, "the vtable at byte .* has 2 bytes"),
        (0, 60000, "the vtable at byte .* has 60000 bytes"),
        (0, 6, r"models\[0\]: field 'inputs' is missing"),
        (1, 2, "the table at byte .* has 2 bytes"),
        (1, 60000, "the table at byte .* has 60000 bytes"),
        (2, 2, "field 'name' lies at byte 2"),
        (2, 6, "field 'name' lies at byte 6"),
        (2, 400, "field 'name' lies at byte 400"),
        (2, 0, "field 'name' is missing"),
    ],
)
def test_a_broken_vtable_is_named(word: int, value: int, why: str) -> None:
    data = sound()
    tab = model_of(data)
    vtable = tab.Pos - struct.unpack_from("<i", data, tab.Pos)[0]
    struct.pack_into("<H", data, vtable + 2 * word, value)
    with pytest.raises(UnsoundError, match=why):
        verify(memoryview(data))


def test_fields_of_a_newer_schema_are_refused() -> None:
    builder = flatbuffers.Builder(0)
    builder.StartObject(10)
    builder.PrependUint16Slot(9, 1, 0)
    digest = fb.CreateSha256(builder, bytes(32))
    builder.PrependStructSlot(1, digest, 0)
    builder.Finish(builder.EndObject(), file_identifier=hbm.IDENTIFIER)
    data = memoryview(bytes(builder.Output()))
    assert version_and_digest(data)[0] == 0  # the version can be told all the same
    with pytest.raises(UnsoundError, match="File has 10 fields, 9 are known"):
        verify(data)


def test_a_file_without_a_digest_is_refused() -> None:
    builder = flatbuffers.Builder(0)
    builder.StartObject(1)
    builder.PrependUint16Slot(0, 1, 0)
    builder.Finish(builder.EndObject(), file_identifier=hbm.IDENTIFIER)
    with pytest.raises(UnsoundError, match="'digest' is missing"):
        version_and_digest(memoryview(bytes(builder.Output()) + bytes(64)))


def bomb(models: int, strings: int) -> bytes:
    """A small file whose models are one and the same, and so are its strings: read naively, it is huge."""
    w = _Writer(flatbuffers.Builder(0))
    m = Sketch()
    m.emit(isa.Clamp, [m.input((2, 3))], (2, 3), DType.I8, clamp_min=-5, clamp_max=7)
    model, build, text = w.model(m.finish()), w.build(BUILD), w.text("a" * 1000)
    many, words = w.offsets([model] * models), w.offsets([text] * strings)
    march, arith = w.text("nash-e"), w.text("bpu")
    fb.FileStart(w.builder)
    for slot, offset in ((2, march), (3, arith), (4, build), (5, words), (6, many)):
        w.builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    fb.FileAddDigest(w.builder, fb.CreateSha256(w.builder, bytes(32)))
    fb.FileAddVersion(w.builder, layout.PLAIN_VERSION)
    w.builder.Finish(fb.FileEnd(w.builder), file_identifier=hbm.IDENTIFIER)
    return bytes(w.builder.Output())


@pytest.mark.parametrize(("models", "strings"), [(100_000, 1), (1, 100_000)])
def test_shared_objects_do_not_multiply_the_work(models: int, strings: int) -> None:
    data = memoryview(bomb(models, strings))
    start = time.process_time()
    with pytest.raises(UnsoundError, match="objects overlap or are shared"):
        verify(data)
    assert time.process_time() - start < 5
    verify(memoryview(bomb(1, 1)))


def test_lengths_are_believed_only_after_they_are_checked() -> None:
    """A claim of 2^28 elements must not allocate anything."""
    data = sound()
    u32(data, vector(model_of(data), 3), 1 << 28)
    tracemalloc.start()
    try:
        with pytest.raises(UnsoundError):
            verify(memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_metadata_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import hbc_runtime.hbm.verifier as module

    assert layout.MAX_METADATA == 64 << 20
    monkeypatch.setattr(module, "MAX_METADATA", 200)
    with pytest.raises(UnsoundError, match="more than 200 bytes besides constants"):
        verify(memoryview(sound()))
