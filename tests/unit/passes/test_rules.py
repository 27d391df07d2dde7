"""The greedy rule driver."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings

from hbc.ir import NodeLoc, clone, f32, ops, parse_module, print_module, verify
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Op
from hbc.ir.rewriter import Rewriter
from hbc.passes.rules import Rule, apply_rules, rewrite
from tests.golden_case import assert_same_meaning
from tests.strategies_ir import runnable

LOC = NodeLoc("n")


@rewrite(ops.Clip)
def merge_clips(op: ops.Clip, rw: Rewriter) -> None:
    """clip(clip(x)) → clip(x)."""
    before = op.x.defined_by(ops.Clip)
    if before is None or not before.out.has_one_use:
        return
    low, high = max(op.low, before.low), min(op.high, before.high)
    rw.replace(op, rw.op(ops.Clip, before.x, low=low, high=high, type=op.out.type), before)


@rewrite(ops.Transpose)
def cancel_transposes(op: ops.Transpose, rw: Rewriter) -> None:
    """Two transposes that undo each other are nothing."""
    before = op.x.defined_by(ops.Transpose)
    if before is not None and [before.perm[p] for p in op.perm] == list(range(len(op.perm))):
        rw.replace(op, before.x)


@rewrite(ops.Unary)
def drop_second_abs(op: ops.Unary, rw: Rewriter) -> None:
    if op.NAME == "abs" and op.x.op is not None and op.x.op.NAME == "abs":
        rw.replace(op, op.x)


RULES: list[Rule[Any]] = [merge_clips, cancel_transposes, drop_second_abs]


def rewritten(text: str, *rules: Rule[Any]) -> tuple[int, str]:
    module = parse_module(text)
    count = apply_rules(module, rules or RULES)
    verify(module)
    return count, print_module(module)


def test_a_chain_becomes_one_op_and_its_dead_ops_go() -> None:
    count, text = rewritten("""
    graph @g(%x: tensor<4xf32>) -> (%d) {
      %a = clip %x {low = 0.0} : tensor<4xf32>
      %b = clip %a {high = 6.0} : tensor<4xf32>
      %c = clip %b {low = 1.0} : tensor<4xf32>
      %d = clip %c {high = 5.0} : tensor<4xf32>
    }""")
    assert count == 3
    assert text == print_module(
        parse_module("graph @g(%x: tensor<4xf32>) -> (%d) { %d = clip %x {low = 1.0, high = 5.0} : tensor<4xf32> }")
    )


def test_a_value_that_loses_its_other_reader_is_looked_at_again() -> None:
    """%a has two readers until %n reads %x in its place: only then may the clips merge."""

    @rewrite(ops.TABLE["neg"])
    def read_further_up(op: Op, rw: Rewriter) -> None:
        above = op.operands[0].defined_by(ops.Clip) if op.operands[0] else None
        if above is not None:
            rw.replace(op, rw.op(ops.TABLE["neg"], above.x))

    count, text = rewritten(
        """
    graph @g(%x: tensor<4xf32>) -> (%b, %n) {
      %a = clip %x {low = 0.0} : tensor<4xf32>
      %b = clip %a {high = 6.0} : tensor<4xf32>
      %n = neg %a : tensor<4xf32>
    }""",
        merge_clips,
        read_further_up,
    )
    assert (count, text.count("clip")) == (2, 1)


def test_rules_of_a_base_class_fit_its_subclasses() -> None:
    count, text = rewritten("""
    graph @g(%x: tensor<4xf32>) -> (%c) {
      %a = abs %x : tensor<4xf32>
      %b = abs %a : tensor<4xf32>
      %c = abs %b : tensor<4xf32>
    }""")
    assert (count, text.count("abs")) == (2, 1)


def test_an_op_that_is_dead_from_the_start_is_left_alone() -> None:
    count, text = rewritten("""
    graph @g(%x: tensor<4xf32>) -> (%x) {
      %a = abs %x : tensor<4xf32>
      %b = abs %a : tensor<4xf32>
    }""")
    assert (count, text.count("abs")) == (0, 2)


def test_a_change_in_place_is_counted_where_the_rule_says_so() -> None:
    @rewrite(ops.Clip)
    def lower_limit(op: ops.Clip, rw: Rewriter) -> None:
        if op.low > 0:
            op.attrs["low"] = op.low - 1
            rw.changes += 1

    count, text = rewritten(
        "graph @g(%x: tensor<4xf32>) -> (%a) { %a = clip %x {low = 3.0} : tensor<4xf32> }", lower_limit
    )
    assert (count, "low = 0.0" in text) == (3, True)


def test_rules_that_undo_each_other_are_stopped_and_named() -> None:
    @rewrite(ops.TABLE["abs"])
    def to_neg(op: Op, rw: Rewriter) -> None:
        rw.replace(op, rw.op(ops.TABLE["neg"], op.operands[0]))

    @rewrite(ops.TABLE["neg"])
    def to_abs(op: Op, rw: Rewriter) -> None:
        rw.replace(op, rw.op(ops.TABLE["abs"], op.operands[0]))

    module = parse_module("graph @g(%x: tensor<4xf32>) -> (%a) { %a = abs %x : tensor<4xf32> }")
    with pytest.raises(AssertionError, match=r"do not come to an end.*to_neg"):
        apply_rules(module, [to_neg, to_abs], budget=100)


@settings(max_examples=60, deadline=None)
@given(runnable())
def test_exact_rules_keep_the_meaning_and_come_to_a_fixpoint(module: Module) -> None:
    before = clone(module)
    apply_rules(module, RULES)
    verify(module)
    assert_same_meaning(before, module)
    assert apply_rules(module, RULES) == 0


def test_three_thousand_ops_take_less_than_a_few_seconds() -> None:
    graph = Graph()
    build = Builder(graph)
    value = graph.add_arg("x", f32(4, 4))
    for i in range(1500):
        value = build.op(ops.Clip, value, low=float(-i), loc=LOC).out
        value = build.op(ops.Transpose, value, perm=(1, 0), loc=LOC).out
        if i % 3 == 0:
            value = build.op(ops.Transpose, value, perm=(1, 0), loc=LOC).out
    graph.add_output("y", value)
    start = time.perf_counter()
    assert apply_rules(Module(graph), RULES) > 500
    assert time.perf_counter() - start < 5  # a fifth of a second where the machine is idle
    verify(Module(graph))
