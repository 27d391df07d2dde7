"""Composites in integers: the bound holds for every form, and what stays on the CPU says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.backend.bpu.target import Target
from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Module
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, Quant, TensorType
from hbc.ir.verifier import verify
from hbc.passes.composites import norm, softmax
from hbc.passes.composites.parts import Parts
from hbc.passes.decompose import Decompose, why_not

from .graphs import Net, run

NASH = Target("nash-e")
BOUNDED = settings(max_examples=30, deadline=None)


class Rows:
    """Rows of a quantised tensor, the reals that they stand for, and a decomposition that is run on them."""

    def __init__(self, seed: int, dtype: DType, width: int, scale: float) -> None:
        rng = np.random.default_rng(seed)
        lo, hi = dtype.limits
        unit = (hi - lo) / 255
        rows = rng.normal(rng.normal(0, 20, (24, 1)), np.exp(rng.uniform(0, 4, (24, 1))), (24, width))
        rows[0], rows[1], rows[2] = 5, rng.integers(-1, 2, width), rng.choice([-128, 127], width)
        rows[1, 0], rows[2, 1:] = 120, -128
        rows[3, :], rows[3, 0] = rng.integers(-128, 127), 127
        rows[4] = rng.choice([-128, 127], width)
        self.q = np.clip(np.rint(rows * unit), lo, hi).astype(dtype.numpy)
        self.net = Net()
        self.x = self.net.arg(self.q.shape, dtype, Quant.per_tensor(scale))
        assert self.x.type.quant is not None
        self.reals = self.q * self.x.type.quant.scale[0]

    def error(self, parts: Parts, want: np.ndarray) -> float:
        """How far the parts' integers are from the real result, in quanta; what saturates is as it should be."""
        self.net.graph.ops.extend(parts.ops)
        self.net.output(parts.ops[-1].out)
        t = parts.ops[-1].out.type
        verify(Module(self.net.graph))
        assert t.quant is not None
        (got,) = run(self.net.graph, [self.q])
        exact = np.clip(want / t.quant.scale[0] + t.quant.zero_point[0], *t.dtype.limits)
        return float(np.abs(got - exact).max())


def result(width: int, dtype: DType, scale: float, zero: int) -> TensorType:
    return TensorType((24, width), dtype, Quant.per_tensor(scale, zero))


narrow_or_wide = st.sampled_from([DType.I8, DType.I16])


@BOUNDED
@given(st.integers(0, 2**31), st.integers(1, 300), narrow_or_wide, narrow_or_wide, st.floats(0.003, 0.4),
       st.integers(0, 2), st.booleans())  # fmt: skip
def test_softmax_is_within_its_bound(
    seed: int, width: int, dtype: DType, out: DType, scale: float, which: int, log: bool
) -> None:
    rows = Rows(seed, dtype, width, scale if dtype is DType.I8 else scale / 256)
    shifted = rows.reals - rows.reals.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, keepdims=True)
    forms = softmax.forms(width)
    form, parts = forms[min(which, len(forms) - 1)], Parts(NodeLoc("node"))
    if log:
        t = result(width, out, 0.1 if out is DType.I8 else 0.0005, out.limits[1])
        bound = softmax.log_softmax(parts, rows.x, 1, form, t, ops.NO_CLIP)
        assert rows.error(parts, shifted - np.log(sums)) <= bound
    else:
        t = result(width, out, 1 / 256 if out is DType.I8 else 1 / 32768, -128 if out is DType.I8 else 0)
        bound = softmax.softmax(parts, rows.x, 1, form, t, ops.NO_CLIP)
        assert rows.error(parts, np.exp(shifted) / sums) <= bound


@BOUNDED
@given(st.integers(0, 2**31), st.integers(1, 300), narrow_or_wide, st.floats(0.0003, 0.4),
       st.sampled_from([0.0, 1e-5, 1e-3, 0.5]), st.integers(0, 2), st.booleans(), st.booleans())  # fmt: skip
def test_norms_are_within_their_bound(
    seed: int, width: int, out: DType, scale: float, epsilon: float, which: int, centred: bool, affine: bool
) -> None:
    rows = Rows(seed, DType.I8, width, scale)
    rng = np.random.default_rng(seed)
    w, b = (rng.normal(0, 1, width) if affine else None for _ in range(2))
    how = norm.Norm((1,), epsilon, w, b, (24, width), centred=centred)
    d = rows.reals - rows.reals.mean(axis=1, keepdims=True) if centred else rows.reals
    root = np.sqrt((d * d).mean(axis=1, keepdims=True) + epsilon)
    want = d / np.where(root > 0, root, 1)  # a flat row is 0 with an epsilon of 0, too
    want = want if w is None or b is None else want * w + b
    parts, t = Parts(NodeLoc("node")), result(width, out, 0.03 if out is DType.I8 else 0.0003, 0)
    bound = norm.normalise(parts, rows.x, how, norm.forms(rows.x.type, how)[which], t, ops.NO_CLIP)
    assert rows.error(parts, want) <= bound


def test_a_dearer_form_is_more_exact_where_a_sum_is_long() -> None:
    bounds = []
    for form in softmax.forms(1500):
        rows = Rows(0, DType.I8, 1500, 0.1)
        t = result(1500, DType.I8, 1 / 256, -128)
        bounds.append(softmax.softmax(Parts(NodeLoc("n")), rows.x, 1, form, t, ops.NO_CLIP))
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 5
    assert bounds[2] < 1


