"""Machine code for hbc's own inner loops: what training computes at every step, and what compiling does often.

A function here takes addresses and numbers, and is made by LLVM at its first call: `build.function`. The arithmetic is
that of `hbc_runtime.jit.numerics`, the executor's. Nothing here knows PyTorch.
"""
