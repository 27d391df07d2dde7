"""Sizes that are known only after a run: where a type may have one, and how the text writes it."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.diagnostics import ParseError, VerifyError
from hbc.ir import DType, TensorType, interpret, ops, print_module, verify
from hbc.ir import parse_module as parse
from hbc.ir.types import DYNAMIC

GRAPH = """
graph @g(%x: tensor<4xf32>) -> (%y) {{
  %y = call_graph %x {{domains = [""], opsets = [17], graph_proto = ""}} : tensor<{type}>
  {more}
}}
"""


def test_a_question_mark_stands_for_it() -> None:
    module = parse(GRAPH.format(type="3x?xf32", more=""))
    verify(module)
    (op,) = module.graph.walk(ops.CallGraph)
    assert op.out.type == TensorType((3, DYNAMIC), DType.F32)
    assert "tensor<3x?xf32>" in print_module(module)
    assert print_module(parse(print_module(module))) == print_module(module)


@pytest.mark.parametrize(
    ("type_", "more", "message"),
    [
        ("?xi8, q<0.5:0>", "", "breaks TYPE: result 0: .* has scales and an open size"),
        ("?xf32", "%z = reshape %y {shape = [4]} : tensor<4xf32>", "breaks TYPE: result 0: .* has an open size"),
    ],
)
def test_only_outputs_that_nothing_reads_have_it(type_: str, more: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(parse(GRAPH.format(type=type_, more=more)))


def test_a_result_that_is_not_returned_has_none() -> None:
    module = parse(GRAPH.format(type="?xf32", more="").replace("(%y)", "(x = %x)"))
    with pytest.raises(VerifyError, match=r"call_graph \('%y'\) breaks TYPE: result 0: .* has an open size"):
        verify(module)


@pytest.mark.parametrize(
    "text",
    [
        "graph @g(%x: tensor<?xf32>) -> (%x) {}",
        "graph @g(%x: tensor<4xf32>) -> (%y) { %y = clip %x : tensor<?xf32> }",
        "graph @g() -> (%y) { %y = const {value = dense<splat 1>} : tensor<?xi8> }",
    ],
)
def test_the_parser_takes_it_in_results_of_call_graph_alone(text: str) -> None:
    with pytest.raises(ParseError, match="only results of call_graph may have open sizes"):
        parse(text)


def test_a_module_made_by_hand_may_not_have_it_in_an_argument() -> None:
    module = parse("graph @g(%x: tensor<4xf32>) -> (%x) {}")
    module.graph.args[0].type = TensorType((DYNAMIC,), DType.F32)
    with pytest.raises(VerifyError, match=r"argument 'x': .* has an open size"):
        verify(module)


def test_domains_and_opsets_come_in_pairs() -> None:
    text = GRAPH.format(type="?xf32", more="").replace("opsets = [17]", "opsets = [17, 1]")
    with pytest.raises(VerifyError, match="breaks C1"):
        verify(parse(text))


def test_such_a_type_has_no_number_of_elements() -> None:
    t = TensorType((2, DYNAMIC), DType.F32)
    assert t.is_dynamic
    with pytest.raises(ValueError, match=r"tensor<2x\?xf32> has is known only once the model has run"):
        _ = t.nbytes


@pytest.mark.parametrize(
    ("array", "fits"),
    [
        (np.zeros((2, 0), np.float32), True),
        (np.zeros((2, 7), np.float32), True),
        (np.zeros((3, 7), np.float32), False),
        (np.zeros((2, 7, 1), np.float32), False),
        (np.zeros(2, np.float32), False),
        (np.zeros((2, 7), np.float64), False),
    ],
)
def test_what_such_a_type_holds(array: np.ndarray, fits: bool) -> None:
    assert TensorType((2, DYNAMIC), DType.F32).holds(array) is fits


def test_the_interpreter_takes_what_its_engine_brings() -> None:
    module = parse(GRAPH.format(type="?xf32", more=""))
    x = {"x": np.zeros(4, np.float32)}
    assert interpret(module, x, cpu=lambda op, arrays: [arrays[0][:3]])["y"].shape == (3,)
    with pytest.raises(AssertionError, match="its type is"):
        interpret(module, x, cpu=lambda op, arrays: [arrays[0][None]])
    with pytest.raises(LookupError, match="no CPU engine"):
        interpret(module, x)
