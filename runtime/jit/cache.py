"""Machine code kept between processes, in a folder of the user's.

An entry is a file named by its key (`keys`), and holds what `entry` writes. Writers put a whole file in place at once,
so that readers never see half of one; an entry that is damaged, foreign or not the user's own is as good as none.

HBC_CACHE_DIR names another folder; HBC_CACHE=off does without.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from . import entry
from .code import Code

SUFFIX = ".hbccode"
NOTE_SUFFIX = ".hbcnote"  # see `notes`
MOST = 1 << 30  # bytes of all files together; the ones used longest ago go first


def folder() -> Path | None:
    """Where entries are; None where the user wants no cache, or no folder can be made."""
    if os.environ.get("HBC_CACHE", "").lower() in {"off", "0", "no"}:
        return None
    given = os.environ.get("HBC_CACHE_DIR")
    place = Path(given) if given else _user_folder() / "hbc"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return place if is_ours(place) else None


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def is_ours(path: Path) -> bool:
    """True where only this user can have written it: what lies there will be run."""
    if not hasattr(os, "getuid"):
        return True
    info = path.stat()
    return info.st_uid == os.getuid() and not info.st_mode & 0o022


def load(place: Path, key: str) -> Code | None:
    """The entry named `key`; None where there is none that is sound."""
    path = place / f"{key}{SUFFIX}"
    try:
        with path.open("rb") as file:
            if not is_ours(path):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None
    code = entry.read(memoryview(mapped), key)
    if code is not None:
        _touch(path)
    return code


def _touch(path: Path) -> None:
    """What was used last is kept longest; where the folder may only be read, nothing is removed either."""
    with contextlib.suppress(OSError):
        os.utime(path)


def holds(place: Path, key: str) -> bool:
    """True where there is an entry named `key`, sound or not."""
    return (place / f"{key}{SUFFIX}").exists()


def store(place: Path, key: str, code: Code) -> None:
    """Keep `code` under `key`, whole or not at all; a full disk, or no right to write, is no error."""
    put(place / f"{key}{SUFFIX}", lambda file: entry.write(file, key, code))


def put(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put what `write` writes in a file's place, whole or not at all, and remove what was used longest ago."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _prune(path.parent)
    except OSError:
        return


def _prune(place: Path) -> None:
    """Remove the files used longest ago until the rest fits MOST. A note's page is counted whole."""
    files = [f for f in place.iterdir() if f.suffix in {SUFFIX, NOTE_SUFFIX}]
    total = 0
    for info, path in sorted(((f.stat(), f) for f in files), key=lambda e: -e[0].st_mtime):
        total += max(info.st_size, entry.PAGE)
        if total > MOST:
            path.unlink(missing_ok=True)
