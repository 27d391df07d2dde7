from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir.core import Graph, Placement, Value
from hbc.ir.ops import Call
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.assign_layout import TO_NCHW, TO_NHWC, AssignLayout, nhwc_type
from hbc.passes.dce import Dce
from hbc_runtime import isa

from .graphs import Net, apply, random_inputs, run

WHOLE = {"clamp_min": -128, "clamp_max": 127}


def i8(*shape: int) -> TensorType:
    return TensorType(shape, DType.I8)


class Model(Net):
    """Builds as lowering does: values are NCHW, spatial instructions stand between transposes."""

    def nhwc(self, x: Value) -> Value:
        return self.bpu(isa.Transpose, x, type=nhwc_type(x.type), perm=TO_NHWC)

    def nchw(self, x: Value) -> Value:
        n, h, w, c = x.type.shape
        return self.bpu(isa.Transpose, x, type=i8(n, c, h, w), perm=TO_NCHW)

    def conv(self, x: Value, channels: int) -> Value:
        """3×3, pads 1: height and width stay."""
        n, c, h, w = x.type.shape
        rng = np.random.default_rng(len(self.graph.ops))
        weight = self.const(rng.integers(-9, 9, (channels, 3, 3, c), np.int8))
        scale = [self.const(v) for v in (np.int16([20000]), np.int8([0]), np.int8([21]))]
        out = self.bpu(
            isa.Conv2d, self.nhwc(x), weight, None, *scale, type=i8(n, h, w, channels),
            pads=(1, 1, 1, 1), scheme=isa.Scheme.FORM_B, **WHOLE,
        )  # fmt: skip
        return self.nchw(out)

    def pool(self, x: Value) -> Value:
        n, c, h, w = x.type.shape
        out = i8(n, h // 2, w // 2, c)
        return self.nchw(self.bpu(isa.MaxPool, self.nhwc(x), type=out, kernel=(2, 2), strides=(2, 2)))

    def lut(self, x: Value) -> Value:
        return self.bpu(isa.Lut, x, self.const(np.arange(127, -129, -1).astype(np.int8)), type=x.type)

    def add(self, x: Value, y: Value) -> Value:
        shape = np.broadcast_shapes(x.type.shape, y.type.shape)
        half = {"lhs_multiplier": 1 << 14, "rhs_multiplier": 1 << 13, "shift": 15}
        return self.bpu(isa.Add, x, y, type=i8(*shape), scheme=isa.Scheme.FORM_B, **half, **WHOLE)

    def concat(self, *xs: Value, axis: int = 1) -> Value:
        shape = list(xs[0].type.shape)
        shape[axis] = sum(x.type.shape[axis] for x in xs)
        return self.bpu(isa.Concat, *xs, type=i8(*shape), axis=axis)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.bpu(isa.Reshape, x, type=i8(*shape))

    def quantize(self, x: Value, axis: int = -1) -> Value:
        n = x.type.shape[axis] if axis >= 0 else 1
        quant = Quant(tuple(2.0**-i for i in range(n)), (0,), axis if axis >= 0 else None)
        params = self.const(np.asarray(quant.scale, np.float32)), self.const(np.zeros(n, np.int32))
        t = TensorType(x.type.shape, DType.I8, quant)
        return self.bpu(isa.Quantize, x, *params, type=t, axis=axis, rounding=isa.Rounding.HALF_EVEN_F32, **WHOLE)

    def dequantize(self, x: Value) -> Value:
        params = self.const(np.float32([0.5])), self.const(np.int32([3]))
        return self.bpu(isa.Dequantize, x, *params, type=TensorType(x.type.shape, DType.F32))


def transposes(graph: Graph) -> int:
    return sum(op.NAME == "bpu.transpose" for op in graph.ops)


def assign(net: Model) -> Graph:
    """Run the pass (and dce) and hold it to the same integers."""
    inputs = random_inputs(net.graph)
    before, types = run(net.graph, inputs), [o.value.type for o in net.graph.outputs]
    apply(AssignLayout(), net)
    apply(Dce(), net)
    after = run(net.graph, inputs)
    assert [o.value.type for o in net.graph.outputs] == types
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return net.graph


def residual_net() -> Model:
    net = Model()
    x = net.quantize(net.arg((1, 3, 8, 8)))
    a = net.lut(net.conv(x, 4))
    b = net.add(net.conv(a, 4), a)
    c = net.concat(net.pool(b), net.lut(net.pool(a)))
    net.output(net.dequantize(net.lut(net.conv(c, 5))))
    return net


def test_a_conv_net_is_transposed_once_at_its_input_and_once_at_its_output() -> None:
    net = residual_net()
    assert transposes(net.graph) == 10
    graph = assign(net)
    assert transposes(graph) == 2
    assert [op.operands[0].type.dtype for op in graph.ops if op.NAME == "bpu.transpose"] == [DType.I8, DType.I8]  # type: ignore[union-attr]


def test_a_channel_last_model_is_not_transposed_at_all() -> None:
    net = Model()
    x = net.bpu(isa.Transpose, net.arg((1, 8, 8, 3), DType.I8), type=i8(1, 3, 8, 8), perm=TO_NCHW)
    y = net.lut(net.conv(x, 4))
    net.output(net.bpu(isa.Transpose, y, type=i8(1, 8, 8, 4), perm=TO_NHWC))
    assert transposes(assign(net)) == 0


def test_an_input_that_is_returned_in_its_own_order_is_copied() -> None:
    net = Model()
    x = net.arg((1, 8, 8, 3), DType.I8)
    there = net.bpu(isa.Transpose, x, type=i8(1, 3, 8, 8), perm=TO_NCHW)
    net.output(*[net.bpu(isa.Transpose, there, type=x.type, perm=TO_NHWC) for _ in range(2)])
    assign(net)
    assert net.names == ["bpu.reshape", "bpu.reshape"]


def test_constants_are_transposed_at_compile_time() -> None:
    net = Model()
    y = net.conv(net.arg((1, 3, 4, 4), DType.I8), 6)
    bias = net.const(np.arange(6, dtype=np.int8).reshape(1, 6, 1, 1))
    table = net.const(np.arange(96, dtype=np.int8).reshape(1, 6, 4, 4))
    net.output(net.conv(net.add(net.add(y, bias), table), 2))
    assert transposes(assign(net)) == 2


def test_a_squeeze_and_excite_branch_stays_in_nhwc() -> None:
    net = Model()
    y = net.conv(net.arg((1, 3, 4, 4), DType.I8), 6)
    gate = net.bpu(isa.ReduceMax, y, type=i8(1, 6, 1, 1), axes=(2, 3))
    flat = net.reshape(net.lut(net.reshape(gate, 1, 6)), 1, 6, 1, 1)
    net.output(net.conv(net.add(y, flat), 2))
    assert transposes(assign(net)) == 2


def test_a_value_that_only_broadcasts_is_reshaped_to_meet_nhwc() -> None:
    net = Model()
    other = net.lut(net.arg((1, 6, 1, 1), DType.I8))
    net.output(net.conv(net.add(net.conv(net.arg((1, 3, 4, 4), DType.I8), 6), other), 2))
    graph = assign(net)
    assert transposes(graph) == 2
    assert net.names.count("bpu.reshape") == 1


def test_a_small_nhwc_operand_does_not_pull_a_large_model_order_one() -> None:
    net = Model()
    gate = net.bpu(isa.ReduceMax, net.conv(net.arg((1, 3, 4, 4), DType.I8), 6), type=i8(1, 6, 1, 1), axes=(2, 3))
    large = net.reshape(net.arg((6, 64), DType.I8), 1, 6, 8, 8)
    net.output(net.reshape(net.add(large, gate), 6, 64))
    assert transposes(assign(net)) == 1  # at the input; the gate comes back as a reshape


def test_the_way_back_is_made_once_for_all_who_need_the_models_order() -> None:
    net = Model()
    y = net.lut(net.conv(net.arg((1, 3, 4, 4), DType.I8), 6))
    net.output(y, net.reshape(y, 6, 16), net.reshape(y, 96), net.conv(y, 2))
    graph = assign(net)
    assert transposes(graph) == 3  # in, back, out


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_attributes_follow_the_layout(axis: int) -> None:
    shape = (2, 3, 4, 5)
    net = Model()
    y = net.conv(net.arg((2, 3, 4, 5), DType.I8), 3)
    longer = list(shape)
    longer[axis] *= 2
    y2 = net.concat(y, net.lut(y), axis=axis)
    starts, steps = tuple(int(i == axis) for i in range(4)), tuple(2 if i == axis else 1 for i in range(4))
    cut = net.bpu(isa.Slice, y2, type=i8(*shape), starts=starts, steps=steps)
    wide = list(shape)
    wide[axis] += 3
    pads = tuple(int(i == axis) for i in range(4)) + tuple(2 * int(i == axis) for i in range(4))
    padded = net.bpu(isa.Pad, cut, type=i8(*wide), pads=pads, value=7)
    order = np.arange(shape[axis], dtype=np.int32)
    taken = net.bpu(isa.Gather, padded, net.const(order[::-1].copy()), type=i8(*shape), axis=axis)
    one = tuple(1 if i == axis else d for i, d in enumerate(shape))
    least = net.bpu(isa.ReduceMin, taken, type=i8(*one), axes=(axis,))
    spread = net.bpu(isa.Expand, least, type=i8(*shape))
    params = net.const(order.astype(np.float32) + 1), net.const(order)
    real = net.bpu(isa.Dequantize, spread, *params, type=TensorType(shape, DType.F32), axis=axis)
    quantised = net.quantize(real, axis)
    mult = net.const((np.arange(shape[axis]) + 20000).astype(np.int16))
    shifts = net.const(np.zeros(shape[axis], np.int8)), net.const(np.full(shape[axis], 14, np.int8))
    form = {"scheme": isa.Scheme.FORM_B, **WHOLE}
    scaled = net.bpu(isa.Requantize, quantised, mult, *shifts, type=i8(*shape), axis=axis, **form)
    net.output(net.conv(scaled, 3), quantised)
    graph = assign(net)
    assert transposes(graph) == 3  # in, out, and the quantised output
    (q,) = [op for op in graph.ops if op.NAME == "bpu.quantize"]
    assert q.out.type.quant is not None
    assert q.out.type.quant.axis == q.attrs["axis"] == {0: 0, 1: 3, 2: 1, 3: 2}[axis]


def test_a_wider_result_is_made_after_the_way_back() -> None:
    net = Model()
    net.output(net.dequantize(net.conv(net.arg((1, 3, 4, 4), DType.I8), 3)))
    assign(net)
    assert [n for n in net.names if n != "const"] == ["bpu.transpose", "bpu.conv2d", "bpu.transpose", "bpu.dequantize"]


def test_a_model_transpose_composes_with_the_layout() -> None:
    net = Model()
    y = net.conv(net.arg((1, 3, 4, 5), DType.I8), 6)
    net.output(net.bpu(isa.Transpose, y, type=i8(1, 5, 6, 4), perm=(0, 3, 1, 2)))
    graph = assign(net)
    assert [op.attrs["perm"] for op in graph.ops if op.NAME == "bpu.transpose"] == [TO_NHWC, (0, 2, 3, 1)]


def test_a_cpu_op_reads_the_models_order_and_its_segment_stays_whole() -> None:
    net = Model()
    y = net.lut(net.conv(net.arg((1, 3, 4, 4), DType.I8), 3))
    for _ in range(2):
        z = net.op(Call, y, type=i8(1, 3, 4, 4), op_type="Softmax", opset=13, node_proto="")
        assert z.op is not None
        z.op.placement = Placement("cpu", "no BPU rule", 1)
    z = net.op(Call, z, y, type=i8(1, 3, 4, 4), op_type="Sum", opset=13, node_proto="")
    assert z.op is not None
    z.op.placement = Placement("cpu", "no BPU rule", 1)
    net.output(net.conv(z, 2))
    apply(AssignLayout(), net)
    apply(Dce(), net)
    devices = [op.placement.device for op in net.graph.ops if op.placement is not None]
    assert devices.count("cpu") == 2
    assert "cpu bpu cpu" not in " ".join(devices)
    assert all(op.placement is not None for op in net.graph.ops if op.NAME != "const")
    assert transposes(net.graph) == 4


def test_other_ranks_and_models_without_spatial_instructions_stay_as_they_are() -> None:
    net = Model()
    x = net.arg((2, 3, 4, 5), DType.I8)
    turned = net.bpu(isa.Transpose, x, type=i8(5, 4, 3, 2), perm=(3, 2, 1, 0))
    net.output(net.lut(net.reshape(net.lut(x), 6, 20)), turned)
    names = net.names
    assert apply(AssignLayout(), net) == 0
    assert net.names == names


@st.composite
def models(draw: st.DrawFn) -> Model:
    net = Model()
    values = [net.arg((1, draw(st.integers(1, 3)), 4, 4), DType.I8) for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 10))):
        x = draw(st.sampled_from(values))
        n, c, h, w = x.type.shape
        kind = draw(st.sampled_from(["conv", "lut", "add", "gate", "concat", "reshape", "swap", "reduce", "const"]))
        same = [v for v in values if v.type.shape == x.type.shape]
        near = [v for v in values if v.type.shape[0] == n and v.type.shape[2:] == (h, w) and v.type.shape[1] + c < 9]
        if kind == "conv":
            values.append(net.conv(x, draw(st.integers(1, 3))))
        elif kind == "lut":
            values.append(net.lut(x))
        elif kind == "add":
            values.append(net.add(x, draw(st.sampled_from(same))))
        elif kind == "gate":
            values.append(net.add(x, net.bpu(isa.ReduceMax, x, type=i8(n, c, 1, 1), axes=(2, 3))))
        elif kind == "concat" and near:
            values.append(net.concat(x, draw(st.sampled_from(near))))
        elif kind == "reshape":
            values.append(net.reshape(x, n, h, c, w))
        elif kind == "swap":
            perm = tuple(draw(st.permutations(range(4))))
            values.append(net.bpu(isa.Transpose, x, type=i8(*[x.type.shape[p] for p in perm]), perm=perm))
        elif kind == "reduce":
            axis = draw(st.integers(0, 3))
            shape = [1 if i == axis else d for i, d in enumerate(x.type.shape)]
            values.append(net.bpu(isa.ReduceMin, x, type=i8(*shape), axes=(axis,)))
        else:
            table = np.arange(x.type.elements).astype(np.int8).reshape(x.type.shape)
            values.append(net.add(net.const(table), x))
    net.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return net


@given(models())
@settings(max_examples=120, deadline=None)
def test_the_integers_stay(net: Model) -> None:
    assign(net)


def test_a_long_net_takes_well_under_a_second() -> None:
    net = Model()
    y = net.arg((1, 3, 4, 4), DType.I8)
    for _ in range(430):
        y = net.lut(net.conv(y, 3))
    net.output(y)
    assert len(net.graph.ops) > 3000
    start = time.perf_counter()
    apply(AssignLayout(), net)
    assert time.perf_counter() - start < 2  # a few tens of ms on an idle core; the machine is shared
    apply(Dce(), net)
    assert transposes(net.graph) == 2
