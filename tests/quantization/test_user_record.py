"""One project from a float model to an `.hbm`, with the mistakes that its people make on the way, in their order.

Every mistake meets an error that says what to do; then the step is done as it says, and at the end the file holds the
integers that the training already knew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.diagnostics import HbcError  # noqa: E402
from hbc.ir.parser import parse_module  # noqa: E402
from hbc.ir.printer import print_module  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    FloatFunctional,
    March,
    ModuleNameSetter,
    calibrate,
    check_model,
    check_optimizer,
    compile_model,
    convert,
    export,
    fuse_fx,
    prepare,
    set_fake_quantize,
    set_march,
)
from hbc_runtime import Session  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Lanes(nn.Module):
    """A lane detector: heads hm and vaf in a list of a dict, as such a project's model returns them."""

    def __init__(self, *, one_functional: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.left, self.right = nn.Conv2d(8, 8, (3, 1), padding=(1, 0)), nn.Conv2d(8, 8, (1, 3), padding=(0, 1))
        self.add = FloatFunctional()
        self.again = self.add if one_functional else FloatFunctional()
        self.hm, self.vaf = nn.Conv2d(8, 1, 1), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> list[dict[str, Tensor]]:
        x = self.stem(image)
        x = functional.relu(self.add.add(self.left(x), x))
        x = functional.relu(self.again.add(self.right(x), x))
        return [{"hm": self.hm(x), "vaf": self.vaf(x)}]


def scene(seed: int) -> tuple[Tensor, Tensor]:
    """Images of noise with one bright upright stripe, and where it is at half the size."""
    g = torch.Generator().manual_seed(seed)
    image, mask = torch.rand(4, 3, 16, 32, generator=g) * 0.5, torch.zeros(4, 1, 8, 16)
    for i, at in enumerate(torch.randint(1, 15, (4,), generator=g).tolist()):
        image[i, :, :, 2 * at : 2 * at + 2] += 1.0
        mask[i, :, :, at] = 1.0
    return image, mask


def fit(model: Any, optimizer: Any, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        image, mask = scene(step)
        (heads,) = model(image)
        loss = functional.binary_cross_entropy_with_logits(heads["hm"], mask) + 0.01 * heads["vaf"].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def accuracy(model: Any) -> float:
    """Share of pixels that are classified rightly, on scenes that weren't trained with."""
    image, mask = scene(1000)
    with torch.no_grad():
        (heads,) = model(image)
    return float(((heads["hm"] > 0) == (mask > 0)).float().mean())


def test_the_project(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image, _ = scene(0)

    # 1. Float training. The first version of the model shares one FloatFunctional.
    first = Lanes(one_functional=True)
    with pytest.raises(HbcError, match=r"'add' is called 2 times(.|\n)*one FloatFunctional per call"):
        prepare(first, (image,))
    model = Lanes(one_functional=False)
    losses = fit(model, torch.optim.Adam(model.parameters(), lr=0.02), 40)
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    of_float = accuracy(model)
    assert of_float > 0.95

    # 2. The chip: its name is misspelt.
    with pytest.raises(HbcError, match=r"no march 'nashe'(.|\n)*did you mean 'nash-e'"):
        set_march("nashe")
    set_march(March.NASH_E)

    # 3. Exporting before anything was prepared.
    for verb in (export, compile_model):
        with pytest.raises(HbcError, match=r"Lanes is a float model(.|\n)*prepare\(model, example_inputs\)"):
            verb(model, (image,))

    # 4. Preparing: inputs on another device, a module that isn't there; then with the heads as a list of a dict.
    with pytest.raises(HbcError, match=r"parameters are on cpu, input 0 is on meta(.|\n)*x\.to\('cpu'\)"):
        prepare(model, (image.to("meta"),))
    with pytest.raises(HbcError, match=r"no module 'model\.hm'(.|\n)*did you mean 'hm'"):
        prepare(model, (image,), ModuleNameSetter({"model.hm": "int16"}))
    stale = torch.optim.SGD(model.parameters(), lr=0.01)
    prepared = prepare(fuse_fx(model), (image,))
    for again in (fuse_fx, lambda m: prepare(m, (image,))):
        with pytest.raises(HbcError, match=r"prepared already(.|\n)*prepare fuses by itself"):
            again(prepared)

    # 5. Converting before the calibration, then the calibration.
    with pytest.raises(HbcError, match=r"operations have no scale yet(.|\n)*calibrate\(model, loader\)"):
        convert(prepared)
    assert calibrate(prepared, (scene(100 + i) for i in range(8)), progress=False) == 8
    assert accuracy(prepared) > of_float - 0.02

    # 6. Training, with the float model's weights and optimizer at first.
    with pytest.raises(HbcError, match=r"state_dict is a float model's(.|\n)*before prepare"):
        prepared.load_state_dict(model.state_dict())
    with pytest.raises(HbcError, match=r"optimizer's 11 parameters(.|\n)*optimizer after prepare"):
        check_optimizer(stale, prepared)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    check_optimizer(optimizer, prepared)
    set_fake_quantize(prepared, QAT)
    fit(prepared.train(), optimizer, 10)
    set_fake_quantize(prepared.eval(), VALIDATION)
    of_qat = accuracy(prepared)
    assert of_qat > of_float - 0.01

    # 7. To fixed point: for another chip at first. The dict's keys are the outputs' names, the numbers the same.
    with pytest.raises(HbcError, match=r"prepared for nash-e, and bayes computes(.|\n)*before prepare"):
        convert(prepared, march="bayes")
    fixed = convert(prepared)
    assert accuracy(fixed) == of_qat
    test, _ = scene(1000)
    with torch.no_grad():
        (ours,), (theirs,) = prepared(test), fixed(test)
    assert list(theirs) == ["hm", "vaf"]
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    with pytest.raises(HbcError, match=r"can't be traced(.|\n)*model\.hbm"):
        torch.jit.trace(fixed, (test,))

    # 8. The files: model.hbm, model.hbir and model.pt give the same again.
    assert check_model(prepared, (image,)).is_whole
    fixed.save(tmp_path / "model.hbm")
    text = print_module(export(prepared, (image,)))
    (tmp_path / "model.hbir").write_text(text, encoding="utf-8")
    torch.save(prepared, tmp_path / "model.pt")
    found = Session(str(tmp_path / "model.hbm")).run({"image": test.numpy()})
    assert list(found) == ["hm", "vaf"]
    assert all(np.array_equal(found[k], ours[k].numpy()) for k in ours)
    assert re.search(r"%hm\b", text)
    assert print_module(parse_module(text)) == text
    (loaded,) = torch.load(tmp_path / "model.pt", weights_only=False)(test)
    assert all(torch.equal(loaded[k], ours[k]) for k in ours)
