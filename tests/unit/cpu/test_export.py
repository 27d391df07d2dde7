"""CPU segments as ONNX: every op that may run there, in every opset's dialect, beside its own reference."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from hbc.backend.cpu import engine
from hbc.backend.cpu.export import _rules, export_segment
from hbc.backend.cpu.opsets import segment_opset
from hbc.diagnostics import EmitError
from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Op, Value
from hbc.ir.define import OP_TABLE
from hbc.ir.interpreter import evaluate
from hbc.ir.location import NodeLoc
from hbc.ir.ops import PLAIN_UNARY, unary
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime.errors import MissingDependency

Array = npt.NDArray[Any]
ONNX = Semantics(arith="onnx")
BPU_ONLY = {"requantize", "segment_lut"}
IMAGE, ROWS = (1, 2, 6, 7), (3, 5)


class Segment:
    """A graph grown op by op; every op has the user's node name `node`."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.build = Builder(self.graph)
        self.feeds: list[Array] = []

    def arg(self, array: Array, quant: Quant | None = None) -> Value:
        self.feeds.append(array)
        return self.graph.add_arg(f"a{len(self.feeds)}", TensorType(array.shape, DType.of(array.dtype), quant))

    def op(self, cls: type[Op], *operands: Value | None, node: str = "node", **attrs: Any) -> Value:
        return self.build.op(cls, *operands, loc=NodeLoc(node), **attrs).out

    def const(self, array: Array) -> Value:
        return self.op(ops.Const, value=array)

    def export(self, *outputs: Value, opset: int = 17) -> bytes:
        return export_segment(self.graph.ops, self.graph.args, outputs, {"": opset}, "segment")

    def run(self, *outputs: Value, opset: int = 17) -> list[Array]:
        data = self.export(*outputs, opset=opset)
        onnx.checker.check_model(onnx.ModelProto.FromString(data), full_check=True)
        session = engine._session(data, "node")
        return list(session.run(None, {f"t{i}": a for i, a in enumerate(self.feeds)}))


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(1).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def few(*shape: int) -> Array:
    """Reals of which many are equal."""
    return np.random.default_rng(2).integers(-1, 2, shape).astype(np.float32)


EQUALS = (ops.Equal, ops.LessOrEqual, ops.GreaterOrEqual)  # Equal takes floats since opset 11
Case = tuple[type[Op], Sequence[Array], dict[str, Any], int]  # class, operands, attributes, first opset that can say it
CONV = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)}
POOL = {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 1, 1)}

