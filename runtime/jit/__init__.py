"""The JIT: a model's BPU segments as machine code for this CPU, made with llvmlite, equal to the reference."""

from __future__ import annotations

from . import notes
from .engine import JitModel, build, recall

__all__ = ["JitModel", "build", "notes", "recall"]
