"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from hbc.diagnostics import CannotWrite, OptionError, error


def check_writable(path: Path) -> None:
    """OptionError where `path` cannot be written: asked before the work, so that minutes of it are not lost."""
    if path.is_dir():
        raise error(
            OptionError,
            "the output is a folder",
            where=str(path),
            hint="give the name of a file in it",
            kind=CannotWrite,
        )
    folder = _target(path).parent
    if not folder.is_dir():
        raise error(
            OptionError,
            "the output's folder doesn't exist",
            where=str(path),
            hint=f"mkdir -p {folder}",
            kind=CannotWrite,
        )
    writes_in_place = path.exists() and not _is_regular(path)
    if not os.access(path if writes_in_place else folder, os.W_OK):
        why = f"{path if writes_in_place else folder} may not be written to"
        raise error(OptionError, "the output can't be written", where=str(path), why=why, kind=CannotWrite)


def write_atomically(path: Path, data: bytes) -> None:
    """Let `path` hold `data`: a reader sees the old file or the new one; on an error or an interrupt the old one stays.

    A link is followed, an existing file's permissions are kept, a pipe or device is written as it is. Raises OSError
    that names `path`.
    """
    try:
        if path.exists() and not _is_regular(path):
            path.write_bytes(data)
        else:
            _replace(_target(path), data)
    except OSError as err:
        err.filename = str(path)  # a full disk has none, and the temporary file's would say nothing to the user
        raise


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:  # an interrupt too
        with contextlib.suppress(FileNotFoundError):  # it came just after the replacement
            Path(name).unlink()
        raise
    _sync_folder(target.parent)


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those that a new file gets."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Make the new name as lasting as the bytes, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written but not read: the file is there all the same
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