CASES: dict[str, Case] = {
    "conv2d": (ops.Conv2d, [floats(*IMAGE), floats(4, 1, 3, 3), floats(4)], {**CONV, "group": 2}, 9),
    "conv2d clipped": (ops.Conv2d, [floats(*IMAGE), floats(4, 2, 1, 1)], {"clip": (-0.5, 0.5)}, 9),
    "conv2d added": (
        ops.Conv2d, [floats(*IMAGE), floats(4, 2, 1, 1), floats(4), floats(1, 4, 6, 7)],
        {"clip": (0.0, math.inf)}, 9),
    "conv_transpose2d": (
        ops.ConvTranspose2d, [floats(*IMAGE), floats(2, 3, 3, 2), floats(3)],
        {"strides": (2, 2), "output_padding": (1, 0)}, 9),
    "linear": (ops.Linear, [floats(*ROWS), floats(4, 5), floats(4)], {}, 9),
    "linear without bias": (ops.Linear, [floats(*ROWS), floats(4, 5)], {"clip": (-math.inf, 1.0)}, 9),
    "linear of rank 3": (ops.Linear, [floats(2, *ROWS), floats(4, 5), floats(4)], {}, 9),
    "linear added": (ops.Linear, [floats(*ROWS), floats(4, 5), None, floats(3, 4)], {}, 9),
    "matmul": (ops.Matmul, [floats(2, 3, 5), floats(5, 4)], {"clip": (0.0, 1.0)}, 9),
    "batch_norm": (ops.BatchNorm, [floats(*IMAGE), floats(2), floats(2)], {"clip": (0.0, 6.0)}, 9),
    **{c.NAME: (c, [floats(*IMAGE), floats(2, 1, 1)], {}, 9)
       for c in (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Maximum, ops.Minimum)},
    "pow": (ops.Pow, [np.abs(floats(*IMAGE)), floats(1)], {}, 9),
    **{f"{c.NAME} i16": (c, [ints(np.int16, 40), ints(np.int16, 40)], {}, 9) for c in (ops.Add, ops.Sub, ops.Mul)},
    **{f"{c.NAME} i8": (c, [ints(np.int8, 40), ints(np.int8, 40)], {}, 12) for c in (ops.Maximum, ops.Minimum)},
    "div i32": (ops.Div, [ints(np.int32, 40), np.arange(1, 41, dtype=np.int32)], {}, 9),
    "clip": (ops.Clip, [floats(40)], {"low": -0.3, "high": 0.7}, 9),
    "clip below": (ops.Clip, [floats(40)], {"low": -0.3}, 9),
    "clip i16": (ops.Clip, [ints(np.int16, 40)], {"low": -300.0, "high": 1e9}, 12),
    "clip i8": (ops.Clip, [ints(np.int8, 40)], {"low": -7.5}, 12),
    "max_pool": (ops.MaxPool, [floats(*IMAGE)], POOL, 9),
    "max_pool dilated": (ops.MaxPool, [floats(*IMAGE)], {"kernel": (2, 2), "dilations": (3, 2)}, 10),
    "max_pool u8": (ops.MaxPool, [ints(np.uint8, *IMAGE)], POOL, 9),
    "max_pool i16": (ops.MaxPool, [ints(np.int16, *IMAGE)], POOL, 9),
    "max_pool wide pads": (
        ops.MaxPool, [floats(*IMAGE)],
        {"kernel": (2, 2), "dilations": (3, 3), "pads": (2, 2, 3, 3)}, 10),
    "avg_pool": (ops.AvgPool, [floats(*IMAGE)], {**POOL, "pads": (0, 0, 0, 0)}, 9),
    "avg_pool padded": (ops.AvgPool, [floats(*IMAGE)], POOL, 9),
    "avg_pool counted": (ops.AvgPool, [floats(*IMAGE)], {**POOL, "count_include_pad": True}, 9),
    "avg_pool dilated": (
        ops.AvgPool, [floats(*IMAGE)],
        {"kernel": (2, 2), "dilations": (2, 3), "pads": (1, 1, 1, 1)}, 19),
    **{f"{c.NAME} {k}": (c, [floats(*IMAGE)], {"axes": (1, 3), "keepdims": k}, 9)
       for c in (ops.ReduceMean, ops.ReduceSum, ops.ReduceMax, ops.ReduceMin) for k in (True, False)},
    "reduce_max i8": (ops.ReduceMax, [ints(np.int8, 4, 5)], {"axes": (1,)}, 9),
    "reduce_sum i32": (ops.ReduceSum, [ints(np.int8, 4, 5).astype(np.int32)], {"axes": (0,)}, 9),
    **{f"reshape {d}": (ops.Reshape, [ints(d, 2, 3, 4)], {"shape": (4, 6)}, 9) for d in ("int8", "uint16", "int64")},
    "reshape": (ops.Reshape, [floats(2, 0, 3)], {"shape": (3, 0)}, 14),
    "transpose": (ops.Transpose, [ints(np.int8, 2, 3, 4)], {"perm": (2, 0, 1)}, 9),
    "slice": (ops.Slice, [floats(5, 6, 7)], {"starts": (1, 0, 2), "sizes": (3, 6, 5), "steps": (1, 1, 1)}, 9),
    "slice backwards": (ops.Slice, [ints(np.int16, 5, 6)], {"starts": (4, 5), "sizes": (5, 2), "steps": (-1, -3)}, 9),
    "slice of nothing": (ops.Slice, [floats(5, 6)], {"starts": (2, 0), "sizes": (0, 6), "steps": (1, 1)}, 9),
    "slice of all": (ops.Slice, [floats(5, 6)], {"starts": (0, 0), "sizes": (5, 6), "steps": (1, 1)}, 9),
    "pad": (ops.Pad, [floats(2, 3)], {"pads": (1, 0, 2, 3), "value": 0.5}, 9),
    "pad i16": (ops.Pad, [ints(np.int16, 2, 3)], {"pads": (1, 0, 2, 3), "value": -9.0}, 11),
    "pad i8": (ops.Pad, [ints(np.int8, 2, 3)], {"pads": (1, 0, 2, 3)}, 11),
    "expand": (ops.Expand, [ints(np.int8, 3, 1)], {"shape": (2, 3, 4)}, 9),
    "gather": (ops.Gather, [ints(np.uint16, 3, 4)], {"axis": 1, "indices": (3, 0, 0)}, 9),
    "concat": (ops.Concat, [floats(2, 3), floats(2, 1)], {"axis": 1}, 9),
    "resize_nearest": (ops.ResizeNearest, [ints(np.int8, *IMAGE)], {"rows": (0, 0, 5), "columns": (6, 1)}, 9),
    "resize_linear": (
        ops.ResizeLinear, [floats(*IMAGE)],
        {"size": (9, 4), "rows": (-0.2, 0.66), "columns": (0.3, 1.9)}, 9),
    **{f"grid_sample {near}": (
        ops.GridSample, [floats(*IMAGE), floats(IMAGE[0], 4, 3, 2)],
        {"nearest": near, "border": near, "align_corners": not near}, 16) for near in (True, False)},
    **{f"{c.NAME} {a}": (c, [floats(2, 3, 4)], {"axis": a}, 9)
       for c in (ops.Softmax, ops.LogSoftmax) for a in range(3)},
    **{f"{c.NAME} {a}": (c, [floats(2, 3, 4), floats(3, 1), floats(1, 4)], {"axes": a, "epsilon": 0.01}, 9)
       for c in (ops.LayerNorm, ops.RmsNorm) for a in ((2,), (1, 2), (1,), (0, 2))},
    "layer_norm alone": (ops.LayerNorm, [floats(2, 3, 4)], {"axes": (1, 2)}, 9),
    "layer_norm of the last axis": (ops.LayerNorm, [floats(2, 3, 4), floats(4), floats(1)], {"axes": (2,)}, 9),
    "rms_norm biased": (ops.RmsNorm, [floats(2, 3, 4), None, floats(4)], {"axes": (2,)}, 9),
    "instance_norm": (ops.InstanceNorm, [floats(*IMAGE), floats(2), floats(2)], {"epsilon": 0.01}, 9),
    "instance_norm alone": (ops.InstanceNorm, [floats(2, 3, 4)], {}, 9),
    "group_norm": (ops.GroupNorm, [floats(2, 6, 4), floats(6), floats(6)], {"groups": 3}, 9),
    "group_norm unbiased": (ops.GroupNorm, [floats(2, 6, 2, 3), floats(6)], {"groups": 2}, 9),
    **{f"{c.NAME} {k}": (c, [a, a[:1]], {}, since)
       for c in (ops.Equal, ops.Less, ops.LessOrEqual, ops.Greater, ops.GreaterOrEqual)
       for k, a, since in (("f32", few(3, 4), 11 if c in EQUALS else 9),
                           ("i8", few(3, 4).astype(np.int8), 9), ("i64", few(3, 4).astype(np.int64), 9))},
    "equal bool": (ops.Equal, [few(3, 4) > 0, few(4) > 0], {}, 9),
    **{c.NAME: (c, [few(3, 4) > 0, few(3, 1) > 0], {}, 9) for c in (ops.LogicalAnd, ops.LogicalOr, ops.LogicalXor)},
    "logical_not": (ops.LogicalNot, [few(3, 4) > 0], {}, 9),
    **{f"where {a.dtype}": (ops.Where, [few(3, 1) > 0, a, a[:1]], {}, 9)
       for a in (floats(3, 4), ints(np.int8, 3, 4), ints(np.int64, 3, 4), few(3, 4) > 0)},
    **{f"{c.NAME} {k} {a.dtype}": (c, [a], {"axis": 1, "keepdims": k, "select_last": last}, 12 if last else 9)
       for c in (ops.ArgMax, ops.ArgMin) for k, last in ((True, False), (False, True))
       for a in (few(3, 9), few(3, 9).astype(np.int8))},
    "flip_sign u8": (ops.FlipSign, [ints(np.uint8, 300)], {}, 9),
    "flip_sign i16": (ops.FlipSign, [ints(np.int16, 300)], {}, 9),
    "lut": (ops.Lut, [ints(np.int8, 300), ints(np.int16, 256)], {}, 9),
    **{n: (c, [np.abs(floats(60)) % 0.9 + np.float32(1e-3)], {}, 11 if n == "round" else 9)
       for n, c in PLAIN_UNARY.items() if n != "acosh"},
    "acosh": (PLAIN_UNARY["acosh"], [np.abs(floats(60)) + 1], {}, 9),
    "leaky_relu": (unary.LeakyRelu, [floats(60)], {"alpha": 0.2}, 9),
    "elu": (unary.Elu, [floats(60)], {"alpha": 1.5}, 9),
    "selu": (unary.Selu, [floats(60)], {}, 9),
    "hard_sigmoid": (unary.HardSigmoid, [floats(60) * 3], {"alpha": 0.3}, 9),
    "hard_swish": (unary.HardSwish, [floats(60) * 3], {}, 9),
    "gelu": (unary.Gelu, [floats(60) * 3], {}, 9),
    "gelu tanh": (unary.Gelu, [floats(60) * 3], {"tanh": True}, 9),
    "softplus": (unary.Softplus, [floats(60) * 3], {}, 9),
    "thresholded_relu": (unary.ThresholdedRelu, [floats(60)], {"alpha": 0.3}, 10),
}  # fmt: skip


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 17, 18, 19, 21, 23])
@pytest.mark.parametrize("case", CASES)
def test_an_op_computes_the_same_by_onnxruntime(case: str, opset: int) -> None:
    cls, arrays, attrs, since = CASES[case]
    s = Segment()
    y = s.op(cls, *(None if a is None else s.arg(a) for a in arrays), **attrs)
    if opset < since:
        with pytest.raises(EmitError, match="'node'"):
            s.export(y, opset=opset)
        return
    (want,) = evaluate(y.op, ONNX, [*arrays, *[None] * (len(y.op.operands) - len(arrays))])
    (got,) = s.run(y, opset=opset)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("count", [True, False])
