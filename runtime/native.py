"""Machine code made ahead of time, to lie in the `.hbm` beside the program that it was made from.

Code from a file does whatever its maker wants: it is looked at only where the caller says that he trusts the file.
"""

from __future__ import annotations

import io
from dataclasses import replace

from .program import BpuSegment, Constants, NativeCode, Program


def with_native_code(program: Program) -> Program:
    """`program` with machine code for this machine (or for HBC_ISA) in place of what it had for that; the rest stays.

    Models without BPU segments get none. Raises NoKernel where an instruction cannot be compiled, UnknownIsa where
    HBC_ISA asks for an instruction set that this machine lacks.
    """
    made = [n for i in range(len(program.models)) for n in _made(program, i)]
    keys = {n.key for n in made}
    cpus = {(n.model, n.cpu, n.features) for n in made}
    kept = [n for n in program.natives if n.key not in keys and (n.model, n.cpu, n.features) not in cpus]
    return replace(program, natives=(*kept, *made))


def _made(program: Program, number: int) -> list[NativeCode]:
    from .jit import entry, keys
    from .jit.assembly import assemble
    from .jit.host import host

    model, machine = program.models[number], host()
    if not any(isinstance(s, BpuSegment) for s in model.segments):
        return []
    key = keys.portable_key_of(keys.fingerprint(model), machine)
    file = io.BytesIO()
    entry.write(file, key, assemble(model, machine))
    data = Constants(memoryview(file.getvalue()))
    return [NativeCode(number, key, machine.cpu, machine.features, keys.made_by(), data)]
