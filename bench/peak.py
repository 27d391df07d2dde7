"""The most int8 work a core can do: independent vpdpbusd in registers, the roof that networks are measured against."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

ACCUMULATORS, UNROLL = 20, 4
SHAPES = {  # per instruction set: (intrinsic, i32 lanes)
    "avx512vnni": ("llvm.x86.avx512.vpdpbusd.512", 16),
    "avxvnni": ("llvm.x86.avx512.vpdpbusd.256", 8),
}


@dataclass
class Peak:
    """A loop of dot products; `ops(seconds)` runs it for about that long and returns operations per second."""

    engine: Any
    function: Any
    per_turn: int
    buffer: np.ndarray

    def ops(self, seconds: float) -> float:
        """Operations (a multiplication or an addition each) per second."""
        turns = max(1000, int(seconds * 9e11 / self.per_turn))
        start = time.perf_counter()
        self.function(turns, self.buffer.ctypes.data)
        return turns * self.per_turn / (time.perf_counter() - start)


def vnni_peak() -> Peak | None:
    """The loop for this machine; None where it has no VNNI."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    name = next((n for n in SHAPES if features.get(n)), None)
    if name is None:
        return None
    intrinsic, lanes = SHAPES[name]
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_loop(intrinsic, lanes)), machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("peak"))
    return Peak(engine, function, ACCUMULATORS * UNROLL * lanes * 8, np.ones(256, np.uint8))


def _loop(intrinsic: str, lanes: int) -> str:
    acc, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    lines = [
        f"declare {acc} @{intrinsic}({acc}, {bytes_}, {bytes_})",
        "define void @peak(i64 %n, ptr %p) {", "entry:",
        f"  %a = load {bytes_}, ptr %p, align 1", "  %q = getelementptr i8, ptr %p, i64 64",
        f"  %b = load {bytes_}, ptr %q, align 1", f"  %c = load {acc}, ptr %p, align 1",
        "  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]",
    ]  # fmt: skip
    every = range(ACCUMULATORS)
    lines += [f"  %x0_{k} = phi {acc} [%c, %entry], [%x{UNROLL}_{k}, %loop]" for k in every]
    lines += [
        f"  %x{u + 1}_{k} = call {acc} @{intrinsic}({acc} %x{u}_{k}, {bytes_} %a, {bytes_} %b)"
        for u in range(UNROLL)
        for k in every
    ]
    lines += ["  %next = add i64 %i, 1", "  %more = icmp ult i64 %next, %n", "  br i1 %more, label %loop, label %done"]
    lines += ["done:", f"  %s0 = add {acc} %x{UNROLL}_0, %x{UNROLL}_0"]
    lines += [f"  %s{k} = add {acc} %s{k - 1}, %x{UNROLL}_{k}" for k in every[1:]]
    lines += [f"  store {acc} %s{ACCUMULATORS - 1}, ptr %p, align 1", "  ret void", "}"]
    return "\n".join(lines)
