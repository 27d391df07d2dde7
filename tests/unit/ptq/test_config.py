"""What the configuration asks for comes out, and what it gets wrong is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="calibration runs the float model by ONNX Runtime")

import hbc
from hbc.diagnostics import HbcError
from hbc.ptq.config import QuantizeConfig, key_rows
from hbc.ptq.read_config import read_config
from hbc_runtime.errors import InputMismatch
from tests.unit.ptq.float_nets import NETS, Maker, samples_of

pytestmark = pytest.mark.ort


def tensors(config: dict[str, object], name: str = "residual", march: str = "nash") -> dict[str, hbc.ptq.TensorLoss]:  # type: ignore[name-defined]
    result = hbc.quantize(NETS[name](), list(samples_of(name)), march, config=config, rank=False)
    return {t.name: t for t in result.tensors}


def test_a_nodes_precision_is_of_what_it_reads_and_makes() -> None:
    plain = tensors({})
    made = tensors({"nodes": {"Conv_3": "int16"}})
    changed = {n for n in plain if plain[n].dtype != made[n].dtype}
    assert changed == {"relu2", "relu5/equalised"}  # its operand, and what it is fused with
    assert {t.dtype for t in plain.values()} == {"i8"}


def test_names_take_stars() -> None:
    kinds = {n: t.dtype for n, t in tensors({"nodes": {"Conv_*": "int16", "Conv_9": "int8"}}).items()}
    assert kinds["relu5/equalised"] == "i16"
    assert kinds["clip10"] == "i8"


def test_an_operators_precision() -> None:
    kinds = tensors({"ops": {"GlobalAveragePool": "float"}})
    assert "globalaveragepool11" in kinds  # the Gemm behind it reads integers
    kinds = tensors({"ops": {"GlobalAveragePool": "float", "Gemm": "float"}})
    assert "globalaveragepool11" not in kinds


def test_a_tensors_rule() -> None:
    made = tensors({"tensors": {"relu2": {"threshold": 2.0}, "x": {"method": "min-max"}, "relu5": {"dtype": "int16"}}})
    assert made["relu2"].scale == np.float32(2 / 127)
    assert made["relu2"].method == "fixed=2"
    assert made["relu2"].clipped > 0
    assert made["x"].method == "min-max"
    assert made["relu5"].dtype == "i16"


def test_weights_by_name() -> None:
    weight = next(n for n, t in tensors({}).items() if t.kind == "weight")
    made = tensors({"tensors": {weight: {"dtype": "int16"}}})
    assert made[weight].dtype == "i16"
    assert made[weight].own.sqnr > 80
    result = hbc.quantize(
        NETS["residual"](), list(samples_of("residual")), "bayes", config={"tensors": {weight: {"dtype": "int16"}}}
    )
    assert f"weight {weight!r} is int8: bayes has int8 weights only" in result.notes


def test_methods_and_weights_by_mse() -> None:
    assert {t.method for t in tensors({"activations": {"method": "percentile=0.99"}}).values()} == {
        "percentile=0.99", "min-max",
    }  # fmt: skip
    made = tensors({"weights": {"method": "mse"}})
    assert {t.method for t in made.values() if t.kind == "weight"} == {"mse"}
    assert {t.method for t in tensors({}).values() if t.kind == "weight"} == {"min-max"}


def test_int16_beside_an_op_of_eight_bits_is_noted() -> None:
    result = hbc.quantize(NETS["pyramid"](), list(samples_of("pyramid")), config={"nodes": {"Resize_6": "int16"}})
    assert any("takes no int16" in note for note in result.notes)
    assert {t.dtype for t in result.tensors if t.name in {"relu4", "resize6"}} == {"i8"}


def test_matmuls_take_one_operand_of_sixteen_bits() -> None:
    result = hbc.quantize(
        NETS["attention"](), list(samples_of("attention")), config={"activations": {"dtype": "int16"}}, rank=False
    )
    assert any("a matmul takes one int16 operand" in note for note in result.notes)
    assert result.left == {}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"activation": {}}, "there is no key 'activation' did you mean 'activations'"),
        ({"activations": {"dtyp": "int8"}}, "no key 'activations.dtyp' did you mean 'dtype'"),
        ({"tensors": {"x": {"treshold": 1}}}, "no key 'tensors.x.treshold' did you mean 'threshold'"),
        ({"activations": {"dtype": "int4"}}, "activations.dtype is 'int4' Input should be 'int8' or 'int16'"),
        ({"activations": {"method": "percentil"}}, "did you mean 'percentile'"),
        ({"auto": {"top": 0}}, "auto.top is 0"),
        ({"nodes": {"Conv_33": "int8"}}, "there is no node named 'Conv_33' config: nodes did you mean 'Conv_3'"),
        ({"nodes": {"Deconv*": "int8"}}, "there is no node named 'Deconv*'"),
        ({"ops": {"Convv": "float"}}, "there is no operator named 'Convv' config: ops did you mean 'Conv'"),
        ({"tensors": {"relu22": {}}}, "no quantised tensor named 'relu22' config: tensors did you mean 'relu2'"),
        ({"nodes": {"*": "float"}}, "there is nothing to quantise in this model"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, object], said: str) -> None:
    with pytest.raises(hbc.QuantizeError) as caught:
        tensors(config)
    d = caught.value.diagnostic
    assert said in " ".join([d.title, *filter(None, (d.loc, d.why, d.hint))]).replace(" config ", " ")


def test_no_int16_on_bernoulli2() -> None:
    for config in ({"activations": {"dtype": "int16"}}, {"nodes": {"Conv_3": "int16"}}, {"auto": {}}):
        with pytest.raises(hbc.QuantizeError, match="bernoulli2 has no int16"):
            tensors(config, march="bernoulli2")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "hbc.yaml"
    path.write_text("activations: {method: kl}\nnodes:\n  Conv_3: int16\n", encoding="utf-8")
    assert read_config(path).nodes == {"Conv_3": "int16"}
    (tmp_path / "hbc.json").write_text('{"samples": 3}', encoding="utf-8")
    assert read_config(tmp_path / "hbc.json") == QuantizeConfig(samples=3)
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    assert read_config(tmp_path / "empty.yaml") == QuantizeConfig() == read_config(None)
    for text, said in (("- 1", "holds keys and values"), ("a: [", "line 1, column 5"), ("{", "no sound YAML")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(hbc.QuantizeError, match=said):
            read_config(path)
    with pytest.raises(hbc.QuantizeError, match="can't be read"):
        read_config(tmp_path / "none.yaml")


def test_every_key_is_described() -> None:
    rows = key_rows()
    assert {"activations.method", "tensors.NAME.threshold", "auto.target", "bias_correction"} <= {r[0] for r in rows}
    assert all(meaning and kind for _, kind, _, meaning in rows)


# ---- samples and models that can't be taken


def error_of(samples: list[dict[str, object]], name: str = "residual") -> HbcError | InputMismatch:
    with pytest.raises((HbcError, InputMismatch)) as caught:
        hbc.quantize(NETS[name](), samples)  # type: ignore[arg-type]
    return caught.value


def test_no_samples() -> None:
    assert "there are no samples to calibrate with" in str(error_of([]))


def test_samples_that_are_not_numbers() -> None:
    x = samples_of("residual")[0]["x"].copy()
    x[0, 0, :2, 0] = np.nan
    message = str(error_of([samples_of("residual")[0], {"x": x}]))
    assert "sample 1 holds NaN in input 'x'" in message
    assert "2 of 432 elements" in message
    assert "sample 0 holds an infinity" in str(error_of([{"x": np.full_like(x, np.inf)}]))


def test_samples_that_do_not_fit() -> None:
    fitting = dict(samples_of("residual")[0])
    assert "sample 1 of 2: input 'x'" in str(error_of([fitting, {"x": np.zeros((1, 3, 11, 12), np.float32)}]))
    assert "'x'" in str(error_of([{"y": np.zeros((1, 3, 12, 12), np.float32)}]))
    assert "'x'" in str(error_of([{"x": np.zeros((1, 3, 12, 12), complex)}]))


def test_images_are_read_as_the_configuration_says(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="it writes the image")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    config = {"preprocess": "mean=127,scale=1/128", "activations": {"method": "min-max"}}
    result = hbc.quantize(NETS["residual"](), tmp_path, config=config, rank=False)
    largest = np.abs(pixels.astype(np.float64) - 127).max() / 128
    assert next(t.threshold for t in result.tensors if t.name == "x") == pytest.approx(largest, rel=1e-5)


def test_a_float_model_that_computes_nan() -> None:
    n = Maker()
    y = n.op("Log", n.op("Neg", n.op("Abs", n.input("x", [1, 3, 4, 4]))))
    model = n.done(n.op("Relu", n.conv(y, 3, 4), out="y"))
    with pytest.raises(hbc.QuantizeError, match="computes NaN in tensor 'log2'") as caught:
        hbc.quantize(model, [{"x": np.ones((1, 3, 4, 4), np.float32)}])
    assert "for sample 0; made by node 'Log_2'" in str(caught.value)


def test_a_model_that_is_quantised_already() -> None:
    done = hbc.quantize(NETS["image"](), list(samples_of("image")), rank=False)
    with pytest.raises(hbc.QuantizeError, match="quantised already") as caught:
        hbc.quantize(done.data, list(samples_of("image")))
    assert caught.value.diagnostic.code == "E0802"


def test_a_model_of_integers_has_nothing_to_quantise() -> None:
    n = Maker()
    n.input("x", [2, 3], np.int64)
    n.output("y", dtype=np.int64)
    n.op("Add", "x", n.const(np.int64(1)), out="y")
    with pytest.raises(hbc.QuantizeError, match="nothing to quantise"):
        hbc.quantize(n.model(), [{"x": np.zeros((2, 3), np.int64)}])
