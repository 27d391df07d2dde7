"""Machine code kept between processes, in a folder of the user's.

An entry is a file named by its key (`keys`), and holds what `entry` writes. Writers put a whole file in place at once,
so that readers never see half of one; an entry that is damaged, foreign or not the user's own is as good as none.

Reading all of an entry to see whether it is damaged takes longer than loading it. So whoever keeps the state in which
it was found sound (`notes`) may say so, and it is taken at its word for as long as that state lasts.

HBC_CACHE_DIR names another folder; HBC_CACHE=off does without.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from . import entry
from .code import Code

SUFFIX = ".hbccode"
NOTE_SUFFIX = ".hbcnote"  # see `notes`
State = tuple[int, ...]  # device, inode, size, times of writing and of change: any write makes it another one
_PAST = 10  # seconds by which an entry is dated back
_FRESH = 3600.0  # seconds for which its use is not noted again
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
    return _is_ours(path.stat())


def _is_ours(info: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & 0o022)


def state_of(info: os.stat_result) -> State:
    """What tells a file from any other, and from itself after a write."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def state(place: Path, key: str) -> State | None:
    """The state of the entry named `key`; None where there is none."""
    try:
        return state_of((place / f"{key}{SUFFIX}").stat())
    except OSError:
        return None


def load(place: Path, key: str, sound: State | None = None) -> Code | None:
    """The entry named `key`; None where there is none that is sound. `sound` is a state in which it is known to be."""
    path = place / f"{key}{SUFFIX}"
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            if not _is_ours(info):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None
    code = entry.read(memoryview(mapped), key, checked=state_of(info) == sound)
    if code is not None and time.time() - info.st_mtime > _FRESH:
        _date(path)
    return code


def _date(path: Path) -> None:
    """What was used last is kept longest; where the folder may only be read, nothing is removed either.

    The time is a little back and odd, so that no write that comes later, however soon, can leave the same one.
    """
    now = time.time_ns() - _PAST * 1_000_000_000 - secrets.randbelow(1_000_000_000)
    with contextlib.suppress(OSError):
        os.utime(path, ns=(now, now))


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
            _date(Path(name))
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
