"""Softmax and the normalisations between Q and DQ: hbc against ONNX Runtime's kernels, its optimiser off.

`--arith onnx` computes them in reals: the same integers, but for group and RMS norm, which hbc writes by other float32
operators than ONNX Runtime's expansion of them has: 1 quantum apart at ties. `--arith bpu` on nash decomposes them with
i16 between the parts (NUMERICS D9). Its results are at most 2 quanta of an i8 tensor off, which is the limit that
`decompose` asks of its own bound (the real result is half a quantum from ONNX Runtime's). For i16 results the limits
here are what 16 bits between the parts give: e and 1/Σe are rounded to 1/32767 each, so a softmax with a result of that
scale is off by a few of them, a logarithm of many terms by more; a normalised value is off by the relative rounding of
its row's variance. Every case must be within the bound that the pass computes for it besides.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

from hbc.passes import decompose
from hbc.passes.composites.parts import Parts
from tests.differential.quantised import Array, Case, Scaled, quanta
from tests.ort_age import needs_young_onnxruntime

_best = decompose._best
SOME = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
I8_LIMIT = 2
# As in op_cases/table.py. Logarithms of up to 70 terms have no limit of their own: `apart` asks for the pass's bound.
I16_LIMIT = {"Softmax": 8, "LogSoftmax": 256, "LayerNormalization": 48, "RMSNormalization": 48,
             "InstanceNormalization": 48, "GroupNormalization": 48}  # fmt: skip
OTHER_KERNEL = {"GroupNormalization", "RMSNormalization"}


class Composite(Case):
    """x quantised, then what a test writes, then one quantised output."""

    def __init__(self, x: Array, scale: float, zero: int, opset: int = 21) -> None:
        super().__init__(opset)
        self.x = x
        self.real = self.activation(x, Scaled(scale, x.dtype.type(zero)))

    def quantized(self, value: str, dtype: type, scale: float, zero: int) -> Composite:
        """`value` quantised as the output."""
        self.result(value, Scaled(scale, dtype(zero)))
        return self


def apart(case: Composite, arith: str) -> int:
    """The largest distance in quanta; in bpu arithmetic everything must run as instructions.

    Where the pass states a bound, the distance must be within it: ONNX Runtime's result is the real one rounded, half
    a quantum off and a little of float32.
    """
    errors: list[float] = []

    def best(*given: Any) -> Any:
        found = _best(*given)
        if isinstance(found, Parts):
            errors.append(found.error)
        return found

    with mock.patch.object(decompose, "_best", best):
        found = quanta(case, arith, cpu=arith == "onnx")
    if errors:
        assert found <= max(errors) + 0.55
    return found


def data(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Rows as networks have them (a mean, a spread of 1 to 60 steps of 8 bits), and hard ones: flat, one outlier."""
    info = np.iinfo(dtype)
    unit = (info.max - info.min) / 255
    middle = (info.max + info.min + 1) / 2
    rows = rng.normal(rng.normal(0, 20), rng.choice([1, 5, 20, 60]), shape)
    flat = rows.reshape(shape[0], -1)
    if len(flat) > 2:
        flat[1] = 3
        flat[2] = rng.integers(-1, 2, flat.shape[1])
        flat[2, 0] = 120
    return np.clip(np.rint(rows * unit + middle), info.min, info.max).astype(dtype)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))


def limit(op: str, dtype: type, arith: str) -> int:
    if arith == "onnx":
        return int(op in OTHER_KERNEL)
    return I8_LIMIT if np.dtype(dtype).itemsize == 1 else I16_LIMIT[op]


shapes = st.one_of(
    st.tuples(st.integers(1, 5), st.integers(2, 70)),
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 40)),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(2, 20)),
)
dtypes = st.sampled_from([np.int8, np.uint8, np.int16])
ariths = st.sampled_from(["bpu", "bpu", "onnx"])
seeds = st.integers(0, 2**31)


@SOME
@given(seeds, shapes, dtypes, dtypes, ariths, st.sampled_from(["Softmax", "LogSoftmax"]))
@example(0, (2, 700), np.int8, np.uint8, "bpu", "Softmax")
@example(1, (2, 1500), np.uint8, np.int8, "bpu", "Softmax")
def test_softmax(seed: int, shape: tuple[int, ...], dtype: type, result: type, arith: str, op: str) -> None:
    rng = np.random.default_rng(seed)
    x = data(rng, dtype, shape)
    wide = np.dtype(dtype).itemsize > 1
    m = Composite(
        x, log_uniform(rng, *((2e-4, 2e-3) if wide else (0.02, 0.3))), int(rng.integers(0, 20)) if not wide else 0
    )
    y = m.op(op, m.real, axis=int(rng.integers(-len(shape), len(shape))))
    info = np.iinfo(result)
    if op == "Softmax":
        zero = 0 if result is np.int16 else info.min
        model = m.quantized(y, result, 1 / (info.max - zero), zero)
    else:
        model = m.quantized(y, result, log_uniform(rng, 10, 25) / (info.max - info.min), info.max)
    assert apart(model, arith) <= limit(op, result, arith)


