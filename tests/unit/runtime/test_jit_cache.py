"""Machine code kept between processes: found again, never half written, never trusted when it is damaged or foreign."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import llvmlite.binding as llvm
import numpy as np
import pytest

from hbc_runtime.errors import UnknownIsa
from hbc_runtime.isa import Clamp
from hbc_runtime.jit import assembly, build, cache, entry, keys, obtain
from hbc_runtime.jit.code import Code
from hbc_runtime.jit.host import VARIABLE, Host, host, runnable
from hbc_runtime.program import BpuSegment, Constants, Model, Storage, Tensor
from hbc_runtime.types import DType

ROOT = Path(__file__).parents[3]
SHAPE = (1, 4, 4, 8)


def a_model(limit: int = 9, constants: bytes = b"") -> Model:
    tensors = (Tensor("x", SHAPE, DType.I8, Storage.INPUT), Tensor("y", SHAPE, DType.I8, Storage.OUTPUT))
    step = Clamp(inputs=(0,), outputs=(1,), clamp_min=-3, clamp_max=limit)
    return Model("m", (), (), tensors, (BpuSegment("s", (step,)),), 64, Constants(memoryview(constants)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for the cache, which keeps everything however quickly it was made."""
    monkeypatch.setenv("HBC_CACHE", "on")
    monkeypatch.setenv("HBC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(obtain, "_WORTH_KEEPING", 0.0)
    return tmp_path / "cache"


def clamped(model: Model) -> np.ndarray:
    """A run of `model` by what `build` gives."""
    x = np.arange(-64, 64, dtype=np.int8).reshape(SHAPE)
    y, arena = np.zeros(SHAPE, np.int8), np.zeros(64, np.uint8)
    jit = build(model)
    jit.run_segment(0, arena.ctypes.data, arena.ctypes.data, [x.ctypes.data], [y.ctypes.data])
    jit.close()
    return y


def name_of(model: Model, machine: Host | None = None) -> str:
    return keys.key_of(keys.fingerprint(model), machine or host())


def entries(place: Path) -> list[Path]:
    return sorted(place.iterdir())


def test_what_was_compiled_is_found_again_and_runs(place: Path) -> None:
    first = clamped(a_model())
    assert [p.suffix for p in entries(place)] == [cache.SUFFIX]
    with mock.patch.object(assembly, "assemble", side_effect=AssertionError("compiled again")):
        assert np.array_equal(clamped(a_model()), first)
    assert first.min() == -3
    assert first.max() == 9


def test_loading_generates_no_code(place: Path) -> None:
    clamped(a_model())
    generated: list[object] = []
    create = llvm.create_mcjit_compiler

    def watched(*args: Any) -> Any:
        made = create(*args)
        made.set_object_cache(lambda module, data: generated.append(module))
        return made

    with mock.patch.object(llvm, "create_mcjit_compiler", watched):
        clamped(a_model())
    assert generated == []


@pytest.mark.parametrize(
    "other",
    [
        lambda m: a_model(limit=8),
        lambda m: a_model(constants=b"weights"),
        lambda m: replace(m, arena_size=128),
    ],
)
def test_other_models_have_other_keys(other: Callable[[Model], Model]) -> None:
    one = a_model()
    names = {name_of(m) for m in (one, other(one))}
    assert len(names) == 2


def test_other_machines_have_other_keys_and_names_do_not_matter() -> None:
    model = a_model()
    others = [replace(host(), **{k: v}) for k, v in (("cpu", "other"), ("features", "+none"), ("lanes", 2))]
    assert len({name_of(model, m) for m in (host(), *others)}) == 4
    renamed = replace(model, name="n", tensors=tuple(replace(t, name="t") for t in model.tensors))
    assert name_of(renamed) == name_of(model)


def test_the_generator_is_all_that_code_and_constants_come_from() -> None:
    names = {f.name for f in keys._sources()}
    assert {"assembly.py", "byte_conv.py", "numerics.py", "program.py", "weighted.py"} <= names


@pytest.mark.parametrize("what", ["_stats", "_versions"])
def test_an_edit_of_the_generator_and_other_versions_make_other_keys(what: str) -> None:
    before = name_of(a_model())
    with mock.patch.object(keys, what, return_value="edited"):
        assert name_of(a_model()) != before


@pytest.mark.parametrize("size", [0, 7, 32768, 100_000])
def test_a_checksum_sees_every_byte(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    whole = keys.checksum(data)
    for at in {0, size // 2, size - 1} if size else ():
        changed = data.copy()
        changed[at] ^= 1
        assert keys.checksum(changed) != whole
    assert keys.checksum(np.append(data, np.uint8(0))) != whole


def damage_at(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("where", ["magic", "size", "digest", "head", "object", "packed", "cut", "empty", "text"])
def test_a_damaged_entry_is_as_good_as_none(place: Path, where: str) -> None:
    code = Code(
        (b"\x7fELF" + bytes(range(100)), bytes(range(100, 200))),
        np.arange(5000, dtype=np.uint32).view(np.uint8),
        64,
        (1,),
        7,
    )
    place.mkdir(mode=0o700)
    cache.store(place, "k", code)
    path = place / f"k{cache.SUFFIX}"
    found = cache.load(place, "k")
    assert found is not None
    assert found.objects == code.objects
    assert np.array_equal(found.packed, code.packed)
    assert (found.scratch, found.flipped, found.stages) == (64, (1,), 7)
    assert found.packed.ctypes.data % 64 == 0
    size = path.stat().st_size
    places = {"magic": 0, "size": 9, "digest": 20, "head": 70, "packed": size - 1}
    if where in places:
        damage_at(path, places[where])
    elif where == "object":
        damage_at(path, path.read_bytes().index(b"\x7fELF") + 50)
    else:
        path.write_bytes({"cut": path.read_bytes()[: size // 2], "empty": b"", "text": b"no code\n" * 99}[where])
    assert cache.load(place, "k") is None


def test_an_entry_under_another_key_is_foreign(place: Path) -> None:
    place.mkdir(mode=0o700)
    cache.store(place, "a", Code((b"o",), np.zeros(64, np.uint8), 0))
    (place / f"a{cache.SUFFIX}").rename(place / f"b{cache.SUFFIX}")
    assert cache.load(place, "b") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="rights are told by mode bits on POSIX systems alone")
def test_what_others_may_write_is_not_run(place: Path) -> None:
    clamped(a_model())
    (entry,) = entries(place)
    entry.chmod(0o666)
    assert cache.load(place, entry.stem) is None
    entry.chmod(0o600)
    assert cache.load(place, entry.stem) is not None
    place.chmod(0o777)
    assert cache.folder() is None
    place.chmod(stat.S_IRWXU)


def test_a_damaged_entry_is_rebuilt(place: Path) -> None:
    first = clamped(a_model())
    (entry,) = entries(place)
    damage_at(entry, entry.stat().st_size - 1)
    assert np.array_equal(clamped(a_model()), first)
    assert cache.load(place, entry.stem) is not None


def test_many_writers_of_one_entry_leave_one_whole(place: Path) -> None:
    place.mkdir(mode=0o700)
    codes = [Code((bytes([i]) * 50_000,), np.full(100_000, i, np.uint8), i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda code: cache.store(place, "k", code), codes * 4))
    found = cache.load(place, "k")
    assert found is not None
    assert set(found.objects[0]) == {found.scratch} == set(found.packed.tolist())
    assert [p.suffix for p in entries(place)] == [cache.SUFFIX]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from hbc_runtime.jit import cache
from hbc_runtime.jit.code import Code
i = int(sys.argv[2])
for _ in range(20):
    cache.store(Path(sys.argv[1]), "k", Code((bytes([i]) * 50_000,), np.full(100_000, i, np.uint8), i))
    found = cache.load(Path(sys.argv[1]), "k")
    assert found is not None
    assert set(found.objects[0]) == {found.scratch} == set(found.packed.tolist())
"""


def test_many_processes_that_write_one_entry_always_find_one_whole(place: Path) -> None:
    place.mkdir(mode=0o700)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, place, str(i)], cwd=ROOT) for i in range(4)]
    assert [w.wait(120) for w in writers] == [0] * 4
    assert [p.suffix for p in entries(place)] == [cache.SUFFIX]


def test_a_full_disk_leaves_nothing_behind_and_is_no_error(place: Path) -> None:
    def fill(file: BinaryIO, key: str, code: Code) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with mock.patch.object(entry, "write", fill):
        assert clamped(a_model()).max() == 9
    assert entries(place) == []
    assert clamped(a_model()).max() == 9
    assert len(entries(place)) == 1


def test_a_folder_that_may_only_be_read_serves_what_it_has(place: Path) -> None:
    first = clamped(a_model())
    (kept,) = entries(place)
    refuse = PermissionError(errno.EACCES, "Permission denied")
    with mock.patch.object(tempfile, "mkstemp", side_effect=refuse), mock.patch.object(os, "utime", side_effect=refuse):
        assert clamped(a_model(limit=8)).max() == 8  # not kept, and no error
        with mock.patch.object(assembly, "assemble", side_effect=AssertionError("compiled again")):
            assert np.array_equal(clamped(a_model()), first)
    assert entries(place) == [kept]


def test_the_oldest_entries_go_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(mode=0o700)
    for age, name in enumerate(("new", "middle", "old")):
        cache.store(place, name, Code((bytes(1000),), np.zeros(64, np.uint8), 0))
        os.utime(place / f"{name}{cache.SUFFIX}", (1e9 - age, 1e9 - age))
    size = (place / f"new{cache.SUFFIX}").stat().st_size
    monkeypatch.setattr(cache, "MOST", 2 * size + 10)
    cache._prune(place)
    assert [p.stem for p in entries(place)] == ["middle", "new"]


@pytest.mark.parametrize("value", ["off", "0", "no"])
def test_the_cache_can_be_switched_off(place: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HBC_CACHE", value)
    assert cache.folder() is None
    clamped(a_model())
    assert not place.exists()


def test_no_folder_no_cache(place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file is in the way")
    assert cache.folder() is None
    assert clamped(a_model()).max() == 9


def test_an_instruction_set_can_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in runnable():
        monkeypatch.setenv(VARIABLE, isa.name)
        assert (host().lanes, host().dot) == (isa.lanes, isa.dot)
        assert clamped(a_model()).max() == 9
    monkeypatch.setenv(VARIABLE, "mmx")
    with pytest.raises(UnknownIsa, match=r"HBC_ISA is 'mmx'; this machine runs .*"):
        host()
