"""The exported ONNX in ONNX Runtime, layer by layer, beside the fixed point."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")
ort = pytest.importorskip("onnxruntime", reason="the exported file is run by ONNX Runtime")

import hbc  # noqa: E402
from hbc.backend.cpu.sessions import open_session  # noqa: E402
from hbc.quantization import (  # noqa: E402
    DefaultSetter,
    FakeQuantSpec,
    ModuleNameSetter,
    QConfig,
    calibrate,
    convert,
    export_quantized_onnx,
    export_to_onnx,
    prepare,
)
from hbc.quantization.pytree import walk  # noqa: E402
from hbc.quantization.units import QuantizedUnit, units_of  # noqa: E402
from hbc_runtime import Session  # noqa: E402
from tests.quantization.models import MODELS, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.ort, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NARROW = DefaultSetter(QConfig(FakeQuantSpec(narrow=True), FakeQuantSpec("int8", "min-max", narrow=True)))
INT16 = ModuleNameSetter({"": "int16"})
CASES = {
    "residual": ("residual", None),
    "residual int16": ("residual", INT16),
    "residual narrow": ("residual", NARROW),
    "residual int16 narrow": ("residual", DefaultSetter(QConfig(FakeQuantSpec("int16", narrow=True)))),
    "depthwise": ("depthwise", None),
    "deconv": ("deconv", None),
    "deconv int16": ("deconv", INT16),
    "concat-norm": ("concat-norm", None),
    "pools": ("pools", None),
    "shared": ("shared", None),
    "attention": ("attention", None),
    "mixed": ("mixed", None),
}


@cache
def prepared(name: str) -> tuple[Any, Any]:
    kind, setter = CASES[name]
    model, batches = built(kind)
    made = prepare(model, batches[0], setter)
    calibrate(made, batches, progress=False)
    return made, batches[1]


def layer_by_layer(proto: Any, units: dict[str, QuantizedUnit]) -> Any:
    """The model with every quantised activation as an input of its own, and every layer's integers as an output."""
    cut = onnx.ModelProto()
    cut.CopyFrom(proto)
    graph = cut.graph
    kept = [n for n in graph.node if n.name.removesuffix("/dequantize") not in units]
    found = [n for n in graph.node if n.name.removesuffix("/dequantize") in units]
    del graph.node[:]
    graph.node.extend(kept)
    for node in found:
        graph.input.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
        dtype = units[node.name.removesuffix("/dequantize")].activation_post_process.spec.dtype  # type: ignore[union-attr]
        elem_type = TensorProto.INT8 if dtype == "int8" else TensorProto.INT16
        graph.output.append(helper.make_tensor_value_info(node.input[0], elem_type, None))
    return cut