@SOME
@given(seeds, shapes, dtypes, dtypes, ariths, st.booleans())
def test_layer_normalization(
    seed: int, shape: tuple[int, ...], dtype: type, result: type, arith: str, bias: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, axis = data(rng, dtype, shape), int(rng.integers(1, len(shape)))
    if np.dtype(dtype).itemsize > 1:
        x = np.where(np.arange(x.size).reshape(shape) % shape[-1] == 0, np.iinfo(dtype).max // 4, x).astype(dtype)
    m = Composite(x, log_uniform(rng, 0.005, 0.2) / (1 if np.dtype(dtype).itemsize == 1 else 256), 0)
    affine = [m.const(rng.normal(0, 1, shape[axis:]).astype(np.float32)) for _ in range(1 + bias)]
    y = m.op("LayerNormalization", m.real, *affine, axis=axis, epsilon=1e-5)
    model = m.quantized(y, result, 10 / (np.iinfo(result).max - np.iinfo(result).min), centre(result))
    assert apart(model, arith) <= limit("LayerNormalization", result, arith)


def centre(dtype: type) -> int:
    return 128 if dtype is np.uint8 else 0


@SOME
@given(seeds, st.tuples(st.integers(1, 4), st.integers(2, 96)), st.sampled_from([np.int8, np.uint8]), dtypes, ariths)
def test_rms_normalization(seed: int, shape: tuple[int, ...], dtype: type, result: type, arith: str) -> None:
    """RMSNormalization came with opset 23."""
    needs_young_onnxruntime("has no opset 23")
    rng = np.random.default_rng(seed)
    x = data(rng, dtype, shape)
    m = Composite(x, log_uniform(rng, 0.005, 0.2), centre(dtype), opset=23)
    y = m.op("RMSNormalization", m.real, m.const(rng.normal(0, 1, shape[-1:]).astype(np.float32)), axis=-1)
    model = m.quantized(y, result, 10 / (np.iinfo(result).max - np.iinfo(result).min), centre(result))
    assert apart(model, arith) <= limit("RMSNormalization", result, arith)


images = st.one_of(
    st.tuples(st.integers(1, 3), st.sampled_from([2, 4, 6]), st.integers(2, 40)),
    st.tuples(st.integers(1, 2), st.sampled_from([2, 4, 6]), st.integers(2, 7), st.integers(2, 7)),
)


@SOME
@given(seeds, images, st.sampled_from([np.int8, np.uint8]), dtypes, ariths,
       st.sampled_from(["InstanceNormalization", "GroupNormalization"]))  # fmt: skip
def test_norms_per_channel(seed: int, shape: tuple[int, ...], dtype: type, result: type, arith: str, op: str) -> None:
    rng = np.random.default_rng(seed)
    x = data(rng, dtype, shape)
    m = Composite(x, log_uniform(rng, 0.005, 0.2), centre(dtype))
    affine = [m.const(rng.normal(0, 1, shape[1]).astype(np.float32)) for _ in range(2)]
    attrs = {"num_groups": 2} if op == "GroupNormalization" else {}
    y = m.op(op, m.real, *affine, **attrs)
    model = m.quantized(y, result, 10 / (np.iinfo(result).max - np.iinfo(result).min), centre(result))
    assert apart(model, arith) <= limit(op, result, arith)


@SOME
@given(seeds, st.sampled_from([(3, 4), (2, 4, 9), (1, 3, 2, 4, 5)]), st.sampled_from([np.int8, np.uint8]))
def test_batch_normalization_of_any_rank(seed: int, shape: tuple[int, ...], dtype: type) -> None:
    """By a reshape to rank 4 it is one instruction: at most 1 quantum, as form A's bound says."""
    rng = np.random.default_rng(seed)
    x = data(rng, dtype, shape)
    m = Composite(x, 0.05, centre(dtype))
    c = shape[1]
    parameters = [rng.normal(0, 1, c), rng.normal(0, 1, c), rng.normal(0, 1, c), rng.uniform(0.5, 2, c)]
    y = m.op("BatchNormalization", m.real, *(m.const(p.astype(np.float32)) for p in parameters))
    assert apart(m.quantized(y, dtype, 0.08, centre(dtype)), "bpu") <= 1


def test_softmax_before_opset_13_runs_over_everything_from_its_axis_on() -> None:
    x = data(np.random.default_rng(3), np.int8, (3, 4, 5))
    m = Composite(x, 0.1, 0, opset=11)
    model = m.quantized(m.op("Softmax", m.real, axis=1), np.uint8, 1 / 255, 0)
    assert apart(model, "bpu") <= I8_LIMIT
    assert apart(model, "onnx") == 0


# ---- spelled out


def spelled_layer_norm(m: Composite, root: str) -> str:
    mean = m.op("ReduceMean", m.real, m.const(np.int64([-1])))
    d = m.op("Sub", m.real, mean)
    square = m.op("Pow", d, m.const(np.float32(2))) if root == "Sqrt" else m.op("Mul", d, d)
    variance = m.op("Add", m.op("ReduceMean", square, m.const(np.int64([-1]))), m.const(np.float32(1e-5)))
    if root == "Sqrt":
        y = m.op("Div", d, m.op("Sqrt", variance))
    elif root == "Reciprocal":
        y = m.op("Mul", m.op("Reciprocal", m.op("Sqrt", variance)), d)
    else:
        y = m.op("Mul", d, m.op("Pow", variance, m.const(np.float32(-0.5))))
    width = m.x.shape[-1]
    y = m.op("Mul", y, m.const(np.linspace(-1, 1.5, width, dtype=np.float32)))
    return m.op("Add", m.const(np.linspace(0.5, -0.5, width, dtype=np.float32)), y)


def spelled_rms_norm(m: Composite, root: str) -> str:
    power = m.op("ReduceMean", m.op("Pow", m.real, m.const(np.float32(2))), m.const(np.int64([-1])))
    square_root = m.op("Sqrt", m.op("Add", power, m.const(np.float32(1e-6))))
    y = m.op("Mul", m.real, m.op("Div", m.const(np.float32(1)), square_root))
    return m.op("Mul", m.const(np.linspace(-1, 1.5, m.x.shape[-1], dtype=np.float32)), y)


def spelled_softmax(m: Composite, form: str) -> str:
    axis = m.const(np.int64([-1]))
    e = m.op("Exp", m.op("Sub", m.real, m.op("ReduceMax", m.real, axis)))
    y = m.op("Div", e, m.op("ReduceSum", e, axis))
    return m.op("Mul", m.op("Log", y), m.const(np.float32(0.1))) if form == "Log" else y


def spelled_group_norm(m: Composite, _form: str) -> str:
    """As PyTorch's exporter writes it before opset 18."""
    one, zero = m.const(np.ones(2, np.float32)), m.const(np.zeros(2, np.float32))
    rows = m.op("Reshape", m.real, m.const(np.int64([0, 2, -1])))
    y = m.op("Reshape", m.op("InstanceNormalization", rows, one, zero), m.const(np.int64(m.x.shape)))
    shape = (m.x.shape[1], *([1] * (m.x.ndim - 2)))
    y = m.op("Mul", y, m.const(np.linspace(-1, 1.5, shape[0], dtype=np.float32).reshape(shape)))
    return m.op("Add", y, m.const(np.linspace(0.5, -0.5, shape[0], dtype=np.float32).reshape(shape)))


SPELLED = [
    (spelled_layer_norm, "Sqrt", 0.03), (spelled_layer_norm, "Reciprocal", 0.03), (spelled_layer_norm, "Pow", 0.03),
    (spelled_rms_norm, "", 0.03), (spelled_softmax, "", 1 / 128), (spelled_group_norm, "", 0.03),
]  # fmt: skip


@pytest.mark.parametrize(("spell", "form", "scale"), SPELLED)
def test_what_exporters_spell_out_runs_as_one_composite(spell: Any, form: str, scale: float) -> None:
    x = data(np.random.default_rng(11), np.int8, (3, 4, 24))
    m = Composite(x, 0.05, 0)
    model = m.quantized(spell(m, form), np.int8, scale, 0)
    assert apart(model, "bpu") <= I8_LIMIT
    assert apart(model, "onnx") == 0  # which computes what is spelled


@pytest.mark.parametrize("march", ["bayes", "bayes-e", "bernoulli2"])
def test_older_marches_run_them_on_the_cpu(march: str) -> None:
    x = data(np.random.default_rng(5), np.int8, (3, 24))
    m = Composite(x, 0.05, 0)
    model = m.quantized(m.op("Softmax", m.real, axis=-1), np.int8, 1 / 128, 0)
    assert quanta(model, "bpu", march, cpu=True) == 0
