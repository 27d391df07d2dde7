"""The verifier: each law broken once, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from hbc.diagnostics import VerifyError
from hbc.ir import DType, FusedLoc, NodeLoc, Placement, Quant, TensorType, Value, clone, f32, ops, parse_module, verify
from hbc.ir.builder import make_op
from hbc.ir.core import Module, Use
from tests.strategies_ir import runnable

TEXT = """
graph @g(%x: tensor<1x4xf32>, %z: tensor<1x4xf32>) -> (%y, %b) {
  %a = add %x, %z : tensor<1x4xf32> loc("Add_1")
  %b = clip %a {low = 0.0} : tensor<1x4xf32> loc("Relu_2")
  %y = concat %a, %b {axis = 0} : tensor<2x4xf32> loc("Concat_3")
}
"""


@pytest.fixture
def module() -> Module:
    return parse_module(TEXT)


def reverse(m: Module) -> None:
    m.graph.ops.reverse()


def drop_an_op(m: Module) -> None:
    del m.graph.ops[0]


def repeat_an_op(m: Module) -> None:
    m.graph.ops.insert(1, m.graph.ops[0])


def read_another_graph(m: Module) -> None:
    m.graph.ops[0].set_operand(0, parse_module(TEXT).graph.args[0])


def forget_a_use(m: Module) -> None:
    m.graph.args[0].uses.clear()


def double_a_use(m: Module) -> None:
    value = m.graph.ops[0].out
    value.uses.append(value.uses[0])


def read_from_outside(m: Module) -> None:
    make_op(ops.Clip, [m.graph.ops[0].out], {}, NodeLoc("elsewhere"))


def operand_without_use(m: Module) -> None:
    m.graph.ops[1].operands[0] = m.graph.args[0]


def output_use_of_another_index(m: Module) -> None:
    m.graph.outputs[0].value.uses[0] = Use(None, 7)


def return_nothing(m: Module) -> None:
    m.graph.outputs.clear()


def return_a_stranger(m: Module) -> None:
    m.graph.outputs[0].value = Value(f32(1), m.graph, 0, "q")


def two_outputs_of_one_name(m: Module) -> None:
    m.graph.outputs[1].name = "y"


def two_arguments_of_one_name(m: Module) -> None:
    m.graph.args[1].name = "x"


def swap_arguments(m: Module) -> None:
    m.graph.args.reverse()


def result_of_another_op(m: Module) -> None:
    m.graph.ops[1].results[0].owner = m.graph.ops[0]


def result_of_another_index(m: Module) -> None:
    m.graph.ops[1].results[0].index = 1


def no_result(m: Module) -> None:
    m.graph.ops[2].results.clear()


def second_result(m: Module) -> None:
    op = m.graph.ops[2]
    op.results.append(Value(f32(1), op, 1))


def missing_operand(m: Module) -> None:
    m.graph.ops[0].set_operand(1, None)


def operand_too_many(m: Module) -> None:
    m.graph.ops[1].operands.append(None)


def attribute_of_wrong_kind(m: Module) -> None:
    m.graph.ops[1].attrs["low"] = "zero"


def attribute_too_many(m: Module) -> None:
    m.graph.ops[1].attrs["lwo"] = 0.0


def attribute_missing(m: Module) -> None:
    del m.graph.ops[1].attrs["low"]


def no_location(m: Module) -> None:
    m.graph.ops[1].loc = FusedLoc(())


def unknown_device(m: Module) -> None:
    m.graph.ops[1].placement = Placement("gpu")


def axis_that_is_not_there(m: Module) -> None:
    m.graph.ops[2].attrs["axis"] = 3


def shape_of_clip(m: Module) -> None:
    m.graph.ops[1].out.type = f32(1, 5)


def quant(m: Module, dtype: DType, q: Quant) -> None:
    m.graph.args[0].type = TensorType((1, 4), dtype, q)


def scales_on_floats(m: Module) -> None:
    quant(m, DType.F32, Quant.per_tensor(1.0))


def negative_scale(m: Module) -> None:
    quant(m, DType.I8, Quant((-1.0,)))


def zero_point_out_of_range(m: Module) -> None:
    quant(m, DType.I8, Quant.per_tensor(1.0, 128))


def axis_out_of_range(m: Module) -> None:
    quant(m, DType.I8, Quant((1.0,), (0,), 2))


def scales_along_axis(m: Module) -> None:
    quant(m, DType.I8, Quant((1.0, 1.0), (0, 0), 1))


def negative_size(m: Module) -> None:
    m.graph.args[0].type = f32(1, -4)


BREAKS: list[tuple[Callable[[Module], None], str]] = [
    (reverse, r"concat \('Concat_3'\) breaks SSA: operand 'a' is not defined above it"),
    (drop_an_op, r"clip \('Relu_2'\) breaks SSA: operand 'a'"),
    (repeat_an_op, r"add \('Add_1'\) breaks SSA: it makes 'a' again"),
    (read_another_graph, r"add \('Add_1'\) breaks SSA: operand 'x'"),
    (forget_a_use, r"graph \('g'\) breaks USES: the use list of 'x' is wrong: one is missing"),
    (double_a_use, r"add \('Add_1'\) breaks USES: the use list of 'a' is wrong: one is missing or doubled"),
    (read_from_outside, r"add \('Add_1'\) breaks USES: .* <clip 'elsewhere'> is not a reader"),
    (operand_without_use, r"breaks USES"),
    (output_use_of_another_index, r"breaks USES: .* an output is not a reader"),
    (return_nothing, r"graph \('g'\) breaks OUTPUTS: it returns nothing"),
    (return_a_stranger, r"graph \('g'\) breaks OUTPUTS: 'y' is 'q', which no op makes"),
    (two_outputs_of_one_name, r"breaks NAMES: two outputs are named 'y'"),
    (two_arguments_of_one_name, r"breaks NAMES: two arguments are named 'x'"),
    (swap_arguments, r"graph \('g'\) breaks FORM: argument 0 belongs elsewhere"),
    (result_of_another_op, r"clip \('Relu_2'\) breaks FORM: result 0 belongs to another op"),
    (result_of_another_index, r"clip \('Relu_2'\) breaks FORM: result 0"),
    (no_result, r"concat \('Concat_3'\) breaks FORM: it has 0 results, not 1"),
    (second_result, r"concat \('Concat_3'\) breaks FORM: it has 2 results, not 1"),
    (missing_operand, r"add \('Add_1'\) breaks FORM: operand 1 \('rhs'\) is missing"),
    (operand_too_many, r"clip \('Relu_2'\) breaks FORM: it has 2 operands, not 1"),
    (attribute_of_wrong_kind, r"clip \('Relu_2'\) breaks FORM: attribute 'low': 'zero' is not a float"),
    (attribute_too_many, r"clip \('Relu_2'\) breaks FORM: its attributes are \['high', 'low', 'lwo'\]"),
    (attribute_missing, r"clip \('Relu_2'\) breaks FORM: its attributes are \['high'\]"),
    (no_location, r"clip \('\?'\) breaks FORM: its location names no place"),
    (unknown_device, r"breaks FORM: it is placed on 'gpu'"),
    (axis_that_is_not_there, r"concat \('Concat_3'\) breaks (C1|FORM)"),
    (shape_of_clip, r"clip \('Relu_2'\) breaks C1: result is \(1, 5\)"),
    (scales_on_floats, r"breaks TYPE: argument 'x': f32 is not an integer, but has scales"),
    (negative_scale, r"breaks TYPE: argument 'x': scale -1.0 is not positive and finite"),
    (zero_point_out_of_range, r"breaks TYPE: argument 'x': zero point 128 is outside i8"),
    (axis_out_of_range, r"breaks TYPE: argument 'x': quantisation axis 2 of rank 2"),
    (scales_along_axis, r"breaks TYPE: argument 'x': 2 scales along an axis of size 4"),
    (negative_size, r"breaks TYPE: argument 'x': shape \(1, -4\) has a negative size"),
]


@pytest.mark.parametrize(("damage", "message"), [pytest.param(d, m, id=d.__name__) for d, m in BREAKS])
def test_a_broken_law_is_named(module: Module, damage: Callable[[Module], None], message: str) -> None:
    verify(module)
    damage(module)
    with pytest.raises(VerifyError, match=message):
        verify(module)


def test_a_constraint_that_cannot_be_evaluated_is_broken(module: Module) -> None:
    op = module.graph.ops[0]
    op.attrs["clip"] = (0.0, 1.0)
    op.operands[1].type = replace(f32(3, 5), shape=(3, 5))  # type: ignore[union-attr]
    with pytest.raises(VerifyError, match=r"add \('Add_1'\) breaks FORM: its shapes and attributes do not fit"):
        verify(module)


@settings(max_examples=50, deadline=None)
@given(runnable())
def test_modules_made_by_builders_verify_and_so_do_their_clones(module: Module) -> None:
    verify(module)
    verify(clone(module))
