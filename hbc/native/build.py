"""From emitting code to a function that Python calls; work is shared among threads where that pays."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from hbc_runtime.jit.emitter import F64, I32, I64, PTR, VOID, Emitter, const, lanes_of, vector
from hbc_runtime.jit.host import host, target_machine

Emit = Callable[[Emitter], None]
Native = Callable[..., None]
_TYPES: dict[str, tuple[ir.Type, Any]] = {
    "p": (PTR, ctypes.c_void_p),
    "i": (I64, ctypes.c_int64),
    "d": (F64, ctypes.c_double),
}
_lock = threading.Lock()
_engines: list[llvm.ExecutionEngine] = []  # own the code; there are as many as kinds of kernels
SHARE = 1 << 17  # elements from which a second thread pays for being asked


def function(arguments: str, emit: Emit) -> Native:
    """A function of `arguments` (a letter each: p an address, i an i64, d a float64), whose code `emit` writes.

    Calls release the GIL. Thread-safe.
    """
    with _lock:
        machine = host()
        module = ir.Module("native", context=ir.Context())
        module.triple = machine.triple
        code = ir.Function(module, ir.FunctionType(VOID, [_TYPES[a][0] for a in arguments]), "run")
        code.attributes.add("nounwind")
        e = Emitter(module, machine, {}, code)
        emit(e)
        e.b.ret_void()
        target = target_machine(machine)
        module.data_layout = str(target.target_data)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        engine = llvm.create_mcjit_compiler(parsed, target)
        engine.finalize_object()
        _engines.append(engine)
        return ctypes.CFUNCTYPE(None, *(_TYPES[a][1] for a in arguments))(engine.get_function_address("run"))


def lanes() -> int:
    """32-bit elements of a vector on this machine."""
    return host().lanes


def gathered(e: Emitter, base: ir.Value, index: ir.Value) -> ir.Value:
    """The i32 elements of an array whose indices, i32, are the lanes of `index`."""
    n = lanes_of(index)
    if n == 1:
        return e.load(base, e.b.sext(index, I64), I32)
    places = e.b.gep(e.splat(base, n), [index], source_etype=I32)
    ones, none = const(ir.IntType(1), 1, n), ir.Constant(vector(I32, n), ir.Undefined)
    return e.intrinsic(f"llvm.masked.gather.v{n}i32.v{n}p0", vector(I32, n), places, ir.Constant(I32, 4), ones, none)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hbc-native")


def shared(call: Native, args: Sequence[object], items: int, elements: int, threads: int) -> None:
    """`call(*args, begin, end)` over all items, by as many threads as `elements` in all are worth."""
    count = min(threads, items, elements // SHARE)
    if count < 2:
        call(*args, 0, items)
        return
    ends = [items * i // count for i in range(count + 1)]
    jobs = [_pool(threads).submit(call, *args, a, b) for a, b in pairwise(ends[1:])]
    call(*args, 0, ends[1])
    for job in jobs:
        job.result()
