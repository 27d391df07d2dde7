"""Names for machine code: a hash over everything that it depends on, so that no other code has the same name.

That is the model's structure and its constants, the CPU and its features, the versions of hbc, llvmlite and LLVM, and
hbc's own generator. Names of tensors and nodes don't matter.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import marshal
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ..program import BpuSegment, Model
from ..version import __version__
from .host import Host

_BLOCK = 1 << 15  # bytes that one sum of a checksum covers


def fingerprint(model: Model) -> str:
    """What a model computes, as a hash: its structure and a checksum of its constants."""
    tensors = [(t.shape, int(t.dtype), int(t.storage), t.offset, t.index) for t in model.tensors]
    segments = [
        [(int(op.opcode), [(k, _plain(v)) for k, v in vars(op).items() if k != "loc"]) for op in s.instructions]
        if isinstance(s, BpuSegment)
        else [(*s.inputs,), (*s.outputs,)]
        for s in model.segments
    ]
    constants = checksum(np.frombuffer(model.constants.data, np.uint8))
    return _hash(tensors, segments, model.arena_size, constants)


def key_of(content: str, machine: Host) -> str:
    """The name of the code for the model with fingerprint `content` on `machine`, as this very generator makes it."""
    return _hash(content, _versions(), _cpu(machine), _stats())


def portable_key_of(content: str, machine: Host) -> str:
    """The same for code that travels: it knows the generator by what its files say, not by when they were written."""
    return _hash(content, _versions(), _cpu(machine), _texts())


def made_by() -> str:
    """The versions that a key holds, for people."""
    return f"hbc {__version__}, llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


def checksum(data: npt.NDArray[np.uint8]) -> str:
    """A checksum at the speed of memory: SHA-256 over the sums of 32 KiB blocks. Against accidents, not against art."""
    whole = data.size // _BLOCK * _BLOCK
    words = np.frombuffer(data[:whole], np.uint64) if whole else np.zeros(0, np.uint64)
    digest = hashlib.sha256(np.add.reduce(words.reshape(-1, _BLOCK // 8), axis=1).tobytes())
    digest.update(data[whole:].tobytes())
    digest.update(data.size.to_bytes(8, "little"))
    return digest.hexdigest()


def _hash(*facts: Any) -> str:
    return hashlib.sha256(marshal.dumps(facts, 2)).hexdigest()  # version 2: no references, so equal facts, equal bytes


def _plain(value: Any) -> Any:
    """A value of an instruction's field as marshal takes it."""
    if isinstance(value, enum.IntEnum):
        return int(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _versions() -> tuple[Any, ...]:
    return __version__, llvmlite.__version__, tuple(llvm.llvm_version_info)


def _cpu(machine: Host) -> tuple[Any, ...]:
    return machine.triple, machine.cpu, machine.features, machine.lanes, machine.registers, int(machine.dot)


def _sources() -> Iterator[os.DirEntry[str]]:
    """The files that code and packed constants come from, in the order of their names: the JIT, and what it calls."""
    here = Path(__file__).parent
    for folder in (here, here / "kernels", here.parent, here.parent / "isa"):
        with os.scandir(folder) as found:
            yield from sorted((f for f in found if f.name.endswith(".py")), key=lambda f: f.name)


@functools.cache
def _stats() -> str:
    """A fingerprint of the generator that is quick to take; any edit changes it, of a generator not yet in use."""
    return _hash([(f.name, s.st_size, s.st_mtime_ns) for f in _sources() for s in (f.stat(),)])


@functools.cache
def _texts() -> str:
    """A fingerprint of the generator that is the same wherever it is installed."""
    digest = hashlib.sha256()
    for file in _sources():
        digest.update(file.name.encode() + b"\0" + Path(file.path).read_bytes() + b"\0")
    return digest.hexdigest()
