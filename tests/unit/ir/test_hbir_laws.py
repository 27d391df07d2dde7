"""Laws of the `.hbir` text, over modules that use every feature of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc.diagnostics import ParseError, VerifyError
from hbc.ir import (
    DType,
    Graph,
    Module,
    NodeLoc,
    TensorType,
    clone,
    first_difference,
    load_module,
    ops,
    parse_module,
    print_module,
    save_module,
    verify,
)
from hbc.ir.builder import make_op
from hbc.ir.dense import element_text, float_text, quant_float_text, read_quant_float, seeded
from hbc.ir.kinds import attr_kinds
from hbc.ir.printer import print_type
from tests.strategies_ir import any_op, modules, runnable, types

LAWS = settings(max_examples=80, deadline=None)


@LAWS
@given(modules(), st.booleans())
def test_what_is_printed_parses_to_an_equal_module(module: Module, locs: bool) -> None:
    parsed = parse_module(print_module(module, locs=locs))
    assert first_difference(module, parsed, locs=locs) is None


@LAWS
@given(modules(), st.booleans())
def test_print_is_canonical_byte_for_byte(module: Module, locs: bool) -> None:
    text = print_module(module, locs=locs)
    assert print_module(module, locs=locs) == text
    assert print_module(parse_module(text), locs=locs) == text


@settings(max_examples=30, deadline=None)
@given(modules())
def test_a_clone_is_equal_and_shares_no_op(module: Module) -> None:
    copy = clone(module)
    assert first_difference(module, copy, locs=True) is None
    assert not set(copy.graph.ops) & set(module.graph.ops)
    assert not set(copy.graph.args) & set(module.graph.args)


@settings(max_examples=40, deadline=None)
@given(modules(), st.integers(0, 5))
def test_first_difference_sees_a_changed_op(module: Module, which: int) -> None:
    changed = clone(module)
    if not changed.graph.ops:
        return
    op = changed.graph.ops[which % len(changed.graph.ops)]
    loc, op.loc = op.loc, NodeLoc("another place, which no strategy makes")
    assert first_difference(module, changed) is None
    assert "location" in (first_difference(module, changed, locs=True) or "")
    op.loc = loc
    op.operands.append(changed.graph.args[0])
    assert "operands" in (first_difference(module, changed) or "")


@settings(max_examples=100, deadline=None)
@given(types())
def test_every_type_survives(t: TensorType) -> None:
    text = f"graph @g(%x: {print_type(t)}) -> (%x) {{ }}"
    assert parse_module(text).graph.args[0].type == t


@pytest.mark.parametrize("cls", ops.TABLE.values(), ids=lambda c: c.NAME)
def test_every_attribute_of_every_op_has_a_declared_kind(cls: type[ops.BpuOp]) -> None:
    assert [k for k, kind in attr_kinds(cls).items() if kind.base is object] == []


@settings(max_examples=30, deadline=None)
@given(modules(max_ops=4))
def test_files_hold_a_module(tmp_path_factory: pytest.TempPathFactory, module: Module) -> None:
    path = tmp_path_factory.mktemp("m") / "m.hbir"
    save_module(module, path)
    assert first_difference(module, load_module(path), locs=True) is None


def test_a_file_keeps_large_constants_beside_the_text(tmp_path: pytest.TempPathFactory) -> None:
    value = np.arange(1000, dtype=np.int32)
    graph = Graph()
    for name in ("file", "a/b", "a b", "a/b"):
        op = make_op(ops.Const, [], {"value": value}, NodeLoc("n"), names=[name])
        graph.ops.append(op)
    graph.add_output("y", graph.ops[0].out)
    written = save_module(Module(graph), tmp_path / "m.hbir")  # type: ignore[operator]
    assert [p.name for p in written] == ["m.hbir", "m.npz"]
    text = written[0].read_text()
    named = [w for w in text.split() if w.startswith("@") and w.endswith("}")]
    assert named == ["@file_1}", "@a_b}", "@a_b_1}", "@a_b_2}"]
    assert all(np.array_equal(op.attrs["value"], value) for op in load_module(written[0]).graph.ops)
    first = written[1].read_bytes()
    assert save_module(Module(graph), written[0])[1].read_bytes() == first


# ---- numbers


@settings(max_examples=300, deadline=None)
@given(st.floats(width=32, allow_nan=False))
@example(0.1)
@example(1.0000000596046448)  # halfway to the next float32
def test_float32_prints_as_the_shortest_decimal_that_reads_back(x: float) -> None:
    x = float(np.float32(x))
    text = float_text(x, DType.F32)
    assert float(np.float32(float(text))) == x
    assert len(text) <= len(repr(x))


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False))
def test_a_scale_survives_whether_or_not_it_is_a_float32(x: float) -> None:
    assert read_quant_float(quant_float_text(x)) == x


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.text)
def test_seeded_numbers_begin_alike_whatever_the_shape(dtype: DType) -> None:
    long = seeded(5, ((1 << 20) + 3,), dtype)
    assert np.array_equal(long[:7], seeded(5, (7,), dtype))
    assert np.array_equal(long[-7:], seeded(5, (1, (1 << 20) + 3), dtype)[0, -7:])


PINNED_I8 = [-72, 40, 113, 111]
PINNED_F32 = ["0.4421847", "-0.6806812", "-0.11257923"]


def test_seeded_numbers_are_pinned() -> None:
    """They stand in golden files: the same on every machine and NumPy."""
    assert seeded(7, (4,), DType.I8).tolist() == PINNED_I8
    assert [element_text(v, DType.F32) for v in seeded(7, (3,), DType.F32)] == PINNED_F32


def test_seeded_integers_cover_the_dtype_and_floats_the_unit_interval() -> None:
    ints = seeded(0, (4096,), DType.I8)
    assert (ints.min(), ints.max()) == (-128, 127)
    floats = seeded(0, (4096,), DType.F32)
    assert -1 <= floats.min() < -0.99
    assert 0.99 < floats.max() < 1


# ---- any text

LETTERS = "%@xgraph module(){}<>[],:=->_0123456789./tensori8f32qseedhx\\\n" + '"'


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(LETTERS), max_size=60))
@example("graph @g(%x: tensor<99999999999x8xi8>) -> (%x) {}")
@example("graph @g(%x: tensor<8xi8, q<1e999999999:0>>) -> (%x) {}")
@example('module @"\\u{110000}" {}')
@example("// hbir 2\nmodule @m { }")
@example("graph @g() -> () { %0 = const {value = dense<seed 7>} : tensor<2000000000x2000000000xf64> }")
@example("graph @g() -> () { %0 = const {value = dense<[" + "9" * 5000 + "]>} : tensor<1xi8> }")
@example("graph @g() -> () { %" + "9" * 5000 + " = const {value = dense<[]>} : tensor<0xi8> }")
def test_any_text_is_a_module_or_a_parse_error(text: str) -> None:
    _parse_or_refuse(text)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The text of a module with pieces cut out, doubled, moved or overwritten."""
    text = print_module(draw(modules(max_ops=3) | runnable(max_ops=3)), locs=draw(st.booleans()))
    for _ in range(draw(st.integers(1, 3))):
        a, b = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        b = min(b, a + draw(st.sampled_from([1, 3, 10, 1000])))
        piece = draw(st.sampled_from([text[a:b], "", "%x", "0", "-1", "]", ">", '"', "\x00", "1e999", "tensor<", "_"]))
        at = draw(st.integers(0, len(text)))
        text = draw(st.sampled_from([text[:a] + text[b:], text[:a] + piece + text[b:], text[:at] + piece + text[at:]]))
    return text


