"""Machine code for AArch64 on any machine: an object file made into a program, and run under QEMU's user emulation.

No compiler, assembler or linker is needed: LLVM's object files hold few kinds of relocations, and what surrounds them
is a page of instructions written out here. The program is static and knows nothing but system calls: it does one job
(see jit/team.py; with two threads, one leads and one serves), writes the arena to its standard output, and ends.

QEMU is taken from the PATH, or unpacked from Debian's package into a folder of the user's. On AArch64 Linux there is
none: the program runs as it is.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hbc_runtime.jit.code import Code
from hbc_runtime.jit.share import RUN_BITS
from hbc_runtime.jit.team import CLOSING, Word, team_bytes

TRIPLE = "aarch64-unknown-linux-gnu"
PAGE = 0x10000  # the largest page that AArch64 kernels use
BASE = 0x400000
STACK = 1 << 16
TIMEOUT = 120  # seconds; a run takes one or two

Bytes = npt.NDArray[np.uint8]


# ---- the emulator


@functools.cache
def emulator() -> list[str] | str:
    """The command that AArch64 programs are given to, [] where they run as they are; or why there is none."""
    if sys.platform != "linux":
        return f"AArch64 programs for Linux do not run on {sys.platform}"
    if platform.machine() in {"aarch64", "arm64"}:
        return []
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    return [found] if found else _from_debian()


def _from_debian() -> list[str] | str:
    """QEMU out of Debian's package, kept in the user's cache folder; nothing is installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hbc-tests"
    kept = cache / "qemu-aarch64-static"
    if _runs(kept):
        return [str(kept)]
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "there is no qemu-aarch64 here, and no apt-get to fetch it with: install QEMU's user emulation"
    why = ""
    with tempfile.TemporaryDirectory() as folder:
        for package in ("qemu-user-static", "qemu-user"):  # in Debian 13 the first is an empty shell about the second
            why = _unpack(package, Path(folder))
            binaries = [*Path(folder).glob("**/qemu-aarch64-static"), *Path(folder).glob("**/qemu-aarch64")]
            good = next(filter(_runs, binaries), None)
            if good is not None:
                cache.mkdir(parents=True, exist_ok=True)
                fresh = cache / f".{os.getpid()}"
                shutil.copy(good, fresh)
                fresh.replace(kept)  # whole or not at all: other processes may do the same
                return [str(kept)]
    return f"there is no qemu-aarch64 here, and Debian's package could not be had: {why or 'it does not run here'}"