def values(model: Any, batch: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """What every unit of the exact forward gives, and the model."""
    found: dict[str, np.ndarray] = {}
    hooks = [
        unit.register_forward_hook(lambda _m, _x, y, n=name: found.__setitem__(n, y.numpy()))
        for name, unit in units_of(model).items()
    ]
    with torch.no_grad():
        result = model.eval()(*batch)
    for hook in hooks:
        hook.remove()
    return found, [leaf.numpy() for _, leaf in walk(result)]


def session(proto: Any, *, optimised: Any = None) -> Any:
    """Of the model as it is, or, with a path, optimised and written there."""
    return open_session(ort, proto.SerializeToString(), optimised=bool(optimised), save=optimised)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", [export_to_onnx, export_quantized_onnx])
def test_every_layer_is_within_a_quantum(name: str, form: Any) -> None:
    """Fed with the fixed point's own values, each layer's result is at most 1 quantum away.

    ONNX Runtime sums in float32, rounds once, half to even; the fixed point has a bias in whole steps of the
    accumulator and a multiplier of 15 bits, and rounds half up. So the two part where the real result lies near the
    middle between two integers. A head without a scale is its accumulator: half a step for the bias (none for an
    integer one), and float32's own error, 2^-22 of the largest sum of magnitudes.
    """
    model, batch = prepared(name)
    exact, heads = values(model, batch)
    units = {n: u for n, u in units_of(model).items() if u.activation_post_process is not None}
    proto = form(model, batch)
    onnx.checker.check_model(proto, full_check=True)
    cut = layer_by_layer(proto, units)
    feeds = {f"{n}/dequantize": exact[n] for n in units}
    feeds |= {info.name: t.numpy() for info, (_, t) in zip(proto.graph.input, walk(batch), strict=True)}
    run = session(cut)
    known = {i.name for i in run.get_inputs()}
    results = dict(zip([o.name for o in run.get_outputs()], run.run(None, {n: feeds[n] for n in known}), strict=True))
    compared = 0
    for n, unit in units.items():
        fq = unit.activation_post_process
        assert fq is not None
        theirs = results.get(f"{n}/quantize")
        theirs = results.get(f"{n}/narrow") if theirs is None else theirs
        assert theirs is not None, n
        ours = np.rint(exact[n] / fq.scale.numpy())
        assert np.abs(ours - theirs.astype(np.float64)).max() <= 1, n
        assert np.mean(ours != theirs) < 0.2, n
        compared += 1
    assert compared >= 3
    for ours, info in zip(heads, proto.graph.output, strict=True):
        steps = 2.0**-19 * np.abs(ours).max() + head_step(model)
        assert np.abs(ours - results[info.name]).max() <= steps, info.name


def head_step(model: Any) -> float:
    """The largest accumulator step, or scale, among what the model returns."""
    found = []
    for unit in units_of(model).values():
        if unit.activation_post_process is None:
            source, weight = unit.sources[0], unit.weight_fake_quant
            found.append(float(source.scale * weight.scale.max()))  # type: ignore[union-attr, operator]
    ends = [u.activation_post_process for u in units_of(model).values() if u.activation_post_process is not None]
    return max(found) if found else max(float(fq.scale) for fq in ends)


@pytest.mark.parametrize("name", ["residual", "deconv int16", "residual narrow", "residual int16 narrow", "attention"])
def test_the_quantized_form_holds_integers_only(name: str) -> None:
    """Every float initializer is a scale, or a setting of an operation; biases are the program's own integers."""
    model, batch = prepared(name)
    plain, integer = export_to_onnx(model, batch), export_quantized_onnx(model, batch)
    floats, ours = ({i.name for i in p.graph.initializer if i.data_type == TensorProto.FLOAT} for p in (plain, integer))
    biases = {n for n in floats if n.endswith(".bias")}
    assert len(biases) >= 4
    assert not biases & ours
    kinds = {i.name: i.data_type for i in integer.graph.initializer}
    assert {kinds[n] for n in biases} == {TensorProto.INT32}
    fixed = convert(model, batch, engine="reference")
    again = hbc.compile(integer, march="nash-e")
    x = {info.name: t.numpy() for info, (_, t) in zip(integer.graph.input, walk(batch), strict=True)}
    wanted = fixed.session.run(x)
    found = Session(again.program, engine="reference").run(x)
    assert all(np.array_equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_loads_it_as_users_do(name: str, tmp_path: Any) -> None:
    """Its own optimisations on, as they are by default: some of them fail on 8-bit models of opset 21."""
    model, batch = prepared(name)
    for form in (export_to_onnx, export_quantized_onnx):
        run = session(form(model, batch), optimised=tmp_path / "optimised.onnx")
        x = {info.name: t.numpy() for info, (_, t) in zip(run.get_inputs(), walk(batch), strict=True)}
        assert all(np.isfinite(y).all() for y in run.run(None, x))


def test_integers_of_weights_are_the_kit_s() -> None:
    model, batch = prepared("residual narrow")
    table = {i.name: numpy_helper.to_array(i) for i in export_to_onnx(model, batch).graph.initializer}
    unit = model.a
    wanted = unit.weight_fake_quant.integers(unit.folded()[0]).detach().numpy()
    assert np.array_equal(table["a.weight"], wanted)
    assert table["a.weight"].min() == -127


def test_files(tmp_path: Any) -> None:
    model, batch = prepared("mixed")
    for form in (export_to_onnx, export_quantized_onnx):
        proto = form(model, batch, tmp_path / "model.onnx", output_names=["a", "b", "c"])
        assert onnx.load(tmp_path / "model.onnx") == proto
        assert [o.name for o in proto.graph.output] == ["a", "b", "c"]
    assert set(MODELS) >= {kind for kind, _ in CASES.values()}
