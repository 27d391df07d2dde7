"""Machine code kept between processes, in a folder of the user's.

An entry is a file named by its key: a hash over everything that the code depends on (the model's structure and a
checksum of its constants, the CPU and its features, the versions of hbc, llvmlite and LLVM, and hbc's own generator).
It holds the object file and the packed constants, each with a checksum. Writers put a whole file in place at once, so
that readers never see half of one; an entry that is damaged, foreign or not the user's own is as good as none.

HBC_CACHE_DIR names another folder; HBC_CACHE=off does without.
"""

from __future__ import annotations

import enum
import hashlib
import json
import marshal
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ..program import BpuSegment, Model
from ..version import __version__
from .code import Code
from .host import Host

MAGIC = b"HBCCODE1"
SUFFIX = ".hbccode"
PAGE = 4096
MOST = 1 << 30  # bytes of all entries together; the ones used longest ago go first
_HEAD = len(MAGIC) + 8


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
    return place if _is_ours(place) else None


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _is_ours(path: Path) -> bool:
    """True where only this user can have written it: what lies there will be run."""
    if not hasattr(os, "getuid"):
        return True
    info = path.stat()
    return info.st_uid == os.getuid() and not info.st_mode & 0o022


# ---- keys


def key_of(model: Model, machine: Host) -> str:
    """The name under which the code of `model` for `machine` is kept."""
    tensors = [(t.shape, int(t.dtype), int(t.storage), t.offset, t.index) for t in model.tensors]
    segments = [
        [(int(op.opcode), [(k, _plain(v)) for k, v in vars(op).items() if k != "loc"]) for op in s.instructions]
        if isinstance(s, BpuSegment)
        else [(*s.inputs,), (*s.outputs,)]
        for s in model.segments
    ]
    made_by = (__version__, llvmlite.__version__, llvm.llvm_version_info, _generator())
    cpu = (machine.triple, machine.cpu, machine.features, machine.lanes, machine.registers, int(machine.dot))
    constants = np.frombuffer(model.constants.data, np.uint8)
    facts = (made_by, cpu, tensors, segments, model.arena_size, checksum(constants))
    return hashlib.sha256(marshal.dumps(facts, 2)).hexdigest()


def _plain(value: Any) -> Any:
    """A value of an instruction's field as marshal takes it."""
    if isinstance(value, enum.IntEnum):
        return int(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _generator() -> str:
    """A fingerprint of the code that generates code, so that no edit of it meets an older one's work."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.glob("kernels/*.py")])
    stats = [(f.name, s.st_size, s.st_mtime_ns) for f in files for s in (f.stat(),)]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def checksum(data: npt.NDArray[np.uint8]) -> str:
    """A checksum at the speed of memory: SHA-256 over the sums of 32 KiB blocks. Against accidents, not against art."""
    whole = data.size // 32768 * 32768
    words = np.frombuffer(data[:whole], np.uint64) if whole else np.zeros(0, np.uint64)
    digest = hashlib.sha256(np.add.reduce(words.reshape(-1, 4096), axis=1).tobytes())
    digest.update(data[whole:].tobytes())
    digest.update(data.size.to_bytes(8, "little"))
    return digest.hexdigest()


# ---- entries


def load(place: Path, key: str) -> Code | None:
    """The entry named `key`; None where there is none that is sound."""
    path = place / f"{key}{SUFFIX}"
    try:
        with path.open("rb") as file:
            if not _is_ours(path):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        code = _read(mapped, key)
        os.utime(path)  # what was used last is kept longest
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code


def _read(mapped: mmap.mmap, key: str) -> Code | None:
    """The code in a mapped entry; ValueError, KeyError or TypeError where the file is no entry."""
    if mapped[: len(MAGIC)] != MAGIC:
        return None
    size = int.from_bytes(mapped[len(MAGIC) : _HEAD], "little")
    head = json.loads(mapped[_HEAD : _HEAD + size])
    if head["key"] != key:
        return None
    start, count = head["object"]
    data = mapped[start : start + count]
    start, count = head["packed"]
    packed = np.frombuffer(mapped, np.uint8, count, start)
    if hashlib.sha256(data).hexdigest() != head["object_sha256"] or checksum(packed) != head["packed_checksum"]:
        return None
    segments, flipped = (tuple(int(i) for i in head[k]) for k in ("segments", "flipped"))
    return Code(data, packed, int(head["scratch"]), segments, flipped, int(head["stages"]))


def store(place: Path, key: str, code: Code) -> None:
    """Keep `code` under `key`, whole or not at all; a full disk, or no right to write, is no error."""
    head = {
        "key": key, "object": [0, len(code.object)], "packed": [0, int(code.packed.size)], "scratch": code.scratch,
        "segments": list(code.segments), "flipped": list(code.flipped), "stages": code.stages,
        "object_sha256": hashlib.sha256(code.object).hexdigest(), "packed_checksum": checksum(code.packed),
    }  # fmt: skip
    first = -(-(_HEAD + len(json.dumps(head)) + 64) // 64) * 64
    head["object"] = [first, len(code.object)]
    second = -(-(first + len(code.object)) // PAGE) * PAGE
    head["packed"] = [second, int(code.packed.size)]
    text = json.dumps(head).encode()
    try:
        handle, name = tempfile.mkstemp(dir=place, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + len(text).to_bytes(8, "little") + text)
                file.seek(first)
                file.write(code.object)
                file.seek(second)
                file.write(code.packed.data)
            Path(name).replace(place / f"{key}{SUFFIX}")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _prune(place)
    except OSError:
        return


def _prune(place: Path) -> None:
    """Remove the entries used longest ago until the rest fits MOST."""
    entries = sorted(((f.stat(), f) for f in place.glob(f"*{SUFFIX}")), key=lambda e: -e[0].st_mtime)
    total = 0
    for info, path in entries:
        total += info.st_size
        if total > MOST:
            path.unlink(missing_ok=True)
