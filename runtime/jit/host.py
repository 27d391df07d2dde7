"""What the JIT knows of the machine it runs on, and LLVM's one-time initialisation.

Code can be made for other machines, too: `for_isa` describes one, `assembly.assemble` writes its object files, once
LLVM has been given all its targets (`llvmlite.binding.initialize_all_targets` and `initialize_all_asmprinters`).
`tests/exact/test_aarch64.py` does so, and runs what comes out under an emulator.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import sys
import threading
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..errors import UnknownIsa

_lock = threading.Lock()
_AARCH64 = ("aarch64-", "arm64-", "arm64e-")  # how triples begin; big-endian ones are others


class Dot(enum.IntEnum):
    """How four pairs of bytes are multiplied and their products added to an i32 lane: in one step, but for PAIRS."""

    NONE = 0
    U8S8 = 1  # x86 vpdpbusd, AArch64 usdot: the left bytes are unsigned
    S8S8 = 2  # AArch64 sdot
    PAIRS = 3  # x86 vpmaddubsw and vpmaddwd, exact where sums of two fit 16 bits: pair_tile.py


@dataclass(frozen=True)
class Host:
    """CPU name and features as LLVM spells them, and the vector shape that kernels are written for."""

    triple: str
    cpu: str
    features: str
    lanes: int  # i32 elements of one native vector register
    registers: int  # how many vector registers there are
    x86: bool  # x86 instructions may be asked for by name
    dot: Dot = Dot.NONE

    def has(self, feature: str) -> bool:
        """True where LLVM was told by name that the CPU has this feature."""
        return f"+{feature}" in self.features.split(",")

    @property
    def aarch64(self) -> bool:
        """AArch64 instructions may be asked for by name: all that its baseline has."""
        return self.triple.startswith(_AARCH64)


@dataclass(frozen=True)
class Isa:
    """One instruction set that kernels are written for; `needs` are LLVM's names of the features it takes."""

    name: str
    arch: str  # how the triple begins
    needs: tuple[str, ...]
    lanes: int
    registers: int
    dot: Dot
    cpu: str  # the plainest CPU that has it, for when it is asked for by name
    extra: str = ""  # features beyond that CPU's


_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
ISAS = (  # the best first
    Isa("avx512vnni", "x86_64", (*_AVX512, "avx512vnni"), 16, 32, Dot.U8S8, "cascadelake"),
    Isa("avx512", "x86_64", _AVX512, 16, 32, Dot.PAIRS, "skylake-avx512"),
    Isa("avxvnni", "x86_64", ("avx2", "avxvnni"), 8, 16, Dot.U8S8, "x86-64-v3", "+avxvnni"),
    Isa("avx2", "x86_64", ("avx2",), 8, 16, Dot.PAIRS, "x86-64-v3"),
    Isa("sse2", "x86_64", (), 4, 16, Dot.NONE, "x86-64"),
    Isa("dotprod", "aarch64", ("dotprod",), 4, 32, Dot.S8S8, "neoverse-n1"),
    Isa("neon", "aarch64", (), 4, 32, Dot.NONE, "generic"),
)
VARIABLE = "HBC_ISA"  # an environment variable that picks one of ISAS by name


def host() -> Host:
    """The machine that code is made for: this one, with the best instruction set it has, or the one in HBC_ISA.

    Initialises LLVM on first use. Thread-safe. UnknownIsa where HBC_ISA names none that this machine can run.
    """
    return _host(os.environ.get(VARIABLE, ""))


@functools.cache
def _host(wanted: str) -> Host:
    able = runnable()
    triple, features = llvm.get_process_triple(), ",".join(f"{'-+'[on]}{f}" for f, on in sorted(_enabled().items()))
    if wanted:
        chosen = next((i for i in able if i.name == wanted), None)
        if chosen is None:
            known = ", ".join(i.name for i in able) or "none"
            msg = f"{VARIABLE} is {wanted!r}; this machine runs {known}\n  try: one of these, or unset it for the best"
            raise UnknownIsa(msg)
        return for_isa(chosen, triple)
    if not able:  # another architecture: what LLVM makes of plain vectors
        return Host(triple, llvm.get_host_cpu_name(), features, 4, 16, x86=False)
    best = able[0]
    cpu = llvm.get_host_cpu_name()
    return Host(triple, cpu, features, best.lanes, best.registers, best.arch == "x86_64", best.dot)


def runnable() -> list[Isa]:
    """The instruction sets that this machine has, the best first; none on an architecture that hbc doesn't know."""
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    enabled, arch = _enabled(), _architecture(llvm.get_process_triple())
    return [i for i in ISAS if i.arch == arch and all(enabled.get(f) for f in i.needs)]


def _architecture(triple: str) -> str:
    """The name that ISAS has for a triple's architecture."""
    first = triple.split("-", maxsplit=1)[0]
    return {"amd64": "x86_64", "arm64": "aarch64", "arm64e": "aarch64"}.get(first, first)


@functools.cache
def _enabled() -> dict[str, bool]:
    """This CPU's features by LLVM's names. Of AArch64's dot products LLVM 22 does not tell; the system does."""
    found = dict(llvm.get_host_cpu_features())
    if _architecture(llvm.get_process_triple()) == "aarch64":
        found["dotprod"] = found.get("dotprod", False) or _arm_has_dot_products()
    return found


def _arm_has_dot_products() -> bool:
    try:
        if sys.platform == "win32":
            return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(43))  # PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            value, size = ctypes.c_int(0), ctypes.c_size_t(4)
            name = b"hw.optional.arm.FEAT_DotProd"
            return not libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0) and bool(value.value)
        libc.getauxval.argtypes, libc.getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
        return bool(libc.getauxval(16) >> 20 & 1)  # AT_HWCAP, HWCAP_ASIMDDP
    except (AttributeError, OSError):  # a system without such a call
        return False


def for_isa(isa: Isa, triple: str) -> Host:
    """A machine that has this instruction set and nothing better; also one that is not this machine."""
    return Host(triple, isa.cpu, isa.extra, isa.lanes, isa.registers, isa.arch == "x86_64", isa.dot)


def target_machine(machine: Host) -> llvm.TargetMachine:
    """A fresh code generator. Codegen level 2: measured as fast as 3, and as quick as 1."""
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, jit=True, codemodel="jitdefault"
    )
