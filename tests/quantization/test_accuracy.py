"""int8 training on real digits, small and short: the program's answers, number for number, and what they cost.

The full measure is `python -m bench.qat_mnist`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from bench.ptq_mnist import network  # noqa: E402
from bench.qat_mnist import Result, accuracy, program_logits, real_accuracy, train_on, train_quantised  # noqa: E402
from hbc.quantization import calibrate, calibration_setter, prepare  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_test.npz"
TRAINING = 240
EPOCHS, QAT_EPOCHS = 30, 4


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """360 handwritten digits, f32[360, 1, 8, 8] in 0 … 1, and which they are."""
    with np.load(DIGITS) as file:
        return torch.from_numpy(file["image"]), torch.from_numpy(file["label"].astype(np.int64))


def test_int8_training_costs_next_to_nothing_and_is_exact() -> None:
    """120 held-out digits: one is 0.8 points. QAT may lose two of them, calibration alone four."""
    torch.manual_seed(0)
    x, y = data()
    test = x[TRAINING:], y[TRAINING:]
    net = network()
    train_on(net, x[:TRAINING], y[:TRAINING], EPOCHS, 1e-2)
    real = real_accuracy(net, *test)
    assert real > 80
    model = prepare(net, (x[:1],), calibration_setter())
    calibrate(model, x[:TRAINING].split(40), progress=False)
    calibrated = program_logits(model, test[0])  # raises where the exact forward or the fixed-point model differ
    train_quantised(model, x[:TRAINING], y[:TRAINING], QAT_EPOCHS)
    trained = program_logits(model, test[0])
    assert not np.array_equal(calibrated, trained)
    assert len(np.unique(trained)) > 200
    one = 100 / len(test[0])
    assert real - accuracy(calibrated, test[1]) <= 4 * one
    assert real - accuracy(trained, test[1]) <= 2 * one


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench.qat_mnist as bench

    torch.manual_seed(0)
    x, _ = data()
    model = prepare(network().eval(), (x[:1],))
    calibrate(model, x[:40].split(20), progress=False)
    monkeypatch.setattr(bench, "_in_parts", lambda run, images, size: run(images[:size]).numpy() + np.float32(1e-3))
    with pytest.raises(RuntimeError, match="the exact forward differs from the program in 10 logits"):
        program_logits(model, x[:1])


def test_losses_are_held_against_the_better_float_model() -> None:
    assert Result(real=95.0, longer=96.0, ptq=94.5, qat=95.75).losses == (0.5, 0.25)
    assert Result(real=96.0, longer=95.0, ptq=96.5, qat=96.0).losses == (-0.5, 0.0)
