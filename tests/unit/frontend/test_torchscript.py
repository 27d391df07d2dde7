"""The walk over TorchScript: calls, control flow, names, places, fake quantisers, and what is said where it ends."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import hbc
from hbc.diagnostics import FrontendError
from hbc.frontend.torchscript import user_line
from hbc.ir.location import NodeLoc
from hbc_runtime import Session
from hbc_runtime.types import DType
from tests import torch_scripts as scripts
from tests.torch_sketch import Net, export, imported, require_same, run, script, torch, trace

pytestmark = pytest.mark.torch
nn, F = torch.nn, torch.nn.functional
X = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def quants(module: Any) -> list[tuple[DType, tuple[int, int]]]:
    """Of every quantize op: the dtype, and the smallest and the largest integer."""
    return [(op.out.type.dtype, op.limits) for op in module.graph.ops if op.NAME == "quantize"]


def refusal(model: Any, *inputs: Any) -> str:
    with pytest.raises(FrontendError) as caught:
        imported(model, *inputs)
    return str(caught.value)


# ---- control flow and names


def test_scripted_loops_branches_and_lists_are_followed() -> None:
    torch.manual_seed(0)
    model = scripts.Blocks().eval()
    module = require_same(script(model), model, X)
    assert len(quants(module)) == 3
    traced = require_same(trace(model, X), model, X)
    assert [op.NAME for op in traced.graph.ops] == [op.NAME for op in module.graph.ops]


def test_a_while_with_a_break_ends() -> None:
    model = scripts.Counts()
    require_same(script(model), model, X)


def test_nodes_are_called_by_the_path_of_their_module() -> None:
    module = imported(script(scripts.Blocks()), X)
    names = {s.node: s.op_type for s in module.sources}
    assert names["blocks.1.conv/conv2d"] == "aten::conv2d"
    assert names["first/fake_quantize_per_tensor_affine"] == "aten::fake_quantize_per_tensor_affine"
    assert {"blocks.0.norm/batch_norm", "upsample_nearest2d", "cat", "add_1"} <= set(names)
    weights = [op.out.name for op in module.graph.ops if op.NAME == "const" and op.out.type.rank == 4]
    assert "blocks.0.conv.weight" in weights
    assert all(isinstance(op.loc, NodeLoc) for op in module.graph.ops)


def test_a_module_called_twice_has_nodes_of_its_own_each_time() -> None:
    conv = nn.Conv2d(3, 3, 1)
    model = Net(lambda x, m: m(m(x)), conv)
    module = require_same(trace(model, X), model, X)
    nodes = [s.node for s in module.sources]
    assert len(set(nodes)) == len(nodes) == 2


def test_outputs_are_called_by_fields_and_places() -> None:
    named = imported(script(scripts.Named()), X)
    assert [o.name for o in named.graph.outputs] == ["hm", "vaf"]
    several = imported(trace(Net(lambda x: (x + 1, [x * 2, x * 3])), X), X)
    assert [o.name for o in several.graph.outputs] == ["output_0", "output_1.0", "output_1.1"]
    traced = imported(trace(Net(lambda x: (x + 1, x * 2)), X), X, output_names=["hm", "vaf"])
    assert [o.name for o in traced.graph.outputs] == ["hm", "vaf"]


def test_an_output_may_be_an_input_or_a_constant() -> None:
    model = Net(lambda x: (x, torch.ones(2, 2), x + 0))
    require_same(trace(model, X), model, X)


def test_a_model_that_writes_to_its_input_returns_what_it_wrote() -> None:
    model = Net(lambda x: x.add_(1).mul_(2))
    require_same(trace(model, X), model, X)


# ---- where the walk ends


def test_deciding_by_data_is_explained() -> None:
    text = refusal(script(scripts.Decides()), X)
    assert "decides by a computed value" in text
    assert "torch_scripts.py:" in text
    assert "torch.where" in text


def test_an_exception_of_the_model_itself_is_told() -> None:
    assert "the model raises an exception" in refusal(script(scripts.Checked()), X[0])


def test_training_mode_is_explained() -> None:
    for module in (nn.Dropout(0.5), nn.BatchNorm2d(3)):
        model = Net(lambda x, m: m(x), module).train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, X, check_trace=False)
        assert "model.eval()" in refusal(traced, X)


def test_random_numbers_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Net(lambda x: x + torch.rand(3, 1, 1)).eval(), X, check_trace=False)
    assert "random numbers" in refusal(traced, X)


def test_everything_without_a_rule_is_told_at_once_with_its_place() -> None:
    model = Net(lambda x: torch.lgamma(torch.fft.fft(torch.digamma(x)).real))
    text = refusal(trace(model, torch.randn(1, 1, 4, 4, 4)), torch.randn(1, 1, 4, 4, 4))
    for words in ("3 problems", "aten::digamma", "complex64", "aten::lgamma", "test_torchscript.py:"):
        assert words in text


def test_a_result_that_nobody_reads_needs_no_rule() -> None:
    model = Net(lambda x: (F.max_pool2d(x, 2, return_indices=True)[0], torch.lgamma(x))[0])
    require_same(trace(model, X), model, X)


def test_dynamic_quantisation_is_explained() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(Net(lambda x, m: m(x), nn.Linear(4, 2)).eval(), {nn.Linear})
    text = refusal(trace(model, torch.rand(1, 4)), torch.rand(1, 4))
    assert "quantized::linear_dynamic isn't taken" in text
    assert "hbc quantize" in text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/usr/lib/python3/torch/nn/functional.py(1771): relu\n/home/me/net.py(12): forward\n", "net.py:12"),
        ('  File "/home/me/net.py", line 7\n    x = x + 1\n', "net.py:7"),
        ('Serialized   File "code/__torch__/net.py", line 7', ""),
        ("", ""),
    ],
)
def test_the_users_line_is_found(text: str, want: str) -> None:
    assert user_line(text) == want


# ---- fake quantisers


GRIDS = [
    (-128, 127, 0, DType.I8, (-128, 127)),
    (-127, 127, 0, DType.I8, (-127, 127)),
    (0, 255, 117, DType.U8, (0, 255)),
    (-32768, 32767, 0, DType.I16, (-32768, 32767)),
    (0, 65535, 9, DType.U16, (0, 65535)),
]


@pytest.mark.parametrize(("low", "high", "zero", "dtype", "limits"), GRIDS)
def test_a_range_of_integers_gets_the_dtype_that_holds_it(
    low: int, high: int, zero: int, dtype: DType, limits: tuple[int, int]
) -> None:
    model = scripts.Grid(0.01, zero, low, high)
    x = torch.linspace(-2, 3, 999)
    module = require_same(script(model), model, x, relative=0)
    assert quants(module) == [(dtype, limits)]


def test_a_range_below_a_dtypes_own_is_limited() -> None:
    for low, high, zero in ((0, 127, 3), (-8, 7, 0), (-100, 90, -3)):
        model = scripts.Grid(0.01, zero, low, high)
        x = torch.linspace(-3, 3, 999)
        require_same(trace(model, x), model, x, relative=0)


def test_a_fake_quantise_module_is_one_node_and_its_switch_counts() -> None:
    model = scripts.MyFakeQuantize(0.05, 4)
    module = require_same(script(scripts.Holding(model)), model, X, relative=0)
    assert [(s.node, s.op_type) for s in module.sources] == [("q/fake_quantize", "hbc::fake_quantize")]
    model.fake_quant_enabled[0] = 0
    off = imported(script(scripts.Holding(model)), X)
    assert quants(off) == []
    assert "switched off" in off.metadata["notes"]


def quantised_conv(weight: Any, scales: Any, axis: int, conv: Any) -> Any:
    zeros = torch.zeros(len(scales), dtype=torch.int32)

    def forward(x: Any) -> Any:
        w = torch.fake_quantize_per_channel_affine(weight, scales, zeros, axis, -127, 127)
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(conv(x, w), 0.1, 0, -128, 127)

    return Net(forward)


@pytest.mark.parametrize("form", ["trace", "export", "core"])
@pytest.mark.parametrize("axis", [0, 1])
def test_weights_have_pytorchs_own_integers(form: str, axis: int) -> None:
    """Also where x · (1/scale) and x / scale round a tie to different sides."""
    torch.manual_seed(1)
    scales = torch.rand(4) * 0.02 + 0.01
    ties = (torch.randint(-120, 120, (4, 4, 3, 3)) + 0.5) * scales.reshape([-1 if i == axis else 1 for i in range(4)])
    conv = F.conv2d if axis == 0 else F.conv_transpose2d
    model, x = quantised_conv(ties, scales, axis, conv), torch.randn(1, 4, 6, 6)
    made = trace(model, x) if form == "trace" else export(model, x, decomposed=form == "core")
    module = require_same(made, model, x)
    zeros = torch.zeros(4, dtype=torch.int32)
    want = torch.fake_quantize_per_channel_affine(ties, scales, zeros, axis, -127, 127).numpy()
    (const,) = [op for op in module.graph.ops if op.NAME == "const" and op.out.type.dtype is DType.I8]
    quant = const.out.type.quant
    shape = [-1 if i == axis else 1 for i in range(4)]
    assert np.array_equal(const.value * np.asarray(quant.scale, np.float32).reshape(shape), want)
    assert (quant.axis, len(quant.scale)) == (axis, 4)


def test_a_quantised_net_runs_on_the_bpu_with_pytorchs_integers() -> None:
    """With powers of two for scales nothing rounds by itself, so every integer is PyTorch's."""
    torch.manual_seed(2)
    weight = torch.randint(-100, 100, (4, 4, 3, 3)) / 128

    def forward(x: Any) -> Any:
        w = torch.fake_quantize_per_tensor_affine(weight, 1 / 128, 0, -128, 127)
        x = torch.fake_quantize_per_tensor_affine(x, 1 / 16, 0, -128, 127)
        x = torch.fake_quantize_per_tensor_affine(F.relu(F.conv2d(x, w, padding=1)), 1 / 8, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(F.max_pool2d(x, 2), 1 / 8, 0, -128, 127)

    model, x = Net(forward), torch.randn(1, 4, 8, 8)
    compiled = hbc.compile(trace(model, x), march="nash", arith="onnx", example=x, output_names=["y"])
    assert {s.device for s in compiled.report.segments} == {"bpu"}
    with Session(compiled.program) as session:
        got = session.run({"x": x.numpy()})["y"]
    assert np.array_equal(got, model(x).numpy())


def test_a_zero_point_outside_of_the_integers_is_refused() -> None:
    model = Net(lambda x: torch.ops.aten.fake_quantize_per_tensor_affine.default(x, 0.1, 0, 0, 255))
    traced = trace(model, X)
    imported(traced, X)
    scale, zero = torch.tensor([0.1]), torch.tensor([300], dtype=torch.int32)
    learned = Net(lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero.float(), 0, 255, 1.0))
    assert "no u8" in refusal(trace(learned, X), X)


