"""A file that was read and checked before is opened without reading it; any change of the file is noticed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from hbc_runtime import HbmFormatError, Program, Session, hbm
from hbc_runtime.errors import UnknownModel
from hbc_runtime.hbm import reader
from hbc_runtime.jit import assembly, cache, entry, notes, obtain
from hbc_runtime.jit.host import host
from hbc_runtime.native import with_native_code
from hbc_runtime.program import BpuSegment, CpuSegment
from tests.sketch import program_of
from tests.unit.runtime.test_aot import X, clamp, forged, tops

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="notes rest on POSIX's times of change")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for the cache, which keeps and notes everything at once."""
    monkeypatch.setenv("HBC_CACHE", "on")
    monkeypatch.setenv("HBC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(obtain, "_WORTH_KEEPING", 0.0)
    monkeypatch.setattr(notes, "SETTLED", -1.0)
    return tmp_path / "cache"


def written(folder: Path, program: Program) -> Path:
    path = folder / "m.hbm"
    path.write_bytes(hbm.write(program))
    return path


def known(folder: Path, limit: int = 9) -> Path:
    """A file that was run once."""
    path = written(folder, program_of(clamp(limit)))
    assert tops(path, trust=False) == limit
    return path


def the_note(place: Path) -> Path:
    (note,) = (p for p in place.iterdir() if p.suffix == cache.NOTE_SUFFIX)
    return note


def unread() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(reader, "read_opened", side_effect=AssertionError("read again"))


def is_known(path: Path) -> bool:
    """True where opening the file takes no reading."""
    with unread():
        try:
            Session(path).close()
        except AssertionError:
            return False
    return True


@pytest.mark.parametrize("threads", [1, 2])
def test_a_known_file_is_run_without_reading_it(place: Path, tmp_path: Path, threads: int) -> None:
    path, program = known(tmp_path), program_of(clamp())
    expected = Session(program, engine="reference")
    with unread(), Session(path, threads, model="main") as session:
        assert session.inputs == expected.inputs
        assert session.outputs == expected.outputs
        got = session.run({"x": X})
    for name, y in expected.run({"x": X}).items():
        assert np.array_equal(got[name], y)


def test_what_was_not_read_is_read_when_it_is_asked_for(place: Path, tmp_path: Path) -> None:
    path, program = known(tmp_path), program_of(clamp())
    with Session(path) as session:
        assert session.program == program
        assert session.model == program.models[0]
        expected = Session(program, engine="reference").intermediates({"x": X})
        got = Session(path).intermediates({"x": X})
    assert list(got) == list(expected)
    assert all(np.array_equal(got[name], expected[name]) for name in got)


def test_a_file_in_its_place_is_another_file(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    other = tmp_path / "other.hbm"
    other.write_bytes(hbm.write(program_of(clamp(7))))
    other.replace(path)
    assert not is_known(path)
    assert tops(path, trust=False) == 7


def test_a_write_that_keeps_size_and_time_is_noticed(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    before = path.stat()
    path.write_bytes(hbm.write(program_of(clamp(7))))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert tops(path, trust=False) == 7


def test_damage_of_a_known_file_is_noticed(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(HbmFormatError, match="SHA-256"):
        Session(path)


def test_a_file_written_moments_ago_is_not_noted(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "SETTLED", 3600.0)
    path = known(tmp_path)
    assert not [p for p in place.iterdir() if p.suffix == cache.NOTE_SUFFIX]
    assert not is_known(path)


@pytest.mark.parametrize("at", [0, 9, 45, -1])
def test_a_damaged_note_is_as_good_as_none(place: Path, tmp_path: Path, at: int) -> None:
    path = known(tmp_path)
    assert is_known(path)
    note = the_note(place)
    data = bytearray(note.read_bytes())
    data[at] ^= 1
    note.write_bytes(bytes(data))
    assert not is_known(path)
    assert tops(path, trust=False) == 9
    assert is_known(path)  # written anew


def test_a_note_that_was_cut_short_or_that_others_may_write_is_none(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    note = the_note(place)
    note.chmod(0o666)
    assert not is_known(path)
    note.chmod(0o600)
    assert is_known(path)
    for size in (0, 20, 100):
        note.write_bytes(note.read_bytes()[:size])
        assert not is_known(path)


def test_another_version_s_note_is_none(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    with mock.patch.object(notes, "__version__", "0.0.0"):
        assert not is_known(path)


def test_a_known_file_whose_code_is_gone_is_read(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    for code in place.glob(f"*{cache.SUFFIX}"):
        code.unlink()
    assert not is_known(path)
    assert tops(path, trust=False) == 9
    assert is_known(path)


def test_another_machine_s_code_is_not_taken(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = known(tmp_path)
    monkeypatch.setenv("HBC_ISA", "sse2" if host().x86 else "neon")
    assert not is_known(path)
    assert tops(path, trust=False) == 9


def test_a_wrong_model_name_is_still_an_error(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    with pytest.raises(UnknownModel, match="no model 'other'"):
        Session(path, model="other")


def test_programs_of_several_models_and_buffers_are_not_noted(place: Path, tmp_path: Path) -> None:
    program = program_of(clamp(9, "a"), clamp(7, "b"))
    path = written(tmp_path, program)
    assert tops(path, trust=False, model="b") == 7
    assert tops(hbm.write(program_of(clamp())), trust=False) == 9
    assert not [p for p in place.iterdir() if p.suffix == cache.NOTE_SUFFIX]


def test_models_with_cpu_segments_are_not_noted(place: Path, tmp_path: Path) -> None:
    path = written(tmp_path, program_of(clamp()))
    opened = notes.Opened("m", memoryview(path.read_bytes()), path.stat())
    program = hbm.read(path)
    outline = mock.Mock(steps=(None, CpuSegment("c", (), (), b"")))
    place.mkdir(mode=0o700)
    notes.keep(opened, outline, program.models[0])
    assert list(place.iterdir()) == []


def test_native_code_of_a_known_file_runs_only_where_it_is_trusted(place: Path, tmp_path: Path) -> None:
    path = written(tmp_path, forged())
    assert tops(path, trust=False) == 9
    assert is_known(path)
    with mock.patch.object(entry, "read", wraps=entry.read) as reads:
        assert tops(path, trust=False) == 9
    (native,) = hbm.read(path).natives
    assert [call.args[1] for call in reads.call_args_list] != [native.key]
    assert len(reads.call_args_list) == 1
    with unread():
        assert tops(path, trust=True) == 5


def test_a_trusted_file_is_noted_by_its_own_code(place: Path, tmp_path: Path) -> None:
    path = written(tmp_path, with_native_code(program_of(clamp())))
    with mock.patch.object(assembly, "assemble", side_effect=AssertionError("compiled")):
        assert tops(path, trust=True) == 9
        with unread():
            assert tops(path, trust=True) == 9
    assert [p.suffix for p in place.iterdir()] == [cache.NOTE_SUFFIX]


def test_a_note_holds_what_running_takes_and_nothing_that_leads_elsewhere(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    head = len(notes.MAGIC) + 32
    note = json.loads(the_note(place).read_bytes()[head:])
    program = hbm.read(path)
    first, size = note["constants"]
    assert path.read_bytes()[first : first + size] == program.models[0].constants.data
    assert str(tmp_path) not in json.dumps(note)
    assert note["steps"] == sum(isinstance(s, BpuSegment) for s in program.models[0].segments)


def test_notes_count_when_the_cache_is_full(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(tmp_path)
    note = the_note(place)
    os.utime(note, (1e9, 1e9))
    monkeypatch.setattr(cache, "MOST", sum(max(entry.PAGE, p.stat().st_size) for p in place.iterdir()) - 1)
    cache._prune(place)
    assert not note.exists()


def constants_read(path: Path) -> int:
    """How often opening the file sums up the packed constants of its code."""
    with mock.patch.object(entry, "checksum", wraps=entry.checksum) as sums:
        assert tops(path, trust=False) == 9
    return int(sums.call_count)


def the_code(place: Path) -> Path:
    (code,) = place.glob(f"*{cache.SUFFIX}")
    return code


def test_constants_of_code_in_a_known_state_are_not_read(place: Path, tmp_path: Path) -> None:
    assert constants_read(known(tmp_path)) == 0


def test_code_in_another_state_is_read_once(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    the_code(place).touch()
    assert constants_read(path) == 1
    assert constants_read(path) == 0


def test_fresh_code_of_somebody_else_is_read_each_time(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = known(tmp_path)
    monkeypatch.setattr(notes, "SETTLED", 5.0)
    the_code(place).touch()
    assert constants_read(path) == 1
    assert constants_read(path) == 1


@pytest.mark.parametrize("keep_time", [True, False])
def test_damage_of_known_code_is_noticed(place: Path, tmp_path: Path, keep_time: bool) -> None:
    path = known(tmp_path)
    code = the_code(place)
    before, data = code.stat(), bytearray(code.read_bytes())
    data[-1] ^= 1
    code.write_bytes(bytes(data))
    if keep_time:
        time.sleep(0.02)  # longer than the clock that changes are dated by
        os.utime(code, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_known(path)
    assert tops(path, trust=False) == 9


def test_code_that_a_trusted_file_brings_says_nothing_about_the_cache_s(place: Path, tmp_path: Path) -> None:
    path = written(tmp_path, with_native_code(program_of(clamp())))
    assert tops(path, trust=False) == 9  # makes an entry, and a note
    the_note(place).unlink()
    assert tops(path, trust=True) == 9
    assert constants_read(path) == 1


def test_use_is_noted_once_an_hour(place: Path, tmp_path: Path) -> None:
    path = known(tmp_path)
    code = the_code(place)
    young = code.stat().st_mtime_ns
    assert tops(path, trust=False) == 9
    assert code.stat().st_mtime_ns == young
    os.utime(code, (1e9, 1e9))
    assert tops(path, trust=False) == 9
    assert code.stat().st_mtime_ns >= young - 10**9