@settings(max_examples=150, deadline=None)
@given(damaged())
def test_damaged_text_is_a_module_or_a_parse_error(text: str) -> None:
    _parse_or_refuse(text)


def _parse_or_refuse(text: str) -> None:
    try:
        module = parse_module(text)
    except ParseError as refused:
        error = refused
    else:
        assert print_module(parse_module(print_module(module))) == print_module(module)
        assert _fault(module) in {"", "E0301"}
        return
    assert error.diagnostic.loc.startswith("<string>:")
    assert "^" in error.diagnostic.excerpt[1]


def _fault(module: Module) -> str:
    """The code of the VerifyError that the module gets, or ""."""
    try:
        verify(module)
    except VerifyError as error:
        return error.diagnostic.code
    return ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_verifier_raises_nothing_but_verify_errors(data: st.DataObject) -> None:
    assert _fault(data.draw(modules())) in {"", "E0301"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_ops_of_every_class_survive(data: st.DataObject) -> None:
    graph = Graph()
    x = graph.add_arg("x", data.draw(types()))
    for cls in data.draw(st.lists(st.sampled_from(list(ops.TABLE.values())), max_size=12)):
        graph.ops.append(data.draw(any_op([x], cls)))
    graph.add_output("y", x)
    assert first_difference(Module(graph), parse_module(print_module(Module(graph)))) is None
