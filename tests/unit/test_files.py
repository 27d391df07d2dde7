"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hbc.diagnostics import OptionError
from hbc.files import check_writable, write_atomically


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(p.name for p in folder.iterdir())


def test_a_new_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "m.hbm", b"new")
    assert (tmp_path / "m.hbm").read_bytes() == b"new"
    assert (tmp_path / "m.hbm").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert names(tmp_path) == ["m.hbm", "plain"]


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "chmod"), (Path, "replace")])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_at_any_step_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    path = tmp_path / "m.hbm"
    path.write_bytes(b"old")
    monkeypatch.setattr(owner, step, fail)
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["m.hbm"]


def test_an_error_names_the_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(tmp_path / "m.hbm", b"new")
    assert raised.value.filename == str(tmp_path / "m.hbm")


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.hbm").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "m.hbm")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "m.hbm").read_bytes() == b"new"


def test_a_device_is_written_as_it_is() -> None:
    write_atomically(Path(os.devnull), b"new")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.parametrize(("where", "words"), [("", "the output is a folder"), ("no/m.hbm", "folder doesn't exist")])
def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path: Path, where: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_writable(tmp_path / where)


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, whom no permission stops
    with pytest.raises(OptionError, match="may not be written to"):
        check_writable(tmp_path / "m.hbm")


def test_an_output_that_can_be_written_is_let_pass(tmp_path: Path) -> None:
    check_writable(tmp_path / "m.hbm")
    check_writable(Path(os.devnull))
    assert names(tmp_path) == []