# ---- what becomes of a graph


def composite(cls: type[ops.Composite], shape: tuple[int, ...], *operands: np.ndarray, out_scale: float = 0.03,
              quantized: bool = True, **attrs: Any) -> Net:  # fmt: skip
    net = Net()
    x = net.arg(shape, DType.I8, Quant.per_tensor(0.05, 3)) if quantized else net.arg(shape)
    real = net.op(ops.Dequantize, x) if quantized else x
    y = net.op(cls, real, *(net.const(a.astype(np.float32)) for a in operands), **attrs)
    net.output(net.op(ops.Quantize, y, type=TensorType(shape, DType.I8, Quant.per_tensor(out_scale))))
    return net


def decomposed(net: Net, target: Target = NASH) -> list[str]:
    """The names of the ops that are left, constants left out."""
    from hbc.passes.dce import Dce

    module = Module(net.graph, march=target.march_name, arith=target.arith)
    Decompose().run(module, target)
    Dce().run(module, target)
    verify(module)
    return [name for name in net.names if name != "const"]


def test_softmax_becomes_its_parts() -> None:
    names = decomposed(composite(ops.Softmax, (2, 8), out_scale=1 / 128, axis=1))
    assert names == ["reduce_max", "sub", "segment_lut", "reduce_sum", "segment_lut", "mul"]


def test_layer_norm_becomes_its_parts() -> None:
    w = np.ones(8)
    assert decomposed(composite(ops.LayerNorm, (2, 8), w, w, axes=(1,), epsilon=0.0)) == [
        "reduce_max", "reduce_min", "sub", "segment_lut", "sub", "mul", "reduce_mean", "sub", "mul", "reduce_mean",
        "segment_lut", "mul", "mul", "add",
    ]  # fmt: skip


def test_a_bias_of_nothing_is_left_out() -> None:
    """A layer that isn't trained yet: added with a scale of 1, its zeros would cost the other side its last bits."""
    w = np.ones(64)
    names = decomposed(composite(ops.LayerNorm, (2, 64), w, 0 * w, axes=(1,), out_scale=0.03, epsilon=1e-5))
    assert names[-2:] == ["mul", "mul"]


def test_group_norm_is_a_norm_of_rows() -> None:
    names = decomposed(composite(ops.GroupNorm, (1, 4, 3, 3), np.ones(4), groups=2))
    assert names[0] == "reshape"
    assert names[-2:] == ["reshape", "mul"]


def test_a_batch_norm_of_rank_3_goes_through_rank_4() -> None:
    net = Net()
    x = net.op(ops.Dequantize, net.arg((2, 3, 5), DType.I8, Quant.per_tensor(0.05, 3)))
    y = net.op(ops.BatchNorm, x, net.const(np.float32([1, -2, 0.5])), net.const(np.float32([0, 1, 2])))
    net.output(net.op(ops.Quantize, y, type=TensorType((2, 3, 5), DType.I8, Quant.per_tensor(0.1))))
    assert decomposed(net) == ["reshape", "batch_norm", "reshape"]


REASONS = {
    "march": (composite(ops.Softmax, (2, 8), axis=1), Target("bayes-e"), "Here the march is bayes-e"),
    "arith": (composite(ops.Softmax, (2, 8), axis=1), Target("nash-e", "onnx"), "--arith onnx"),
    "operand": (composite(ops.Softmax, (2, 8), axis=1, quantized=False), NASH, "'in0' is not quantised"),
    "bound": (composite(ops.Softmax, (2, 8), axis=1, out_scale=1e-5), NASH, "quanta of its result off, at most 2"),
    "part": (composite(ops.LayerNorm, (1, 70000), axes=(1,)), NASH, "at most 65535 elements"),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_stays_in_reals_says_why(case: str) -> None:
    net, target, reason = REASONS[case]
    (op,) = net.graph.walk(ops.Composite)
    before = len(net.graph.ops)
    assert op.NAME in decomposed(net, target)
    found = why_not(op, target)
    assert isinstance(found, Rejection)
    assert reason in found.reason
    assert len(net.graph.ops) == before  # asking leaves nothing behind
    verify(Module(net.graph))


def test_a_computed_scale_stays_in_reals() -> None:
    net = Net()
    x = net.op(ops.Dequantize, net.arg((2, 8), DType.I8, Quant.per_tensor(0.05)))
    y = net.op(ops.LayerNorm, x, net.arg((8,)), axes=(1,))
    net.output(net.op(ops.Quantize, y, type=TensorType((2, 8), DType.I8, Quant.per_tensor(0.03))))
    (op,) = net.graph.walk(ops.LayerNorm)
    assert "scale or bias is not constant" in why_not(op, NASH).reason


def test_asking_about_what_could_be_decomposed_leaves_nothing_behind() -> None:
    net = composite(ops.Softmax, (2, 8), out_scale=1 / 128, axis=1)
    (op,) = net.graph.walk(ops.Softmax)
    assert "has not been decomposed" in why_not(op, NASH).reason
    verify(Module(net.graph))