def test_frozen_scales_are_missed() -> None:
    weight = torch.randn(3, 3, 1, 1)

    def forward(x: Any) -> Any:
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(F.conv2d(x, weight), 0.1, 0, -128, 127)

    module = imported(trace(Net(forward), X), X)
    assert "torch.jit.freeze folds those away" in module.metadata["notes"]


# ---- converted models


class Packed(nn.Module):
    """What torch.ao leaves of a model: modules with packed parameters, and operators between them."""

    def __init__(self) -> None:
        super().__init__()
        quantised = pytest.importorskip("torch.ao.nn.quantized", reason="this PyTorch converts no models any more")
        torch.manual_seed(3)
        scales, zeros = torch.rand(4) * 0.02 + 0.01, torch.zeros(4, dtype=torch.int64)
        weight = torch.quantize_per_channel(torch.randn(4, 3, 3, 3), scales, zeros, 0, torch.qint8)
        rows = torch.quantize_per_tensor(torch.randn(5, 4), 0.02, 0, torch.qint8)
        self.conv = quantised.Conv2d(3, 4, 3, padding=1)
        self.conv.set_weight_bias(weight, torch.randn(4))
        self.conv.scale, self.conv.zero_point = 0.04, 60
        self.linear = quantised.Linear(4, 5)
        self.linear.set_weight_bias(rows, torch.randn(5))
        self.linear.scale, self.linear.zero_point = 0.06, 120

    def forward(self, x: Any) -> Any:
        q = torch.ops.quantized
        a = self.conv(torch.quantize_per_tensor(x, 0.05, 100, torch.quint8)).relu()
        c = q.add_relu(a, a, 0.08, 3)
        c = torch.cat([c, q.hardswish(c, 0.08, 3)], 1)
        pooled = F.adaptive_avg_pool2d(c, 1).flatten(1)
        return c.dequantize(), self.linear(pooled[:, :4]).dequantize()


