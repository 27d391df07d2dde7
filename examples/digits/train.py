"""Train the digits network with fake quantisation and write `digits_qat.onnx` and `digits_test.npz` beside this file.

    pip install torch scikit-learn onnx
    python examples/digits/train.py

Takes about a minute on two cores. The same versions of the packages on the same machine give the same files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from export import to_onnx
from network import DigitsNet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

HERE = Path(__file__).parent
SEED = 2024
HELD_OUT = 360
EPOCHS = 60
QUANTIZE_FROM = 30  # float epochs before this one; they settle the activation ranges
FREEZE_FROM = 45  # scales stay as they are from here on, and the weights adapt to them


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, held-out images and labels: f32[N, 1, 8, 8] in 0..1, i64[N]."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=HELD_OUT, random_state=SEED, stratify=labels)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test), torch.from_numpy(y_test)


def shift(x: Tensor) -> Tensor:
    """The batch moved by up to one pixel either way: the digits are not all centred alike."""
    down, right = (int(v) for v in torch.randint(-1, 2, (2,)))
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    return padded[:, :, 1 - down : 9 - down, 1 - right : 9 - right]


def train(net: DigitsNet, x: Tensor, y: Tensor) -> None:
    """Float warm-up, then fake quantisation with moving ranges, then with frozen ones."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    net.train()
    for epoch in range(EPOCHS):
        if epoch == QUANTIZE_FROM:
            net.start_quantizing()
        if epoch == FREEZE_FROM:
            net.freeze_scales()
        total = 0.0
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(shift(x[batch])), y[batch], label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        schedule.step()
        print(f"epoch {epoch + 1:2} of {EPOCHS}  loss {total / len(x):.4f}")


def main() -> None:
    """Train, test, export."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    x, y, x_test, y_test = load()
    net = DigitsNet()
    train(net, x, y)
    net.eval()
    with torch.no_grad():
        # one image at a time, as the exported model runs: sums in another order could fall on the other side of a tie
        logits = torch.cat([net(image[None]) for image in x_test])
    correct = int((logits.argmax(1) == y_test).sum())
    print(f"QAT accuracy on {len(y_test)} held-out digits: {correct / len(y_test):.2%}")
    onnx.save(to_onnx(net), HERE / "digits_qat.onnx")
    np.savez_compressed(
        HERE / "digits_test.npz",
        image=x_test.numpy(),
        label=y_test.numpy().astype(np.int8),
        logits=logits.numpy(),
    )


if __name__ == "__main__":
    main()
