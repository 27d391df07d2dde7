"""The op table has no empty cells."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.ir import DType, Module, NodeLoc, Op, Quant, TensorType, first_difference, ops, parse_module, print_module
from hbc.ir.builder import make_op
from hbc.ir.core import Graph
from hbc.ir.fixed_point import ARITHMETIC
from hbc.ir.kinds import ANY_SIZE, Kind, attr_kinds
from hbc_runtime import isa
from hbc_runtime.jit.kernels import KERNELS
from hbc_runtime.reference import RULES

OPS = [pytest.param(c, id=name) for name, c in ops.TABLE.items()]
INSTRUCTIONS = [pytest.param(c, id=c.__name__) for c in isa.INSTRUCTIONS.values()]
GIVEN_TYPES = set(ops.CALLS)  # their result types come from the model: an unknown op implies none


@pytest.mark.parametrize("cls", OPS)
def test_every_op_says_what_it_does(cls: type[Op]) -> None:
    assert cls.__doc__
    assert cls.__doc__.strip() not in {"", (cls.__base__.__doc__ or "").strip()}


@pytest.mark.parametrize("cls", OPS)
def test_every_op_infers_its_result(cls: type[Op]) -> None:
    assert cls.infer is not Op.infer or cls in GIVEN_TYPES


@pytest.mark.parametrize("cls", OPS)
def test_every_op_has_a_reference(cls: type[Op]) -> None:
    assert cls.reference is not Op.reference or cls in ARITHMETIC


@pytest.mark.parametrize("cls", OPS)
def test_every_op_names_the_constraints_that_it_checks(cls: type[Op]) -> None:
    """What `verify` quotes as C1, C2 … stands in the docstring of the class or of a base."""
    quoted = {code for base in cls.__mro__ if "verify" in vars(base) for code in _constants(base.verify)}
    documented = " ".join(base.__doc__ or "" for base in cls.__mro__)
    assert {c for c in quoted if f"({c})" not in documented} == set()


@pytest.mark.parametrize("cls", OPS)
def test_every_op_prints_and_parses(cls: type[Op]) -> None:
    graph = Graph()
    x = graph.add_arg("x", TensorType((2, 3), DType.I8, Quant.per_tensor(0.1, -3)))
    kinds = attr_kinds(cls)
    attrs = {spec.name: sample(kinds[spec.name], spec.default) for spec in cls.ATTRS}
    result = TensorType((2,), DType.I16)
    graph.ops.append(make_op(cls, [x] * len(cls.OPERANDS), attrs, NodeLoc("node"), [result], ["y"]))
    graph.add_output("y", graph.ops[0].out)
    module = Module(graph)
    text = print_module(module, locs=True)
    assert f" = {cls.NAME} " in text
    assert all(f"{name} = " in text for name in attrs)
    assert first_difference(module, parse_module(text), locs=True) is None


@pytest.mark.parametrize("cls", INSTRUCTIONS)
def test_every_instruction_has_an_op_a_reference_and_a_kernel(cls: type[isa.Instruction]) -> None:
    assert ops.BPU_OPS[cls].INSTRUCTION is cls
    assert cls in RULES
    assert cls in KERNELS.kernels


def sample(kind: Kind, default: object) -> object:
    """A value that is not the default, so that it is printed."""
    if kind.base is np.ndarray:
        return np.array([7, -7], np.int16)
    one = list(kind.members.values())[-1] if kind.members else {int: 77, float: 7.75, str: "seven"}.get(kind.base)
    if kind.base is bool:
        one = not default
    return one if kind.size is None else (one,) * (3 if kind.size == ANY_SIZE else kind.size)


def _constants(function: object) -> set[str]:
    code = function.__code__  # type: ignore[attr-defined]
    return {c for c in code.co_consts if isinstance(c, str) and c[:1] == "C" and c[1:].isdigit()}