def _runs(binary: Path) -> bool:
    try:
        return subprocess.run([binary, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:  # not there, or for another machine
        return False


def _unpack(package: str, folder: Path) -> str:
    """Download and unpack a package; returns why that failed, or an empty string."""
    steps = [["apt-get", "download", "-q", package]]
    if os.geteuid() == 0:  # a fresh container has no lists of packages yet
        steps.insert(0, ["sh", "-c", f"apt-cache show {package} >/dev/null 2>&1 || apt-get update -q"])
    for step in steps:
        try:
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return f"{' '.join(step)} took too long"
        if done.returncode:
            return f"{' '.join(step)}: {done.stderr.strip()[-300:]}"
    for archive in folder.glob(f"{package}_*.deb"):
        subprocess.run(["dpkg-deb", "-x", archive, folder / "unpacked"], check=True, capture_output=True)
    return ""


# ---- linking


@dataclass
class Image:
    """Memory of a program: pieces at their addresses, each on pages of its own with an unmapped one behind it."""

    pieces: list[tuple[int, bytes, int]] = field(default_factory=list)  # address, content, size
    end: int = BASE

    def place(self, content: bytes, size: int = 0) -> int:
        """The address of `content`, filled up with zeros to `size`."""
        at, size = self.end, max(size, len(content), 1)
        self.pieces.append((at, content, size))
        self.end = (at + size + 2 * PAGE - 1) // PAGE * PAGE
        return at

    def replace(self, at: int, content: bytes) -> None:
        """Other content for the piece at an address."""
        number = next(i for i, p in enumerate(self.pieces) if p[0] == at)
        self.pieces[number] = (at, content, max(self.pieces[number][2], len(content)))

    def elf(self, entry: int) -> bytes:
        """An executable file, all of it readable, writable and executable."""
        count = len(self.pieces)
        ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
        head = ident + struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, entry, 64, 0, 0, 64, 56, count, 64, 0, 0)
        rows, body, offset = b"", b"", PAGE
        for at, content, size in self.pieces:
            rows += struct.pack("<IIQQQQQQ", 1, 7, offset, at, at, len(content), size, PAGE)
            padded = content + bytes(-len(content) % PAGE)
            body += padded
            offset += len(padded)
        return (head + rows).ljust(PAGE, b"\0") + body


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


class Object:
    """A relocatable ELF file of AArch64 in memory."""

    def __init__(self, data: bytes) -> None:
        assert data[:4] == b"\x7fELF", "not an ELF file"
        self.data = data
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        self.sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", data, start + i * size)) for i in range(count)]

    def symbols(self) -> list[_Symbol]:
        """The symbol table."""
        table = next(s for s in self.sections if s.kind == 2)
        names = self.sections[table.link].offset
        found = []
        for at in range(table.offset, table.offset + table.size, 24):
            name, _, section, value, _ = struct.unpack_from("<IBxHQQ", self.data, at)
            stop = self.data.index(b"\0", names + name)
            found.append(_Symbol(self.data[names + name : stop].decode(), section, value))
        return found

    def link(self, at: int, outside: dict[str, int]) -> tuple[bytes, dict[str, int]]:
        """All that is to be in memory, laid out from address `at` on, and the addresses of its symbols."""
        memory, starts = bytearray(), {}
        for i, s in enumerate(self.sections):
            if s.flags & 2 and s.kind in {1, 8}:  # in memory: PROGBITS or NOBITS
                memory += bytes(-len(memory) % max(1, s.align))
                starts[i] = len(memory)
                memory += self.data[s.offset : s.offset + s.size] if s.kind == 1 else bytes(s.size)
        symbols = self.symbols()
        addresses = [at + starts[s.section] + s.value if s.section in starts else outside.get(s.name) for s in symbols]
        for s in self.sections:
            if s.kind == 4 and s.info in starts:  # RELA
                for row in range(s.offset, s.offset + s.size, 24):
                    place, info, addend = struct.unpack_from("<QQq", self.data, row)
                    target = addresses[info >> 32]
                    assert target is not None, f"{symbols[info >> 32].name} is not known"
                    offset = starts[s.info] + place
                    _relocate(memory, offset, info & 0xFFFFFFFF, target + addend, at + offset)
        named = {s.name: a for s, a in zip(symbols, addresses, strict=True) if s.name and a is not None}
        return bytes(memory), named


_PAGE_OF = {275}  # ADR_PREL_PG_HI21
_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD, LDST8, 16, 32, 64, 128: _ABS_LO12_NC
_WIDE = {263: 0, 264: 0, 265: 16, 266: 16, 267: 32, 268: 32, 269: 48}  # MOVW_UABS_G0 to G3
_CALLS = {282, 283}  # JUMP26, CALL26


def _relocate(memory: bytearray, offset: int, kind: int, value: int, place: int) -> None:
    """One relocation, as "ELF for the Arm 64-bit Architecture" (Arm, IHI 0056) defines them."""
    if kind == 257:  # ABS64
        struct.pack_into("<Q", memory, offset, value)
        return
    if kind == 261:  # PREL32
        struct.pack_into("<i", memory, offset, value - place)
        return
    (word,) = struct.unpack_from("<I", memory, offset)
    if kind in _CALLS:
        word |= (value - place) // 4 & 0x3FFFFFF
    elif kind in _WIDE:
        word |= (value >> _WIDE[kind] & 0xFFFF) << 5
    elif kind in _PAGE_OF:
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    else:
        word |= ((value & 0xFFF) >> _LOW12[kind]) << 10
    struct.pack_into("<I", memory, offset, word)


# ---- what surrounds the entry


class _Writer:
    """Instructions one after another, from a known address on."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.words: list[int] = []

    @property
    def here(self) -> int:
        return self.at + 4 * len(self.words)

    def put(self, *words: int) -> None:
        self.words += words

    def load(self, register: int, value: int) -> None:
        """movz, movk: any 64 bits."""
        for k in range(4):
            base = 0xD2800000 if k == 0 else 0xF2800000
            self.put(base | k << 21 | (value >> 16 * k & 0xFFFF) << 5 | register)

    def call(self, target: int) -> None:
        self.put(0x94000000 | (target - self.here) // 4 & 0x3FFFFFF)

    def system(self, number: int) -> None:
        """svc 0, with the number in x8."""
        self.load(8, number)
        self.put(0xD4000001)

    def branch_if(self, register: int, target: int, *, zero: bool, wide: bool = True) -> None:
        """cbz or cbnz."""
        self.put((0xB4 if wide else 0x34) << 24 | (not zero) << 24 | (target - self.here) // 4 % 2**19 << 5 | register)

    def signal(self, address: int) -> None:
        """1 to an i32: mov w10, #1; stlr w10, [x9]."""
        self.load(9, address)
        self.put(0x52800020 | 10, 0x889FFC00 | 9 << 5 | 10)

    def wait(self, address: int) -> None:
        """Until an i32 is not 0: ldar w10, [x9]; cbz."""
        self.load(9, address)
        self.put(0x88DFFC00 | 9 << 5 | 10)
        self.branch_if(10, self.here - 4, zero=True, wide=False)

    def function(self, target: int, *arguments: int) -> None:
        """Call with integers."""
        for register, value in enumerate(arguments):
            self.load(register, value)
        self.call(target)

    def bytes(self) -> bytes:
        return struct.pack(f"<{len(self.words)}I", *self.words)


def _library(at: int) -> tuple[bytes, dict[str, int]]:
    """What generated code may call: memcpy, memset, the yielding of the CPU, and which one it is."""
    w, names = _Writer(at), {}
    names["memcpy"] = w.here
    w.put(0xAA0003E4)  # mov x4, x0
    w.branch_if(2, w.here + 20, zero=True)
    w.put(0x38401423, 0x38001483, 0xF1000442)  # ldrb w3, [x1], #1; strb w3, [x4], #1; subs x2, x2, #1
    w.put(0x54000000 | (-3 % 2**19) << 5 | 1)  # b.ne
    w.put(0xD65F03C0)
    names["memset"] = w.here
    w.put(0xAA0003E4)
    w.branch_if(2, w.here + 16, zero=True)
    w.put(0x38001481, 0xF1000442)  # strb w1, [x4], #1; subs x2, x2, #1
    w.put(0x54000000 | (-2 % 2**19) << 5 | 1)
    w.put(0xD65F03C0)
    names["hbc_yield"] = w.here
    w.system(124)  # sched_yield
    w.put(0xD65F03C0)
    names["hbc_cpu"] = w.here
    w.load(0, 0)
    w.put(0xD65F03C0)
    return w.bytes(), names


_THREAD = 0x50F00  # clone's flags: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM


@dataclass(frozen=True)
class _Places:
    """Addresses: what there is to call, the team's memory, the job, the arena and its end.

    And of the second thread: the top of its stack, and two flags (it has begun, it has ended).
    """

    names: dict[str, int]
    team: int
    job: int
    arena: tuple[int, int]
    stack: int
    flags: tuple[int, int]


def _start(at: int, p: _Places, threads: int) -> bytes:
    """Do the job, on two threads if so asked; write the arena; exit."""
    w = _Writer(at)
    if threads == 1:
        w.function(p.names["work"], p.team, p.job, 0)
    else:
        second = _second_thread(0, p)
        for register, value in enumerate((_THREAD, p.stack, 0, 0, 0)):
            w.load(register, value)
        w.system(220)  # clone
        w.branch_if(0, w.here + 4 + len(second), zero=False)
        w.put(*struct.unpack(f"<{len(second) // 4}I", _second_thread(w.here, p)))
        w.wait(p.flags[0])
        w.function(p.names["lead"], p.team, p.job)
        w.signal(p.team + CLOSING)
        w.wait(p.flags[1])
    w.load(19, p.arena[0])
    w.load(20, p.arena[1])
    again = w.here
    w.load(0, 1)
    w.put(0xAA1303E1, 0xCB130282)  # mov x1, x19; sub x2, x20, x19
    w.system(64)  # write
    w.put(0x8B000273, 0xCB130295)  # add x19, x19, x0; sub x21, x20, x19
    w.branch_if(21, again, zero=False)
    w.load(0, 0)
    w.system(94)  # exit_group
    return w.bytes()


def _second_thread(at: int, p: _Places) -> bytes:
    w = _Writer(at)
    w.signal(p.flags[0])
    w.function(p.names["serve"], p.team, 1, 0, 1 << 40)
    w.signal(p.flags[1])
    w.load(0, 0)
    w.system(93)  # exit: of this thread
    return w.bytes()


# ---- running


def run(code: Code, cpu: str, arena: Bytes, constants: bytes, threads: int = 1) -> Bytes:
    """What the arena holds after segment 0 has run over it. `cpu` is QEMU's name of the CPU; `threads` is 1 or 2."""
    command = emulator()
    assert isinstance(command, list), command
    if command:
        command = [*command, "-cpu", cpu]
    program = _program(code, arena, constants, threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(program)
        path.chmod(0o700)
        done = subprocess.run([*command, path], capture_output=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-500:]!r}"
    return np.frombuffer(done.stdout, np.uint8)


def _program(code: Code, arena: Bytes, constants: bytes, threads: int) -> bytes:
    image = Image()
    start, library = image.place(bytes(PAGE)), image.place(bytes(4096))
    content, outside = _library(library)
    image.replace(library, content)
    names = outside
    for data in code.objects:  # the last one calls those before it
        linked, own = Object(data).link(image.end, names)
        image.place(linked)
        names = {**names, **own}
    memory = arena.tobytes()
    job = {
        Word.ARENA: image.place(memory),
        Word.CONSTANTS: image.place(constants + b"\0"),
        Word.PACKED: image.place(code.packed.tobytes()),
        Word.SCRATCH: image.place(b"", code.scratch * threads + 64),
        Word.BASE: 1 << RUN_BITS,
        Word.PARTS: 0 if threads == 1 else threads,
    }
    job_at = image.place(struct.pack(f"<{len(Word)}q", *(job.get(w, 0) for w in Word)))
    team, stack = image.place(b"", team_bytes(threads, code.stages)), image.place(b"", STACK)
    flags = image.place(bytes(8)), image.place(bytes(8))
    arena_at = job[Word.ARENA], job[Word.ARENA] + len(memory)
    places = _Places(names, team, job_at, arena_at, stack + STACK, flags)
    image.replace(start, _start(start, places, threads))
    return image.elf(start)
