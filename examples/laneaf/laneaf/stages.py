"""The way of a model, from float training to a compiled program, with its F1 on held-out scenes at every stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hbc.quantization import (
    QAT,
    VALIDATION,
    FixedPointModel,
    calibrate,
    convert,
    export,
    export_to_onnx,
    prepare,
    set_fake_quantize,
    set_forward,
    set_march,
)
from hbc_runtime import Session

from .evaluating import NAMES, Heads, images_of, in_parts, same, session_heads, total_score
from .metric import Score
from .network import PLANS, LaneNet
from .scenes import HEIGHT, HELD_OUT, WIDTH, Scene, scenes
from .training import Batch, batch_of, train

SAME = "the exact forward's"
CALIBRATION, EVALUATION_BATCH = 128, 20
Told = Callable[[str, int, int], None]  # what is going on, how much of it is done, how much there is


@dataclass(frozen=True)
class Settings:
    """How long to train, on what, for which chip. `reference`: scenes that the slow NumPy engine runs as well."""

    net: str = "compact"
    march: str = "nash-e"
    rows: int = HEIGHT
    columns: int = WIDTH
    training: int = 900
    held_out: int = 200
    steps: int = 560
    rate: float = 4e-3
    qat_steps: int = 80
    exact_steps: int = 20
    qat_rate: float = 5e-4
    reference: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Stage:
    """One line of the table. `equal`: whose heads these are, number for number; `on`: on how many scenes."""

    name: str
    score: Score
    seconds: float
    equal: str = ""
    on: int = 0


@dataclass
class Project:
    """A model on its way. Each step adds a stage; a head that differs where none may is in `differences`."""

    settings: Settings
    told: Told = lambda _what, _done, _total: None
    stages: list[Stage] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.settings
        torch.manual_seed(s.seed)
        self.training: Batch = batch_of(self._scenes("painting scenes to train on", 10_000 * s.seed, s.training))
        self.held_out: list[Scene] = self._scenes("painting held-out scenes", HELD_OUT, s.held_out)
        self.images = images_of(self.held_out)
        self.example = (torch.from_numpy(self.images[:1]),)
        self.net: nn.Module = LaneNet(PLANS[s.net])

    def _scenes(self, what: str, first: int, count: int) -> list[Scene]:
        found = []
        for i in range(count):
            found += scenes(first + i, 1, self.settings.rows, self.settings.columns)
            self.told(what, i + 1, count)
        return found

    def train_float(self) -> None:
        """The float network."""
        s = self.settings
        self.net.train()
        train(
            self.net, self.training, steps=s.steps, rate=s.rate, seed=s.seed, each=self._each("float training", s.steps)
        )
        self.net.eval()
        self._stage("float", lambda: self._torch_heads(self.net))

    def calibrate(self) -> None:
        """Prepared and calibrated; its heads are held against its program's before any training."""
        set_march(self.settings.march)
        self.qat = prepare(self.net, self.example)
        calibrate(self.qat, self.training.image[:CALIBRATION].split(16), progress=False)
        exact = self._stage("calibrated, exact forward", lambda: self._torch_heads(self.qat))
        fixed = convert(self.qat, self.example)
        self._compare("before QAT", exact, fixed)

    def train_quantised(self) -> None:
        """QAT: most of it on fake-quantised reals, the end of it on the program's own integers."""
        s = self.settings
        for mode, steps, seed in (("plain", s.qat_steps, 1), ("exact", s.exact_steps, 2)):
            if not steps:
                continue
            set_fake_quantize(self.qat, QAT)
            set_forward(self.qat, mode)
            self.qat.train()
            rate = s.qat_rate if mode == "plain" else s.qat_rate / 5
            each = self._each(f"QAT, {mode} forward", steps)
            train(self.qat, self.training, steps=steps, rate=rate, seed=s.seed + seed, each=each)
        set_fake_quantize(self.qat, VALIDATION)
        self.qat.eval()
        set_forward(self.qat, "plain")
        self._stage("QAT, fake quantisation", lambda: self._torch_heads(self.qat))
        set_forward(self.qat, "auto")
        self.exact = self._stage("QAT, exact forward", lambda: self._torch_heads(self.qat))

    def convert(self) -> None:
        """The fixed-point model."""
        self.fixed = convert(self.qat, self.example, name="lane")
        self._stage("FixedPointModel", lambda: self._torch_heads(self.fixed, 1), self.exact)

    def save(self, folder: Path) -> dict[str, Path]:
        """model.hbm, model.hbir, model.onnx and model.pt (the weights, float and QAT), and the `.hbm`'s own F1."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = {kind: folder / f"model.{kind}" for kind in ("hbm", "hbir", "onnx", "pt")}
        self.fixed.save(paths["hbm"])
        paths["hbir"].write_text(str(export(self.qat, self.example, name="lane")), encoding="utf-8")
        export_to_onnx(self.qat, self.example, paths["onnx"])
        states = {"net": self.settings.net, "float": self.net.state_dict(), "qat": self.qat.state_dict()}
        torch.save(states, paths["pt"])
        for engine, count in (("jit", len(self.held_out)), ("reference", self.settings.reference)):
            with Session(paths["hbm"], engine=engine) as session:
                name = "model.hbm, machine code" if engine == "jit" else "model.hbm, NumPy reference"
                self._stage(name, lambda s=session, n=count: session_heads(s, self.images[:n]), self.exact)
        return paths

    def _each(self, what: str, steps: int) -> Callable[[int, float], None]:
        return lambda step, loss: self.told(f"{what}, loss {loss:.3f}", step, steps)

    def _torch_heads(self, model: nn.Module, size: int = EVALUATION_BATCH) -> Heads:
        def run(images: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
            with torch.no_grad():
                return {name: head.numpy() for name, head in model(torch.from_numpy(images)).items()}

        return in_parts(run, self.images, size)

    def _stage(self, name: str, run: Callable[[], Heads], exact: Heads | None = None) -> Heads:
        """Add a stage; its heads must be `exact` where that is given."""
        self.told(f"evaluating: {name}", 0, 1)
        begin = time.perf_counter()
        heads = run()
        seconds = time.perf_counter() - begin
        count = len(heads["hm"])
        equal = "" if exact is None else self._equal(name, exact, heads)
        self.stages.append(Stage(name, total_score(heads, self.held_out[:count]), seconds, equal, count))
        self.told(f"evaluating: {name}", 1, 1)
        return heads

    def _equal(self, name: str, exact: Heads, heads: Heads) -> str:
        if same(exact, heads):
            return SAME
        self.differences.append(name)
        count = min(len(exact["hm"]), len(heads["hm"]))
        return f"{sum(int((exact[n][:count] != heads[n][:count]).sum()) for n in NAMES)} numbers differ"

    def _compare(self, when: str, exact: Heads, fixed: FixedPointModel) -> None:
        """Fixed-point model, machine code and reference against the exact forward, on a few scenes."""
        images = self.images[: self.settings.reference]
        found = {self._equal(f"FixedPointModel {when}", exact, in_parts(lambda x: _numpy(fixed, x), images))}
        for engine in ("jit", "reference"):
            with Session(fixed.compiled.to_bytes(), engine=engine) as session:
                found.add(self._equal(f"{engine} {when}", exact, session_heads(session, images)))
        note = "the program's, on both engines" if found == {SAME} else "not the program's"
        self.stages[-1] = replace(self.stages[-1], equal=note)


def _numpy(model: nn.Module, images: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    with torch.no_grad():
        return {name: head.numpy() for name, head in model(torch.from_numpy(images)).items()}
