"""Training: batches of scenes, the loss of the three maps, and a loop that float training and QAT share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .maps import draw_maps, network_input
from .scenes import Scene

HEAT_WEIGHT = 6.0  # of a cell on a line: there are few of them


@dataclass(frozen=True)
class Batch:
    """image f32[N, 3, H, W], hm f32[N, 1, h, w], vaf f32[N, 2, h, w], haf f32[N, 1, h, w]."""

    image: Tensor
    hm: Tensor
    vaf: Tensor
    haf: Tensor

    def __getitem__(self, index: Tensor | slice) -> Batch:
        return Batch(self.image[index], self.hm[index], self.vaf[index], self.haf[index])

    def __len__(self) -> int:
        return len(self.image)

    def mirrored(self) -> Batch:
        """Left and right exchanged; what points sideways points the other way."""
        image, hm, vaf, haf = (t.flip(3) for t in (self.image, self.hm, self.vaf, self.haf))
        return Batch(image, hm, vaf * torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1), -haf)


def batch_of(scenes: Sequence[Scene]) -> Batch:
    """Scenes with their maps."""
    rows, columns = scenes[0].image.shape[:2]
    maps = [draw_maps(s.lanes, rows, columns) for s in scenes]
    images = [network_input(s.image) for s in scenes]
    stacks = (images, [m.hm for m in maps], [m.vaf for m in maps], [m.haf for m in maps])
    return Batch(*(torch.from_numpy(np.stack(s)) for s in stacks))


def loss_of(maps: dict[str, Tensor], truth: Batch) -> Tensor:
    """Cross entropy and intersection over union of the heat map, L1 of the fields on the lines (as LaneAF)."""
    weight = torch.tensor(HEAT_WEIGHT)
    heat = nn.functional.binary_cross_entropy_with_logits(maps["hm"], truth.hm, pos_weight=weight)
    share = torch.sigmoid(maps["hm"])
    both = (share * truth.hm).sum()
    union = 1 - both / (share + truth.hm - share * truth.hm).sum()
    cells = truth.hm.sum().clamp_min(1)
    vaf = ((maps["vaf"] - truth.vaf).abs() * truth.hm).sum() / cells
    haf = ((maps["haf"] - truth.haf).abs() * truth.hm).sum() / cells
    return heat + union + vaf + haf / 2


def batches(data: Batch, size: int, steps: int, seed: int) -> Iterator[Batch]:
    """`steps` batches of shuffled scenes, each mirrored by chance."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(len(data), generator=generator)
        part, order = data[order[:size]], order[size:]
        yield part.mirrored() if torch.rand((), generator=generator) < 0.5 else part


def train(
    model: nn.Module,
    data: Batch,
    *,
    steps: int,
    rate: float,
    size: int = 8,
    seed: int = 0,
    each: Callable[[int, float], None] = lambda _step, _loss: None,
) -> float:
    """`steps` of Adam with one cycle of the learning rate up to `rate`; the mean loss of the last tenth.

    `each(step, loss)` is called after every step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.2)
    losses = []
    for step, part in enumerate(batches(data, size, steps, seed)):
        loss = loss_of(model(part.image), part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        each(step + 1, losses[-1])
    return float(np.mean(losses[-max(1, steps // 10) :]))