def test_converted_models_are_taken_with_their_packed_weights() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Packed()
        traced = trace(model, X)
        want = [y.numpy() for y in model(X)]
    module = imported(traced, X)
    for (name, got), expected, step in zip(run(module, [X]).items(), want, (0.08, 0.06), strict=True):
        quanta = np.abs(got - expected) / step  # PyTorch's kernels multiply by a float and round: 1 apart at a tie
        assert quanta.max() <= 1 + 1e-4, name
        assert (quanta < 0.5).mean() > 0.98, name
    report = hbc.compile(traced, example=X).report
    assert {s.device for s in report.segments} == {"bpu"}


# ---- hbc's own operator


@pytest.mark.parametrize("bits", [8, 16])
def test_hbcs_own_fake_quantise_goes_through_every_form(bits: int) -> None:
    from hbc.frontend.torch_api import register_ops

    register_ops(torch)
    high = (1 << bits - 1) - 1
    given = {"scale": torch.tensor([3 / high]), "zero_point": torch.zeros(1, dtype=torch.int32)}
    names = [a.name for a in torch.ops.hbc.fake_quantize.default._schema.arguments]
    given |= {"quant_min": -high - 1, "quant_max": high, "qmin": -high - 1, "qmax": high, "axis": -1}
    model = Net(lambda x: torch.ops.hbc.fake_quantize(*[x if n == "x" else given[n] for n in names]) * 2)
    for made in (trace(model, X), export(model, X), export(model, X, decomposed=True)):
        module = require_same(made, model, X)
        assert [d.size * 8 for d, _ in quants(module)] == [bits]
