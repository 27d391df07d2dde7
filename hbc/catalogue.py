"""The compiler's tables as rows: ops and what is done with each, instructions, ONNX operators, stages and passes.

All of it is read off the tables that the compiler itself runs on, so `hbc ops` and `hbc passes` cannot be out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from dataclasses import dataclass

from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.pipelines import PIPELINES
from hbc.backend.bpu.rules import RULES
from hbc.frontend.onnx_ops import RULES as ONNX_RULES
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.fixed_point import DERIVE
from hbc.ir.ops.unary import Unary
from hbc.passes.base import Pass
from hbc.passes.registry import PASSES
from hbc_runtime import isa, reference
from hbc_runtime.jit.kernels import KERNELS


@dataclass(frozen=True)
class OpRow:
    """One op of the IR. `bpu`: how it runs there where it is quantised; `cpu` where it never does."""

    name: str
    summary: str
    bpu: str


@dataclass(frozen=True)
class LimitRow:
    """One constraint that a march puts on ops, in words; `ops` are the ops' names."""

    name: str
    text: str
    ops: tuple[str, ...]


@dataclass(frozen=True)
class InstructionRow:
    """One instruction of the runtime, and which engines have it."""

    name: str
    number: int
    summary: str
    reference: bool
    jit: bool


@dataclass(frozen=True)
class PassRow:
    """One pass where it stands in the pipeline (stage "" for a pass that no stage runs), with its options."""

    stage: str
    name: str
    options: str
    summary: str


def op_rows() -> list[OpRow]:
    """Every op of the IR but the instructions', by name."""
    return [OpRow(n, summary(cls), _how(cls)) for n, cls in _plain_ops()]


def limit_rows(march: str) -> list[LimitRow]:
    """What a march asks of ops, in the order in which it is asked."""
    names = {r: tuple(n for n, cls in _plain_ops() if issubclass(cls, r.classes)) for r in RULES}
    spec = MARCHES[march]
    return [LimitRow(r.name, _one_line(r.text(spec)), names[r]) for r in RULES if r.where(spec)]


def _plain_ops() -> list[tuple[str, type[Op]]]:
    return sorted((n, cls) for n, cls in ops.TABLE.items() if not issubclass(cls, ops.BpuOp))


def instruction_rows() -> list[InstructionRow]:
    """Every instruction, by number."""
    found = sorted(isa.INSTRUCTIONS.items())
    return [
        InstructionRow(opcode.name.lower(), int(opcode), summary(cls), cls in reference.RULES, cls in KERNELS.kernels)
        for opcode, cls in found
    ]


def onnx_operators() -> dict[str, list[str]]:
    """The ONNX operators with an import rule, by domain (ONNX's own is "")."""
    found: dict[str, list[str]] = {}
    for domain, op_type in sorted(ONNX_RULES):
        found.setdefault(domain, []).append(op_type)
    return found


def pass_rows(march: str) -> list[PassRow]:
    """The pipeline of a march, top to bottom, then the passes that stand in no stage."""
    staged = [(stage.name, p) for stage in PIPELINES[march] for p in stage.passes]
    rows = [PassRow(stage, p.name, _options(p), summary(type(p))) for stage, p in staged]
    used = {p.name for _, p in staged}
    return rows + [PassRow("", name, "", summary(cls)) for name, cls in PASSES.items() if name not in used]


def summary(cls: type[object]) -> str:
    """The first sentence of a class's docstring, on one line."""
    text = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    return _one_line(text)


def _how(cls: type[Op]) -> str:
    if cls in DERIVE:
        return "integers"
    if issubclass(cls, Unary):
        return "look-up table"
    if issubclass(cls, ops.Composite):
        return "several instructions"
    if issubclass(cls, ops.Binary):
        return "product or table"
    return "folded" if cls is ops.Const else "cpu"


def _options(p: Pass) -> str:
    changed = [f for f in dataclasses.fields(p) if getattr(p, f.name) != f.default]
    return ",".join(f"{f.name.replace('_', '-')}={getattr(p, f.name)}" for f in changed)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def markdown(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table for the docs."""
    head = list(columns)
    lines = [head, ["---"] * len(head), *([str(c).replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
