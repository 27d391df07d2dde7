"""One small net as every way of saving a PyTorch model writes it: what hbc computes is what PyTorch recorded.

Every operator is fed PyTorch's own integers and may be 1 quantum off: a march requantises by an integer multiplier,
PyTorch by a float one, and they part at ties. From end to end such roundings add up over the net's ten layers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hbc
from hbc.driver import lower_model
from hbc.options import CompileOptions
from hbc.opwise import check_ops
from hbc_runtime import Session
from tests.shared_data import SHARED, shared

pytest.importorskip("torch", reason="PyTorch reads these files")
pytestmark = pytest.mark.torch

ZOO = SHARED / "torch_zoo"
NAMES = sorted(p.name for p in ZOO.glob("*.pt*")) if ZOO.exists() else []
EXAMPLE = "1x3x16x16"
FLOAT = {n for n in NAMES if n.startswith(("c_", "float"))}
FROZEN = "a_qat_frozen_scales_lost.pt"
WHOLE = {  # on the BPU from end to end; a mean behind an unquantised head is not
    "a_qat_fakequant_u8.pt", "a_qat_fakequant_u8_observers_on.pt", "a_qat_fakequant_u8_scripted.pt",
    "a_qat_s8_s16_namedtuple.pt", "b_converted_fx_frozen.pt", "b_converted_fx_qnnpack.pt", "fx_decomposed.pt2",
    "qat_fused_u8.pt2",
}  # fmt: skip


def recorded(name: str) -> dict[str, np.ndarray]:
    path = (ZOO / name).with_suffix(".npz")
    if not path.exists():
        pytest.skip(f"{name} has no recorded outputs")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", NAMES or ["(none)"])
@pytest.mark.parametrize("march", ["nash-e", "bernoulli2"])
def test_every_file_compiles(name: str, march: str) -> None:
    compiled = hbc.compile(shared("torch_zoo", name), march=march, example=EXAMPLE)
    on_cpu = [n for n in compiled.report.nodes if n.device == "cpu"]
    if name in WHOLE and march == "nash-e":
        assert on_cpu == []
    if name in FLOAT:
        products = [n for n in compiled.report.nodes if "conv" in n.op_type or "linear" in n.op_type]
        assert len(products) == 5
        assert {n.device for n in products} == {"cpu"}
    assert ("torch.jit.freeze" in "".join(compiled.report.notes)) == (name == FROZEN)


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in FLOAT] or ["(none)"])
def test_every_operator_has_pytorchs_integers(name: str, arith: str) -> None:
    """Within 1 quantum, on the recorded input."""
    path: Path = shared("torch_zoo", name)
    npz = path.with_suffix(".npz")
    x = np.load(npz)["in_x"] if npz.exists() else np.random.default_rng(0).random((1, 3, 16, 16), np.float32)
    rows = check_ops(path, CompileOptions(arith=arith, example=EXAMPLE), {"x": x})
    least = {"a_qat_s8_s16_namedtuple.pt": 1, "hbc_op_s8_s16.pt2": 3, "hbc_aten_fq_s8.pt2": 3, FROZEN: 3}
    assert len(rows) >= least.get(name, 7)
    assert [r for r in rows if r.quanta > 1] == []
    assert np.mean([r.equal for r in rows]) > (0.8 if "s16" in name else 0.97)


@pytest.mark.parametrize("name", NAMES or ["(none)"])
def test_the_program_gives_what_was_recorded(name: str) -> None:
    """In ONNX's arithmetic; within 3 quanta of the heads' scales, or of float32 where nothing is quantised."""
    arrays = recorded(name)
    program = hbc.compile(shared("torch_zoo", name), arith="onnx", example=EXAMPLE).program
    with Session(program) as session:
        got = list(session.run({"x": arrays["in_x"]}).values())
    for i, y in enumerate(got):
        want = arrays[f"out_{i}"]
        assert (y.shape, y.dtype) == (want.shape, want.dtype)
        range_ = float(np.abs(want).max())
        if name in FLOAT:
            assert float(np.abs(y - want).max()) <= 1e-5 * range_
            continue
        if name.endswith("observers_on.pt"):  # it moves its own scales while it runs: what was recorded is a step on
            assert float(np.abs(y - want).max()) <= 0.06 * range_
            continue
        assert float(np.abs(y - want).max()) <= 3 / 127 * range_


def test_traced_and_scripted_models_are_the_same_module() -> None:
    """Two ways to write down one model give the same ops; only the names of convolutions differ."""
    options = CompileOptions(example=EXAMPLE)
    traced, scripted = (
        lower_model(shared("torch_zoo", f"a_qat_fakequant_u8{s}.pt"), options, stop_after="load")
        for s in ("", "_scripted")
    )
    ops = [[(op.NAME, [str(r.type) for r in op.results]) for op in m.graph.ops] for m in (traced, scripted)]
    assert ops[0] == ops[1]


def test_an_observer_that_was_left_on_is_noted() -> None:
    report = hbc.compile(shared("torch_zoo", "a_qat_fakequant_u8_observers_on.pt"), example=EXAMPLE).report
    assert any("observer was left on" in note for note in report.notes)


def test_the_zoo_is_here() -> None:
    shared("torch_zoo")
    assert len(NAMES) == 15
