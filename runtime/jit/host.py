"""What the JIT knows of the machine it runs on, and LLVM's one-time initialisation."""

from __future__ import annotations

import enum
import functools
import os
import threading
from dataclasses import dataclass

import llvmlite.binding as llvm

from ..errors import UnknownIsa

_lock = threading.Lock()


class Dot(enum.IntEnum):
    """What multiplies four pairs of bytes and adds the products to an i32 lane, in one instruction."""

    NONE = 0
    U8S8 = 1  # x86 vpdpbusd, AArch64 usdot: the left bytes are unsigned
    S8S8 = 2  # AArch64 sdot


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
    Isa("avx512", "x86_64", _AVX512, 16, 32, Dot.NONE, "skylake-avx512"),
    Isa("avxvnni", "x86_64", ("avx2", "avxvnni"), 8, 16, Dot.U8S8, "x86-64-v3", "+avxvnni"),
    Isa("avx2", "x86_64", ("avx2",), 8, 16, Dot.NONE, "x86-64-v3"),
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
    triple, enabled = _this_machine()
    if wanted:
        chosen = next((i for i in able if i.name == wanted), None)
        if chosen is None:
            known = ", ".join(i.name for i in able) or "none"
            msg = f"{VARIABLE} is {wanted!r}; this machine runs {known}\n  try: one of these, or unset it for the best"
            raise UnknownIsa(msg)
        return for_isa(chosen, triple)
    if not able:  # another architecture: what LLVM makes of plain vectors
        return Host(triple, llvm.get_host_cpu_name(), enabled.flatten(), 4, 16, x86=False)
    best = able[0]
    return Host(
        triple, llvm.get_host_cpu_name(), enabled.flatten(), best.lanes, best.registers, best.arch == "x86_64", best.dot
    )


def runnable() -> list[Isa]:
    """The instruction sets that this machine has, the best first; none on an architecture that hbc doesn't know."""
    triple, enabled = _this_machine()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(triple.split("-")[0], triple.split("-")[0])
    return [i for i in ISAS if i.arch == arch and all(enabled.get(f) for f in i.needs)]


@functools.cache
def _this_machine() -> tuple[str, llvm.FeatureMap]:
    """The triple of this process and the CPU's features, LLVM initialised."""
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        return llvm.get_process_triple(), llvm.get_host_cpu_features()


def for_isa(isa: Isa, triple: str) -> Host:
    """A machine that has this instruction set and nothing better; also one that is not this machine."""
    return Host(triple, isa.cpu, isa.extra, isa.lanes, isa.registers, isa.arch == "x86_64", isa.dot)


def target_machine(machine: Host) -> llvm.TargetMachine:
    """A fresh code generator. Codegen level 2: measured as fast as 3, and as quick as 1."""
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, jit=True, codemodel="jitdefault"
    )
