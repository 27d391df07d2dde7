"""`bpu.*` ops: one for each instruction of the runtime, made from its class, so that the two cannot drift apart.

Operands and attributes are the instruction's own; optional operands may be missing; the result's type is always given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hbc_runtime import isa, reference

from ..core import Op
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType


class BpuOp(Op):
    """Base of the ops that are instructions.

    (C1) the instruction's own constraints hold.
    """

    INSTRUCTION: ClassVar[type[isa.Instruction]]

    def infer(self) -> Sequence[TensorType]:
        msg = f"{self.NAME}: give the result's type"
        raise AssertionError(msg)

    def instruction(
        self, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = (), loc: tuple[str, ...] = ()
    ) -> isa.Instruction:
        """The instruction with the given tensor indices."""
        return self.INSTRUCTION(inputs=inputs, outputs=outputs, loc=loc, **self.attrs)

    def verify(self) -> None:
        operands = [None if v is None else v.type for v in self.operands]
        try:
            self.instruction().check(operands, [r.type for r in self.results])
        except ValueError as error:
            self.require(False, "C1", str(error))  # noqa: FBT003

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return reference.execute(self.instruction(), list(operands), [r.type for r in self.results])


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _bpu_op(instruction: type[isa.Instruction]) -> type[BpuOp]:
    body: dict[str, object] = {
        "__doc__": instruction.__doc__,
        "__module__": __name__,
        "INSTRUCTION": instruction,
    }
    for name in instruction.operands:
        plain = name.rstrip("?*")
        body[plain] = operand(optional=name.endswith("?"), variadic=name.endswith("*"))
    for field in dataclasses.fields(instruction):
        if field.name in {"inputs", "outputs", "loc"}:
            continue
        body[field.name] = attr() if field.default is dataclasses.MISSING else attr(default=field.default)
    for key, value in body.items():
        if hasattr(value, "__set_name__"):
            value.__set_name__(BpuOp, key)
    return define_op(f"bpu.{_snake(instruction.__name__)}")(type(instruction.__name__, (BpuOp,), body))


BPU_OPS: dict[type[isa.Instruction], type[BpuOp]] = {c: _bpu_op(c) for c in isa.INSTRUCTIONS.values()}
