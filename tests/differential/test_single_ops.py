"""One op at a time, the same integers in: hbc against ONNX Runtime's kernels (docs/numerics.md, "What is promised").

`--arith onnx`: QLinearConv and QLinearMatMul identical; contrib elementwise kernels at most 1 quantum apart (they add
the zero point before rounding, so ties part). `--arith bpu`: at most 1 quantum apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hbc
from hbc.backend.cpu.sessions import open_session
from hbc_runtime import Session
from tests.ort_age import needs_young_onnxruntime

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")
H, NH = onnx.helper, onnx.numpy_helper

MODEST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Arrays = dict[str, np.ndarray]


class OneOp:
    """A model of one node: computed inputs, constants, one output."""

    def __init__(self, op: str, domain: str = "", opset: int = 17) -> None:
        self.op, self.domain, self.opset = op, domain, opset
        self.names: list[str] = []
        self.feeds: Arrays = {}
        self.constants: list[onnx.TensorProto] = []

    def feed(self, x: np.ndarray) -> OneOp:
        name = f"in{len(self.names)}"
        self.names.append(name)
        self.feeds[name] = x
        return self

    def const(self, *values: np.ndarray | np.generic) -> OneOp:
        for v in values:
            name = f"c{len(self.names)}"
            self.names.append(name)
            self.constants.append(NH.from_array(np.asarray(v), name))
        return self

    def missing(self) -> OneOp:
        self.names.append("")
        return self

    def model(self, dtype: type, **attrs: object) -> onnx.ModelProto:
        node = H.make_node(self.op, self.names, ["y"], name="node", domain=self.domain, **attrs)
        ins = [H.make_tensor_value_info(k, H.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in self.feeds.items()]
        out = H.make_tensor_value_info("y", H.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        graph = H.make_graph([node], "one", ins, [out], self.constants)
        opsets = [H.make_opsetid("", self.opset)] + ([H.make_opsetid(self.domain, 1)] if self.domain else [])
        model = H.make_model(graph, opset_imports=opsets)
        model.ir_version = 8
        return model


def run_ort(model: onnx.ModelProto, feeds: Arrays) -> np.ndarray:
    return open_session(ort, model.SerializeToString()).run(None, feeds)[0]


def both(model: onnx.ModelProto, feeds: Arrays, arith: str) -> tuple[np.ndarray, np.ndarray]:
    """(hbc's, ONNX Runtime's) results, which must agree in shape and dtype."""
    program = hbc.compile(model, arith=arith).program
    assert all(hasattr(s, "instructions") for s in program.models[0].segments), "nothing of this may run on the CPU"
    ours, theirs = Session(program).run(feeds)["y"], run_ort(model, feeds)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    return ours, theirs


def quanta(pair: tuple[np.ndarray, np.ndarray]) -> int:
    """The largest distance of two integer results."""
    return int(np.abs(pair[0].astype(np.int64) - pair[1].astype(np.int64)).max())


def integers(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def zero(rng: np.random.Generator, dtype: type) -> np.generic:
    return integers(rng, dtype, ())[()]


def scale(rng: np.random.Generator, low: float = 0.002, high: float = 0.2) -> np.float32:
    return np.float32(np.exp(rng.uniform(np.log(low), np.log(high))))


convs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "act": st.sampled_from([np.uint8, np.int8]),
        "group": st.sampled_from([1, 1, 2, "depthwise"]),
        "kernel": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "dilations": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "pads": st.tuples(*[st.integers(0, 2)] * 4),
        "channels": st.sampled_from([1, 2, 3, 4, 5, 8, 17]),
        "size": st.tuples(st.integers(7, 11), st.integers(7, 11)),
        "per_channel": st.booleans(),
        "bias": st.booleans(),
    }
)


def qlinear_conv(c: dict) -> tuple[onnx.ModelProto, Arrays]:
    rng = np.random.default_rng(c["seed"])
    group = 1 if c["group"] == 1 else c["channels"] if c["group"] == "depthwise" else 2
    cin = c["channels"] if group != 2 else 2 * c["channels"]
    out = cin if group == cin else 2 * group
    x = integers(rng, c["act"], (1, cin, *c["size"]))
    w = rng.integers(-127, 128, (out, cin // group, *c["kernel"])).astype(np.int8)
    sx = scale(rng)
    sw = np.float32([scale(rng, 0.001, 0.02) for _ in range(out)]) if c["per_channel"] else scale(rng, 0.001, 0.02)
    spread = float(sx) * float(np.max(sw)) * 60 * 74 * np.sqrt(w[0].size)
    sy = np.float32(spread / 64)  # so that results use the range and saturate a little
    zw = np.zeros(out, np.int8) if c["per_channel"] else np.int8(0)
    op = OneOp("QLinearConv").feed(x).const(sx, zero(rng, c["act"])).const(w, sw, zw).const(sy, zero(rng, c["act"]))
    if c["bias"]:
        op.const(rng.integers(-3000, 3000, out).astype(np.int32))
    strides = [1 if d > 1 else s for s, d in zip(c["strides"], c["dilations"], strict=True)]  # the rule dilated_stride
    attrs = {"strides": strides, "dilations": c["dilations"], "pads": c["pads"], "group": group}
    return op.model(c["act"], **attrs), op.feeds


@MODEST
@given(convs)
def test_qlinear_conv_is_identical_in_onnx_arithmetic(c: dict) -> None:
    ours, theirs = both(*qlinear_conv(c), "onnx")
    np.testing.assert_array_equal(ours, theirs)


@MODEST
@given(convs)
def test_qlinear_conv_is_within_one_quantum_in_bpu_arithmetic(c: dict) -> None:
    assert quanta(both(*qlinear_conv(c), "bpu")) <= 1


def qlinear_matmul(
    seed: int, dtype: type, shapes: tuple[tuple[int, ...], tuple[int, ...]], *, constant: bool
) -> tuple[onnx.ModelProto, Arrays]:
    rng = np.random.default_rng(seed)
    a = integers(rng, dtype, shapes[0])
    b = integers(rng, dtype, shapes[1]) if not constant else rng.integers(-127, 128, shapes[1]).astype(np.int8)
    sa, sb = scale(rng), scale(rng)
    sy = np.float32(float(sa) * float(sb) * 74 * 74 * np.sqrt(shapes[0][-1]) / 40)
    op = OneOp("QLinearMatMul").feed(a).const(sa, zero(rng, dtype))
    op = op.const(b, sb, np.int8(0)) if constant else op.feed(b).const(sb, zero(rng, dtype))
    op.const(sy, zero(rng, dtype))
    return op.model(dtype), op.feeds


matmuls = st.sampled_from(
    [((3, 5), (5, 4)), ((2, 3, 17), (2, 17, 6)), ((1, 2, 4, 8), (1, 2, 8, 3)), ((5, 33), (33, 16))]
)


@MODEST
@given(st.integers(0, 2**31), st.sampled_from([np.uint8, np.int8]), matmuls, st.booleans())
def test_qlinear_matmul_is_identical_in_onnx_arithmetic(seed: int, dtype: type, shapes: tuple, constant: bool) -> None:
    ours, theirs = both(*qlinear_matmul(seed, dtype, shapes, constant=constant and len(shapes[1]) == 2), "onnx")
    np.testing.assert_array_equal(ours, theirs)


@MODEST
@given(st.integers(0, 2**31), st.sampled_from([np.uint8, np.int8]), matmuls, st.booleans())
def test_qlinear_matmul_is_within_one_quantum_in_bpu_arithmetic(
    seed: int, dtype: type, shapes: tuple, constant: bool
) -> None:
    assert quanta(both(*qlinear_matmul(seed, dtype, shapes, constant=constant and len(shapes[1]) == 2), "bpu")) <= 1


def contrib(
    op: str, seed: int, dtype: type, shapes: list[tuple[int, ...]], **attrs: object
) -> tuple[onnx.ModelProto, Arrays]:
    """A com.microsoft QLinear op: (x, scale, zero point) for each operand, then those of the result."""
    rng = np.random.default_rng(seed)
    one = OneOp(op, "com.microsoft")
    for shape in shapes:
        one.feed(integers(rng, dtype, shape)).const(scale(rng, 0.01, 0.05), zero(rng, dtype))
    one.const(scale(rng, 0.02, 0.1), zero(rng, dtype))
    return one.model(dtype, **attrs), one.feeds


CONTRIB: list[tuple[str, list[tuple[int, ...]], dict[str, object]]] = [
    ("QLinearAdd", [(1, 3, 5, 7), (1, 3, 5, 7)], {}),
    ("QLinearAdd", [(1, 3, 5, 7), (3, 1, 1)], {}),
    ("QLinearMul", [(1, 3, 5, 7), (1, 3, 1, 1)], {}),
    ("QLinearMul", [(2, 9), (2, 9)], {}),
    ("QLinearLeakyRelu", [(2, 64)], {"alpha": 0.1}),
    ("QLinearSigmoid", [(2, 64)], {}),
    ("QLinearGlobalAveragePool", [(1, 5, 6, 7)], {"channels_last": 0}),
    (
        "QLinearAveragePool",
        [(1, 3, 8, 9)],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 0},
    ),
]


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
@pytest.mark.parametrize(("op", "shapes", "attrs"), CONTRIB, ids=[f"{c[0]}-{i}" for i, c in enumerate(CONTRIB)])
def test_contrib_op_is_within_one_quantum(op: str, shapes: list, attrs: dict, arith: str) -> None:
    for seed in range(6):
        for dtype in (np.uint8, np.int8):
            pair = both(*contrib(op, seed, dtype, shapes, **attrs), arith)
            assert quanta(pair) <= 1, f"seed {seed}, {dtype.__name__}"


def test_integer_conv_is_identical() -> None:
    """ConvInteger gives accumulators: no arithmetic of ours is left."""
    needs_young_onnxruntime("has no ConvInteger of i8 weights")
    rng = np.random.default_rng(3)
    one = OneOp("ConvInteger").feed(integers(rng, np.uint8, (1, 3, 6, 6)))
    one.const(integers(rng, np.int8, (4, 3, 3, 3)), np.uint8(77), np.int8(0))
    for arith in ("bpu", "onnx"):
        np.testing.assert_array_equal(*both(one.model(np.int32, pads=[1, 1, 1, 1]), one.feeds, arith))


def test_integer_matmul_is_identical() -> None:
    rng = np.random.default_rng(4)
    one = OneOp("MatMulInteger").feed(integers(rng, np.uint8, (3, 20)))
    one.const(integers(rng, np.int8, (20, 5)), np.uint8(31), np.int8(-4))
    for arith in ("bpu", "onnx"):
        np.testing.assert_array_equal(*both(one.model(np.int32), one.feeds, arith))


def qdq(build: Callable[[str], tuple[list[onnx.NodeProto], str]], x: np.ndarray, consts: Arrays) -> onnx.ModelProto:
    """in → quantize → dequantize → nodes of `build` → quantize → dequantize → y."""
    head = [
        H.make_node("QuantizeLinear", ["in0", "sx", "zx"], ["q"], name="Q"),
        H.make_node("DequantizeLinear", ["q", "sx", "zx"], ["d"], name="DQ"),
    ]
    body, last = build("d")
    tail = [
        H.make_node("QuantizeLinear", [last, "sy", "zy"], ["yq"], name="Qy"),
        H.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"], name="DQy"),
    ]
    graph = H.make_graph(
        head + body + tail,
        "qdq",
        [H.make_tensor_value_info("in0", onnx.TensorProto.FLOAT, x.shape)],
        [H.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [NH.from_array(np.asarray(v), k) for k, v in consts.items()],
    )
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 17)])
    model.ir_version = 8
    return model


UNARY = [
    "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Elu", "Exp", "Abs", "Softplus", "Neg", "Erf",
    "Sqrt", "Floor",
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_table_is_identical_in_onnx_arithmetic_but_for_the_last_bit_of_the_function(op: str, dtype: type) -> None:
    """A table holds round(f(x)/s).

    Equal to ONNX Runtime's float kernel but where f lies within float error of a tie (≤ 1 %).
    """
    rng = np.random.default_rng(0)
    sx, sy = np.float32(0.0421), np.float32(0.0273)
    # the root of a negative number is D2's to decide
    zx, zy = dtype(np.iinfo(dtype).min if op == "Sqrt" else 5), dtype(3)
    x = ((np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1) - int(zx)) * sx).astype(np.float32).reshape(1, 256)
    consts = {"sx": sx, "zx": zx, "sy": sy, "zy": zy}
    model = qdq(lambda d: ([H.make_node(op, [d], ["f"], name="f")], "f"), rng.permuted(x, axis=1), consts)
    for arith, share in (("onnx", 0.01), ("bpu", 0.02)):
        ours, theirs = both(model, {"in0": x}, arith)
        steps = np.rint(np.abs(ours - theirs) / sy)
        assert steps.max() <= 1
        assert (steps > 0).mean() <= share
