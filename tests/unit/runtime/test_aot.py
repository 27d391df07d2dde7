"""Machine code in a `.hbm`: it runs only where the caller trusts the file, and only where it fits and is whole."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import hbc
from hbc_runtime import HbmFormatError, Program, Session, hbm, isa, load
from hbc_runtime.hbm import layout
from hbc_runtime.hbm.verifier import program_size, version_and_digest
from hbc_runtime.hbm.writer import encode_program, seal
from hbc_runtime.jit import assembly, entry, keys
from hbc_runtime.jit.host import host
from hbc_runtime.native import with_native_code
from hbc_runtime.program import Constants, Model
from hbc_runtime.types import DType
from tests.e2e.tiny import qdq_model
from tests.sketch import Sketch, program_of

X = np.arange(-40, 40, dtype=np.int8).reshape(8, 10)


def clamp(limit: int = 9, name: str = "main") -> Model:
    """y = min(max(x, −3), limit), and z = x + a constant row."""
    m = Sketch(name)
    x = m.input((8, 10), DType.I8, name="x")
    row = m.constant([list(range(10))], DType.I8)
    m.emit(isa.Clamp, [x], (8, 10), DType.I8, name="y", clamp_min=-3, clamp_max=limit)
    m.emit(
        isa.Add, [row, x], (8, 10), DType.I8, name="z", scheme=isa.Scheme.FORM_B, lhs_multiplier=1 << 14,
        rhs_multiplier=1 << 14, shift=14, clamp_min=-128, clamp_max=127,
    )  # fmt: skip
    return m.finish()


def tops(source: bytes | Path | Program, *, trust: bool, threads: int = 1, model: str | None = None) -> int:
    """The largest y: it tells whose code ran."""
    with Session(source, threads, model=model, trust_native_code=trust) as session:
        return int(session.run({"x": X})["y"].max())


def forged(limit: int = 9, other: int = 5) -> Program:
    """A clamp at `limit` that brings the machine code of a clamp at `other`, under its own key."""
    program = program_of(clamp(limit))
    (native,) = with_native_code(program).natives
    code = assembly.assemble(clamp(other), host())
    return replace(program, natives=(replace(native, data=Constants(memoryview(entry_of(native.key, code)))),))


def entry_of(key: str, code: assembly.Code) -> bytes:
    file = io.BytesIO()
    entry.write(file, key, code)
    return file.getvalue()


def no_assembly() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(assembly, "assemble", side_effect=AssertionError("compiled again"))


@pytest.mark.parametrize("threads", [1, 2])
def test_trusted_code_runs_without_a_compilation(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(hbm.write(with_native_code(program_of(clamp()))))
    for source in (path, path.read_bytes(), load(path)):
        with no_assembly():
            assert tops(source, trust=True, threads=threads) == 9
    with no_assembly(), pytest.raises(AssertionError, match="compiled again"):
        tops(path, trust=False)


def test_code_runs_only_where_the_caller_trusts_the_file() -> None:
    """The file brings code that computes something else: whoever doesn't ask for it never meets it."""
    data = hbm.write(forged())
    assert tops(data, trust=True) == 5
    assert tops(data, trust=False) == 9
    with mock.patch.object(entry, "read", side_effect=AssertionError("looked at")):
        assert tops(data, trust=False) == 9
    with Session(data) as session:
        assert session.run({"x": X})["y"].max() == 9


def test_the_reference_and_the_digest_leave_native_code_alone() -> None:
    data = bytearray(hbm.write(forged()))
    with Session(bytes(data), engine="reference", trust_native_code=True) as session:
        assert session.run({"x": X})["y"].max() == 9
    size, _ = program_size(memoryview(data))
    data[layout.behind(size) :] = bytes(len(data) - layout.behind(size))
    assert load(bytes(data)).models == (clamp(),)


def test_programs_with_native_code_survive_the_container() -> None:
    two = with_native_code(program_of(clamp(9, "a"), clamp(7, "b")))
    data = hbm.write(two)
    assert hbm.read(data) == two
    assert hbm.write(hbm.read(data)) == data
    assert [n.model for n in two.natives] == [0, 1]
    for name, limit in (("a", 9), ("b", 7)):
        with no_assembly():
            assert tops(data, trust=True, model=name) == limit
    size, _ = program_size(memoryview(data))
    whole = memoryview(data)
    starts = [data.index(n.data.data[:64].tobytes(), size) for n in two.natives]
    assert all(s % layout.PAGE == 0 for s in starts)
    assert version_and_digest(whole)[0] == layout.NATIVE_VERSION
    assert version_and_digest(memoryview(hbm.write(program_of(clamp()))))[0] == layout.PLAIN_VERSION


def test_the_constants_of_a_mapped_file_are_used_as_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(hbm.write(with_native_code(program_of(clamp()))))
    (native,) = load(path).natives
    code = entry.read(native.data.data, native.key)
    assert code is not None
    assert code.packed.ctypes.data % 64 == 0
    assert not code.packed.flags.writeable
    assert not code.packed.flags.owndata


