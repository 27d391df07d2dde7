"""Heads of many scenes, and how good the lanes are that are decoded from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hbc_runtime import Session

from .decoding import decode
from .maps import network_input
from .metric import Score, score
from .scenes import Lane, Scene

Heads = dict[str, npt.NDArray[np.floating]]  # hm, vaf, haf: f32[N, channels, h, w]
NAMES = ("hm", "vaf", "haf")


def images_of(scenes: Sequence[Scene]) -> npt.NDArray[np.float32]:
    """The network's input, f32[N, 3, H, W]."""
    return np.stack([network_input(s.image) for s in scenes])


def in_parts(
    run: Callable[[npt.NDArray[np.float32]], Mapping[str, npt.NDArray[np.floating]]],
    images: npt.NDArray[np.float32],
    size: int = 1,
) -> Heads:
    """`run` on `size` images at a time, one behind the other."""
    parts = [run(images[i : i + size]) for i in range(0, len(images), size)]
    return {name: np.concatenate([p[name] for p in parts]) for name in NAMES}


def session_heads(session: Session, images: npt.NDArray[np.float32]) -> Heads:
    """Of a compiled program, an image a run."""
    return in_parts(lambda x: session.run({session.inputs[0].name: x}), images)


def lanes_of(heads: Heads, index: int) -> tuple[Lane, ...]:
    """Lanes of one scene's heads."""
    hm, vaf, haf = (heads[name][index] for name in NAMES)
    return decode(hm, vaf, haf)


def total_score(heads: Heads, scenes: Sequence[Scene]) -> Score:
    """The score of all scenes together."""
    total = Score()
    for i, scene in enumerate(scenes):
        rows, columns = scene.image.shape[:2]
        total += score(lanes_of(heads, i), scene.lanes, rows, columns)
    return total


def same(a: Heads, b: Heads) -> bool:
    """True where every number of every head of the scenes that both have is the same."""
    count = min(len(a["hm"]), len(b["hm"]))
    return all(np.array_equal(a[name][:count], b[name][:count]) for name in NAMES)
