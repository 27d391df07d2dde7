"""What the JIT knows of the machine it runs on, and LLVM's one-time initialisation."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import llvmlite.binding as llvm

_lock = threading.Lock()


@dataclass(frozen=True)
class Host:
    """CPU name and features as LLVM spells them, and the vector shape that kernels are written for."""

    triple: str
    cpu: str
    features: str
    lanes: int  # i32 elements of one native vector register
    registers: int  # how many vector registers there are
    x86: bool  # x86 instructions may be asked for by name


@functools.cache
def host() -> Host:
    """The host, looked up once; initialises LLVM. Thread-safe."""
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple, enabled = llvm.get_process_triple(), llvm.get_host_cpu_features()
        lanes, registers = _vectors(triple, enabled)
        x86 = triple.startswith(("x86_64", "amd64"))
        return Host(triple, llvm.get_host_cpu_name(), enabled.flatten(), lanes, registers, x86)


def _vectors(triple: str, enabled: dict[str, bool]) -> tuple[int, int]:
    """(i32 lanes, registers): AVX-512 with byte and word instructions, AVX2, or 128-bit SSE and NEON."""
    if all(enabled.get(f) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        return 16, 32
    if enabled.get("avx2"):
        return 8, 16
    return (4, 32) if triple.startswith(("aarch64", "arm64")) else (4, 16)


def target_machine(machine: Host) -> llvm.TargetMachine:
    """A fresh code generator. Codegen level 2: measured as fast as 3, and as quick as 1."""
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, jit=True, codemodel="jitdefault"
    )
