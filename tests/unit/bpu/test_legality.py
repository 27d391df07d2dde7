"""Every legality rule: an op beyond its limit is refused with its value and a rewrite, one at the limit is not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.backend.bpu.rules import RULES
from hbc.docs.marches import marches_page
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Op, Value
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, Quant, TensorType

LOC = NodeLoc("n")
Q = Quant.per_tensor(0.1)


def of(*shape: int, dtype: DType = DType.I8, quant: Quant | None = Q) -> TensorType:
    return TensorType(shape, dtype, quant)


def value(t: TensorType) -> Value:
    return Graph().add_arg("t", t)


def make(cls: type[Op], given: list[TensorType], out: TensorType, **attrs: Any) -> Op:
    return make_op(cls, [value(t) for t in given], attrs, LOC, [out])


def conv(x: TensorType, w: TensorType, o: int | None = None, **attrs: Any) -> Op:
    return make(ops.Conv2d, [x, w], of(1, w.shape[0] if o is None else o, 4, 4), **attrs)


def summed(stride: int) -> Op:
    out = of(1, 4, 4, 4)
    given: list[Value | None] = [value(of(1, 4, 12, 12)), value(of(4, 4, 1, 1)), None, value(out)]
    return make_op(ops.Conv2d, given, {"strides": (stride, stride)}, LOC, [out])


def transposed(x: TensorType, kernel: int, **attrs: Any) -> Op:
    return make(ops.ConvTranspose2d, [x, of(x.shape[1], 4, kernel, kernel)], of(1, 4, 8, 8), **attrs)


def product(a: TensorType, b: TensorType, *shape: int) -> Op:
    return make(ops.Matmul, [a, b], of(*shape))


def pool(cls: type[Op], kernel: int, size: int = 1024, out: int = 2, **attrs: Any) -> Op:
    return make(cls, [of(1, 4, size, size)], of(1, 4, out, out), kernel=(kernel, kernel), **attrs)


def elementwise(cls: type[Op], *shape: int) -> Op:
    return make(cls, [of(*shape), of(*shape)], of(*shape))


def table(*shape: int) -> Op:
    return make(ops.Lut, [of(*shape), of(256)], of(*shape))


def move(cls: type[Op], given: tuple[int, ...], made: tuple[int, ...], dtype: DType = DType.I8, **attrs: Any) -> Op:
    return make(cls, [of(*given, dtype=dtype)], of(*made, dtype=dtype), **attrs)


def joined(shape: tuple[int, ...], count: int, axis: int) -> Op:
    out = tuple(d * count if i == axis else d for i, d in enumerate(shape))
    return make(ops.Concat, [of(*shape)] * count, of(*out), axis=axis)


def resized(size: int, dtype: DType = DType.I8) -> Op:
    rows = (0.0, 1.0)
    return move(ops.ResizeLinear, (1, 4, 8, 8), (1, 4, size, size), dtype, size=(size, size), rows=rows, columns=rows)


def sampled(h: int, w: int, dtype: DType = DType.I8) -> Op:
    grid = of(1, 4, 4, 2, dtype=DType.I16)
    return make(ops.GridSample, [of(1, 4, h, w, dtype=dtype), grid], of(1, 4, 4, 4, dtype=dtype))


def normed(side: int) -> Op:
    x = of(1, 4, side, side)
    return make_op(ops.LayerNorm, [value(x), None, None], {"axes": (1,), "epsilon": 1e-5}, LOC, [x])


def softmax() -> Op:
    return make(ops.Softmax, [of(1, 8)], of(1, 8), axis=1)


I16, I32 = DType.I16, DType.I32
ZERO_FAR = Quant.per_tensor(0.1, -32768)
Make = Callable[[], Op]
# rule → march, an op that it refuses, the value that it names, and one that it lets pass
CASES: dict[str, tuple[str, Make, str, Make]] = {
    "activation-dtype": (
        "bernoulli2", lambda: conv(of(1, 4, 8, 8, dtype=I16), of(4, 4, 1, 1)), "i16",
        lambda: conv(of(1, 4, 8, 8), of(4, 4, 1, 1)),
    ),
    "weight-dtype": (
        "bayes", lambda: conv(of(1, 4, 8, 8), of(4, 4, 1, 1, dtype=I16)), "i16",
        lambda: conv(of(1, 4, 8, 8), of(4, 4, 1, 1)),
    ),
    "matmul-dtypes": (
        "nash-e", lambda: product(of(4, 8, dtype=I16), of(8, 4, dtype=I16), 4, 4), "i16",
        lambda: product(of(4, 8, dtype=I16), of(8, 4), 4, 4),
    ),
    "product-bits": (
        "nash-e", lambda: make(ops.Mul, [of(4, dtype=I16, quant=ZERO_FAR)] * 2, of(4)), "65535",
        lambda: elementwise(ops.Mul, 4),
    ),
    "resize-dtype": ("nash-e", lambda: resized(16, I16), "i16", lambda: resized(16)),
    "conv-input": (
        "nash-e", lambda: conv(of(1, 4, 65537, 8), of(4, 4, 1, 1)), "65537",
        lambda: conv(of(1, 4, 65536, 8), of(4, 4, 1, 1))),
    "conv-batch": (
        "bernoulli2", lambda: conv(of(129, 4, 8, 8), of(4, 4, 1, 1)), "129",
        lambda: conv(of(128, 4, 8, 8), of(4, 4, 1, 1))),
    "conv-kernel": (
        "bernoulli2", lambda: conv(of(1, 4, 8, 8), of(4, 4, 8, 1)), "8x1",
        lambda: conv(of(1, 4, 8, 8), of(4, 4, 7, 1))),
    "conv-volume": (
        "bernoulli2", lambda: conv(of(1, 4096, 8, 8), of(4, 4096, 3, 3)), "3·3·4096",
        lambda: conv(of(1, 4096, 8, 8), of(4, 4096, 1, 1)),
    ),
    "conv-outputs": (
        "nash-e", lambda: conv(of(1, 4, 8, 8), of(65537, 4, 1, 1)), "65537",
        lambda: conv(of(1, 4, 8, 8), of(8192, 4, 1, 1))),
    "conv-stride": (
        "nash-e", lambda: conv(of(1, 4, 900, 900), of(4, 4, 1, 1), strides=(257, 1)), "257x1",
        lambda: conv(of(1, 4, 900, 900), of(4, 4, 1, 1), strides=(256, 1)),
    ),
    "conv-dilation": (
        "nash-e", lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(19, 1)), "19x1",
        lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(18, 1)),
    ),
    "dilated-stride": (
        "bayes-e", lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(2, 2), strides=(2, 2)), "stride 2x2",
        lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(2, 2)),
    ),
    "dilation-power": (
        "bernoulli2", lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(3, 3)), "dilation 3x3",
        lambda: conv(of(1, 4, 99, 99), of(4, 4, 3, 3), dilations=(4, 4), strides=(2, 2)),
    ),
    "depthwise-stride": (
        "nash-e", lambda: conv(of(1, 4, 9, 9, dtype=I16), of(4, 1, 3, 3), group=4, strides=(4, 4)), "4x4",
        lambda: conv(of(1, 4, 9, 9, dtype=I16), of(4, 1, 3, 3), group=4, strides=(3, 2)),
    ),
    "conv-pad": (
        "nash-e", lambda: conv(of(1, 4, 8, 8), of(4, 4, 3, 3), pads=(257, 0, 0, 0)), "257x0x0x0",
        lambda: conv(of(1, 4, 8, 8), of(4, 4, 3, 3), pads=(256, 0, 0, 0)),
    ),
    "sum-stride": ("bayes", lambda: summed(3), "3x3", lambda: summed(2)),
    "transpose-limits": (
        "bernoulli2", lambda: transposed(of(1, 4, 8, 8), 6, strides=(5, 5)), "stride 5x5",
        lambda: transposed(of(1, 4, 8, 8), 6, strides=(4, 4)),
    ),
    "transpose-least": (
        "bernoulli2", lambda: transposed(of(1, 4, 8, 8), 3, strides=(1, 1)), "stride 1x1",
        lambda: transposed(of(1, 4, 8, 8), 2, strides=(2, 2)),
    ),
    "transpose-pad": (
        "bernoulli2", lambda: transposed(of(1, 4, 8, 8), 4, pads=(2, 2, 2, 2)), "2x2x2x2",
        lambda: transposed(of(1, 4, 8, 8), 4, pads=(1, 1, 1, 1)),
    ),
    "output-padding": (
        "bayes-e", lambda: transposed(of(1, 4, 8, 8), 4, strides=(3, 3), output_padding=(2, 0)), "2x0",
        lambda: transposed(of(1, 4, 8, 8), 4, strides=(3, 3), output_padding=(1, 0)),
    ),
    "transpose-dtype": (
        "bayes-e", lambda: transposed(of(1, 4, 8, 8, dtype=I16), 4), "i16", lambda: transposed(of(1, 4, 8, 8), 4),
    ),
    "linear-size": (
        "bernoulli2", lambda: make(ops.Linear, [of(1, 8), of(2049, 8)], of(1, 2049)), "2049 outputs",
        lambda: make(ops.Linear, [of(1, 8), of(2048, 8)], of(1, 2048)),
    ),
    "matmul-size": (
        "nash-e", lambda: product(of(4097, 4, 4), of(4097, 4, 4), 4097, 4, 4), "batch 4097",
        lambda: product(of(4096, 4, 4), of(4096, 4, 4), 4096, 4, 4),
    ),
    "composites": ("bayes-e", softmax, "bayes-e", lambda: elementwise(ops.Add, 4)),
    "norm-size": ("bayes-e", lambda: normed(129), "16641", lambda: normed(128)),
    "max-pool-window": ("bernoulli2", lambda: pool(ops.MaxPool, 65), "kernel 65x65", lambda: pool(ops.MaxPool, 64)),
    "max-pool-size": ("bayes-e", lambda: pool(ops.MaxPool, 2, 8193), "8193", lambda: pool(ops.MaxPool, 2, 8192)),
    "avg-pool-window": (
        "bernoulli2", lambda: pool(ops.AvgPool, 91, 91, 1), "8281",
        lambda: pool(ops.AvgPool, 90, 90, 1)),
    "pool-reach": (
        "nash-e", lambda: pool(ops.MaxPool, 3, pads=(257, 0, 0, 0)), "257x0x0x0",
        lambda: pool(ops.MaxPool, 3, pads=(256, 0, 0, 0)),
    ),
    "reduced-size": (
        "nash-e", lambda: move(ops.ReduceSum, (1, 65536), (1, 1), axes=(1,)), "65536",
        lambda: move(ops.ReduceSum, (1, 65535), (1, 1), axes=(1,)),
    ),
    "reduced-axes": (
        "bernoulli2", lambda: move(ops.ReduceMean, (1, 4, 8, 8), (1, 4, 8, 1), axes=(3,)), "over W",
        lambda: move(ops.ReduceMean, (1, 4, 8, 8), (1, 4, 1, 1), axes=(2, 3)),
    ),
    "has-subtraction": ("bernoulli2", lambda: elementwise(ops.Sub, 4), "", lambda: elementwise(ops.Add, 4)),
    "elementwise-rank": (
        "bernoulli2", lambda: elementwise(ops.Add, 1, 2, 2, 2, 2), "5",
        lambda: elementwise(ops.Add, 1, 2, 2, 2)),
    "table-size": ("bernoulli2", lambda: table(8193), "8193", lambda: table(8192)),
    "table-batch": ("bayes-e", lambda: table(4097, 2), "4097x2", lambda: table(4096, 2)),
    "tensor-bytes": ("bayes-e", lambda: table(2, 1 << 30), "2x1073741824", lambda: table(1, 1 << 30)),
    "concat-operands": ("nash-e", lambda: joined((1, 4), 1025, 1), "1025", lambda: joined((1, 4), 1024, 1)),
    "concat-size": ("bayes-e", lambda: joined((1, 40000), 2, 1), "80000", lambda: joined((1, 30000), 2, 1)),
    "concat-channels": (
        "bernoulli2", lambda: joined((1, 1025, 2, 2), 2, 1), "2050",
        lambda: joined((1, 1024, 2, 2), 2, 1)),
    "slice-size": (
        "nash-e", lambda: move(ops.Slice, (2097152,), (1,), starts=(0,), sizes=(1,), steps=(1,)), "2097152",
        lambda: move(ops.Slice, (2097151,), (1,), starts=(0,), sizes=(1,), steps=(1,)),
    ),
    "pad-size": (
        "nash-e", lambda: move(ops.Pad, (1,), (4098,), pads=(0, 4097)), "0x4097",
        lambda: move(ops.Pad, (1,), (4097,), pads=(0, 4096))),
    "gather-size": (
        "nash-e", lambda: move(ops.Gather, (4,), (1,), I16, axis=0, indices=(1,)), "i16",
        lambda: move(ops.Gather, (4,), (1,), axis=0, indices=(1,)),
    ),
    "has-gather": (
        "bernoulli2", lambda: move(ops.Gather, (4,), (1,), axis=0, indices=(1,)), "axis 0 of 4",
        lambda: move(ops.Gather, (1, 4, 2, 2), (1, 4, 4, 2), axis=2, indices=(0, 0, 1, 1)),
    ),
    "resize-size": ("bayes-e", lambda: resized(8193), "8193", lambda: resized(2048)),
    "has-grid-sample": ("bernoulli2", lambda: sampled(8, 8), "", lambda: elementwise(ops.Add, 4)),
    "grid-sample-size": ("nash-e", lambda: sampled(1025, 8), "1025x8", lambda: sampled(1024, 8)),
    "grid-sample-dtype": ("nash-e", lambda: sampled(8, 8, I16), "i16", lambda: sampled(8, 8)),
    "compared-dtype": (
        "bernoulli2", lambda: make(ops.Less, [of(4, dtype=I16)] * 2, of(4, dtype=DType.BOOL, quant=None)), "i16",
        lambda: make(ops.Less, [of(4)] * 2, of(4, dtype=DType.BOOL, quant=None)),
    ),
    "choice-rank": (
        "nash-e", lambda: make(ops.Less, [of(*[1] * 7)] * 2, of(*[1] * 7, dtype=DType.BOOL, quant=None)), "7",
        lambda: make(ops.Less, [of(*[1] * 6)] * 2, of(*[1] * 6, dtype=DType.BOOL, quant=None)),
    ),
    "arg-size": (
        "bayes-e", lambda: move(ops.ArgMax, (1, 65, 2, 2), (1, 1, 2, 2), axis=1), "65",
        lambda: move(ops.ArgMax, (1, 64, 2, 2), (1, 1, 2, 2), axis=1),
    ),
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert sorted(CASES) == sorted(rule.name for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_refuses_what_is_beyond_it_alone(name: str) -> None:
    march, beyond, value_text, within = CASES[name]
    rule = next(r for r in RULES if r.name == name)
    found = rule.refusal(beyond(), MARCHES[march])
    assert found is not None
    assert found.rule == name
    assert value_text in found.value
    assert found.hint
    assert "{" not in found.text
    assert not found.text.startswith("Try")
    assert rule.refusal(within(), MARCHES[march]) is None


@pytest.mark.parametrize("march", MARCHES)
def test_rules_of_another_march_say_nothing(march: str) -> None:
    spec = MARCHES[march]
    for name, (_, beyond, _, _) in CASES.items():
        rule = next(r for r in RULES if r.name == name)
        if not rule.where(spec):
            assert rule.refusal(beyond(), spec) is None


def test_every_number_of_a_march_has_a_source_or_says_that_it_is_assumed() -> None:
    rows = [line for line in marches_page().splitlines() if line.startswith("| ") and line.count(" | ") == 8]
    table = {r.split(" | ")[0].strip("| "): r.split(" | ")[7] for r in rows if not r.startswith("|  |")}
    numbers = {f.name for f in dataclasses.fields(MarchSpec)} - {"name", "boards"}
    assert numbers <= set(table)
    assert [n for n in sorted(numbers) if not re.search(r"\[(hw|ops|num|perf|assumed)\]", table[n])] == []