PLACES = ("magic", "size", "digest", "head", "object", "packed", "cut", "all of it")


@pytest.mark.parametrize("where", PLACES)
def test_damaged_code_is_made_anew(where: str) -> None:
    """Code that would clamp elsewhere, whole it would run: it doesn't once a byte of it has changed."""
    data = bytearray(hbm.write(forged()))
    assert tops(bytes(data), trust=True) == 5
    size, _ = program_size(memoryview(data))
    begin = layout.behind(size)
    at = {
        "magic": begin, "size": begin + 9, "digest": begin + 20, "head": begin + 60,
        "object": data.index(b"\x7fELF", begin) + 300, "packed": len(data) - 1,
    }.get(where)  # fmt: skip
    if at is not None:
        data[at] ^= 0xFF
    else:
        del data[begin + (100 if where == "cut" else 0) :]
    assert tops(bytes(data), trust=True) == 9


@pytest.mark.parametrize("what", ["_versions", "_texts", "_cpu"])
def test_code_of_another_version_generator_or_cpu_is_foreign(what: str) -> None:
    with mock.patch.object(keys, what, return_value="another"):
        program = forged()
        assert tops(program, trust=True) == 5  # there it fits
    assert tops(program, trust=True) == 9


def test_code_of_another_model_is_foreign() -> None:
    natives = with_native_code(program_of(clamp(5))).natives
    assert tops(replace(program_of(clamp(9)), natives=natives), trust=True) == 9


def test_a_row_that_names_another_entry_s_key_finds_nothing_of_its_own() -> None:
    """The key in the table fits, the one inside the entry doesn't."""
    program = program_of(clamp(9))
    (right,) = with_native_code(program).natives
    (wrong,) = with_native_code(program_of(clamp(5))).natives
    mixed = replace(program, natives=(replace(right, data=wrong.data), right))
    with no_assembly():
        assert tops(mixed, trust=True) == 9


def test_code_for_other_machines_stays_and_that_for_this_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_native_code(program_of(clamp()))
    monkeypatch.setenv("HBC_ISA", "sse2" if host().x86 else "neon")
    both = with_native_code(program)
    assert len(both.natives) == 2
    assert len({n.cpu for n in both.natives}) == 2
    assert with_native_code(both) == both
    with no_assembly():
        assert tops(hbm.write(both), trust=True) == 9
        monkeypatch.delenv("HBC_ISA")
        assert tops(hbm.write(both), trust=True) == 9


def test_compile_puts_code_in_on_request() -> None:
    model = qdq_model()
    assert hbc.compile(model).program.natives == ()
    compiled = hbc.compile(model, aot=True)
    (native,) = compiled.program.natives
    assert native.cpu == host().cpu
    x = {i.name: np.ones(i.shape, np.float32) for i in compiled.program.models[0].inputs}
    expected = Session(compiled.program, engine="reference").run(x)
    with no_assembly(), Session(compiled.to_bytes(), trust_native_code=True) as session:
        got = session.run(x)
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    with pytest.raises(hbc.OptionError, match="aot is 1"):
        hbc.compile(model, aot=1)


# ---- the container's new fields


def test_native_code_of_a_model_that_is_not_there_is_refused() -> None:
    program = with_native_code(program_of(clamp()))
    odd = replace(program, natives=(replace(program.natives[0], model=1),))
    with pytest.raises(ValueError, match="native code 0: model 1 of 1"):
        hbm.write(odd)
    with pytest.raises(HbmFormatError, match="native code 0: model 1 of 1"):
        hbm.read(encode_program(odd))


@pytest.mark.parametrize("size", [0, 39, 1 << 40])
def test_a_program_that_would_leave_its_file_is_refused(size: int) -> None:
    data = bytearray(hbm.write(with_native_code(program_of(clamp()))))
    _, at = program_size(memoryview(data))
    assert at is not None
    data[at : at + 8] = size.to_bytes(8, "little")
    with pytest.raises(HbmFormatError, match=rf"the program should have {size} bytes, the file has {len(data)}"):
        hbm.read(bytes(data))


def test_bytes_behind_a_program_that_does_not_say_so_are_damage() -> None:
    data = hbm.write(program_of(clamp()))
    with pytest.raises(HbmFormatError, match="SHA-256"):
        hbm.read(data + bytes(64))


@pytest.mark.parametrize("native", [True, False])
def test_a_version_that_does_not_fit_what_is_there_is_refused(native: bool) -> None:
    program = program_of(clamp())
    data = bytearray(hbm.write(with_native_code(program) if native else program))
    plain, with_code = layout.PLAIN_VERSION, layout.NATIVE_VERSION
    old, new = (with_code, plain) if native else (plain, with_code)
    _, digest = version_and_digest(memoryview(data))
    at = data.index(old.to_bytes(2, "little"), digest - 8)
    data[at : at + 2] = new.to_bytes(2, "little")
    assert version_and_digest(memoryview(data))[0] == new
    with pytest.raises(HbmFormatError, match=f"schema version {new}, with"):
        hbm.read(seal(data))