def test_ceil_mode_is_made_explicit(count: bool) -> None:
    x = floats(1, 1, 6, 6)
    for cls, more in ((ops.MaxPool, {}), (ops.AvgPool, {"count_include_pad": count})):
        s = Segment()
        t = TensorType((1, 1, 3, 3), DType.F32)
        y = s.op(cls, s.arg(x), type=t, kernel=(3, 3), strides=(2, 2), pads=(0, 0, 0, 0), **more)
        np.testing.assert_allclose(s.run(y)[0], evaluate(y.op, ONNX, [x])[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize("axis", [None, 1])
def test_quantize_and_dequantize_of_every_dtype(dtype: str, axis: int | None) -> None:
    x = floats(4, 3) * 50
    zero = 0 if dtype == "int32" else 5
    quant = Quant((0.1, 0.2, 0.5), (zero, 0, zero), 1) if axis else Quant.per_tensor(0.1, zero)
    s = Segment()
    q = s.op(ops.Quantize, s.arg(x), type=TensorType(x.shape, DType.of(dtype), quant))
    f = s.op(ops.Dequantize, q)
    want = evaluate(q.op, ONNX, [x])[0]
    got, back = s.run(q, f)
    assert np.array_equal(got, want)
    assert np.array_equal(back, evaluate(f.op, ONNX, [want])[0])


def test_quantize_saturates_and_keeps_out_the_lowest_code_where_it_is_narrow() -> None:
    s = Segment()
    x = np.float32([-1e9, -12.8, -12.74, 12.7, 1e9])
    y = s.op(ops.Quantize, s.arg(x), type=TensorType((5,), DType.I8, Quant.per_tensor(0.1)), narrow=True)
    assert s.run(y)[0].tolist() == [-127, -127, -127, 127, 127]


def test_casts_and_reinterprets_are_numbers() -> None:
    s = Segment()
    q = s.arg(ints(np.int8, 9), Quant.per_tensor(0.5))
    plain = s.op(ops.Reinterpret, q, type=TensorType((9,), DType.I8))
    y = s.op(ops.Cast, plain, to=DType.F32)
    assert np.array_equal(s.run(y)[0], s.feeds[0].astype(np.float32))


# ---- the segment as a whole


def chain() -> tuple[Segment, Value]:
    s = Segment()
    w = s.const(floats(4, 5))
    y = s.op(ops.Linear, s.arg(floats(*ROWS)), w, node="fc")
    return s, s.op(PLAIN_UNARY["tanh"], s.op(PLAIN_UNARY["sigmoid"], y, node="act"), node="act")


def test_the_same_segment_gives_the_same_bytes() -> None:
    first, second = chain(), chain()
    assert first[0].export(first[1]) == second[0].export(second[1])


def test_inputs_outputs_and_nodes_are_named() -> None:
    s, y = chain()
    model = onnx.ModelProto.FromString(s.export(y))
    assert [i.name for i in model.graph.input] == ["t0"]
    assert [o.name for o in model.graph.output] == ["t1"]
    names = [n.name for n in model.graph.node]
    assert names[:3] == ["fc", "act", "act#2"]
    assert len(set(names)) == len(names)
    assert len(model.graph.initializer) == 1


def test_outputs_may_be_inputs_constants_inner_values_or_twice_the_same() -> None:
    s = Segment()
    x, c = s.arg(floats(3)), s.const(floats(3, seed=1))
    inner = s.op(ops.Add, x, c)
    y = s.op(ops.Mul, inner, inner)
    got = s.run(x, c, inner, y, y)
    assert np.array_equal(got[0], s.feeds[0])
    assert np.array_equal(got[1], floats(3, seed=1))
    assert np.array_equal(got[3], got[4])


def test_constants_made_outside_are_embedded_and_other_values_are_not() -> None:
    s = Segment()
    x, c = s.arg(floats(3)), s.const(floats(3))
    y = s.op(ops.Add, x, c, node="sum")
    data = export_segment([y.op], [x], [y], None, "s")
    assert engine._session(data, "n").run(None, {"t0": s.feeds[0]})[0].shape == (3,)
    with pytest.raises(EmitError, match="sum"):
        export_segment([y.op], [], [y], None, "s")


def test_every_op_is_written_or_known_to_be_the_bpus() -> None:
    written = {cls.NAME for cls in _rules()}
    assert {n for n in OP_TABLE if not n.startswith("bpu.")} - written == BPU_ONLY
    assert not {n for n in written if n.startswith("bpu.")}


def test_what_only_the_bpu_has_is_refused_by_node() -> None:
    s = Segment()
    t = TensorType((3,), DType.I8, Quant.per_tensor(0.5))
    y = s.op(ops.Requantize, s.arg(ints(np.int8, 3), t.quant), type=t, node="the node")
    with pytest.raises(EmitError, match="the node"):
        s.export(y)


def test_quantised_arithmetic_is_refused() -> None:
    s = Segment()
    t = TensorType((3,), DType.I8, Quant.per_tensor(0.5))
    x = s.arg(ints(np.int8, 3), t.quant)
    with pytest.raises(EmitError, match="quantised form"):
        s.export(s.op(ops.Add, x, x, type=t))


# ---- calls


def call(
    s: Segment, op_type: str, x: Value, opset: int, *, domain: str = "", proto: str | None = None, **attrs: Any
) -> Value:
    node = onnx.helper.make_node(op_type, ["operand:0"], ["result:0"], "theirs", domain=domain, **attrs)
    text = base64.b64encode(node.SerializeToString()).decode() if proto is None else proto
    return s.op(
        ops.Call, x, type=x.type, op_type=op_type, domain=domain, opset=opset, node_proto=text, node="user's softmax"
    )


def test_a_call_is_the_users_node() -> None:
    s = Segment()
    y = call(s, "Softmax", s.arg(floats(2, 3, 4)), 13, axis=1)
    model = onnx.ModelProto.FromString(s.export(y, opset=13))
    assert (model.graph.node[0].op_type, model.graph.node[0].name) == ("Softmax", "user's softmax")
    np.testing.assert_allclose(s.run(y, opset=13)[0].sum(axis=1), 1, rtol=1e-6)


def test_a_dilated_average_pool_needs_no_call_to_find_its_opset() -> None:
    s = Segment()
    y = s.op(ops.AvgPool, s.arg(floats(*IMAGE)), kernel=(2, 2), dilations=(2, 1))
    assert export_segment(s.graph.ops, s.graph.args, [y], None, "segment")


def test_calls_decide_the_opset() -> None:
    s = Segment()
    x = s.arg(floats(2, 3))
    a = call(s, "Softmax", x, 13, axis=1)
    b = call(s, "QuickGelu", a, 1, domain="com.microsoft", alpha=1.7)
    assert segment_opset(s.graph.ops) == {"": 19, "com.microsoft": 1}  # Softmax 13 is that of opset 19
    assert segment_opset([]) == {"": 19}
    model = onnx.ModelProto.FromString(export_segment(s.graph.ops, [x], [b], None, "s"))
    assert {o.domain: o.version for o in model.opset_import} == {"": 19, "com.microsoft": 1}


def test_a_call_of_another_opset_is_written_where_it_means_the_same() -> None:
    s = Segment()
    assert s.run(call(s, "Softmax", s.arg(floats(2, 3)), 13, axis=1), opset=21)[0].shape == (2, 3)
    s = Segment()
    with pytest.raises(EmitError, match="opset 11"):
        s.export(call(s, "Softmax", s.arg(floats(2, 3)), 11, axis=1), opset=13)


@pytest.mark.parametrize(
    "proto", ["not base64!", base64.b64encode(b"\xff\xff").decode(), base64.b64encode(b"").decode()]
)
def test_a_node_that_cannot_be_read_back_is_refused(proto: str) -> None:
    s = Segment()
    with pytest.raises(EmitError, match="user's softmax"):
        s.export(call(s, "Softmax", s.arg(floats(2, 3)), 17, proto=proto))


# ---- the engine


def test_the_engine_runs_one_op() -> None:
    s = Segment()
    y = call(s, "Softmax", s.arg(floats(2, 3)), 13, axis=-1)
    (got,) = engine.evaluate(y.op, s.feeds)
    np.testing.assert_allclose(got.sum(axis=-1), 1, rtol=1e-6)


def test_the_engine_takes_missing_and_repeated_operands() -> None:
    s = Segment()
    x, w = s.arg(floats(*ROWS)), s.arg(floats(4, 5))
    y = s.op(ops.Linear, x, w, None, s.arg(floats(3, 4)))
    want = evaluate(y.op, ONNX, [s.feeds[0], s.feeds[1], None, s.feeds[2]])[0]
    np.testing.assert_allclose(engine.evaluate(y.op, [s.feeds[0], s.feeds[1], None, s.feeds[2]])[0], want, rtol=1e-5)
    z = s.op(ops.Mul, x, x)
    np.testing.assert_allclose(engine.evaluate(z.op, [s.feeds[0]] * 2)[0], s.feeds[0] ** 2, rtol=1e-6)


def test_without_onnxruntime_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Segment()
    y = call(s, "Softmax", s.arg(floats(5, 3)), 13, axis=-1)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    engine._session.cache_clear()
    with pytest.raises(MissingDependency, match=r"pip install hbc\[cpu\]"):
        engine.evaluate(y.op, s.feeds)


def test_what_onnxruntime_refuses_is_told_by_node() -> None:
    s = Segment()
    y = call(s, "NoSuchOp", s.arg(floats(3)), 17)
    with pytest.raises(EmitError, match="user's softmax"):
        engine.evaluate(y.op, s.feeds)
