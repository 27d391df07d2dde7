"""The lane detection example from float training to a program, a few steps of each: heads agree at every stage."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training the example needs PyTorch")
pytest.importorskip("PIL", reason="the example reads and draws pictures with Pillow")

LANEAF = Path(__file__).parents[2] / "examples" / "laneaf"
sys.path.insert(0, str(LANEAF))
try:
    from laneaf.maps import draw_maps  # type: ignore[import-not-found]
    from laneaf.network import PLANS, Plan  # type: ignore[import-not-found]
    from laneaf.scenes import HELD_OUT, scene  # type: ignore[import-not-found]
    from laneaf.stages import SAME, Project, Settings  # type: ignore[import-not-found]
    from laneaf.training import batch_of  # type: ignore[import-not-found]
finally:
    sys.path.remove(str(LANEAF))

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TINY = Plan((5, 8, 12), 0, (2,), 0)
SHORT = Settings(
    "tiny",
    training=24,
    held_out=4,
    steps=4,
    qat_steps=3,
    exact_steps=2,
    reference=2,
    rows=48,
    columns=64,
    qat_rate=2e-3,
)


def test_heads_agree_at_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANS, "tiny", TINY)
    told: list[str] = []
    project = Project(SHORT, lambda what, _done, _total: told.append(what))
    start = [p.detach().clone() for p in project.net.parameters()]
    project.train_float()
    assert not any(torch.equal(a, b) for a, b in zip(start, project.net.parameters(), strict=True) if a.dim() == 4)
    project.calibrate()
    before = [p.detach().clone() for p in project.qat.parameters()]
    project.train_quantised()
    assert not any(torch.equal(a, b) for a, b in zip(before, project.qat.parameters(), strict=True) if a.dim() == 4)
    project.convert()
    paths = project.save(tmp_path)
    assert project.differences == []
    by_name = {stage.name: stage for stage in project.stages}
    assert by_name["calibrated, exact forward"].equal == "the program's, on both engines"
    for name in ("FixedPointModel", "model.hbm, machine code", "model.hbm, NumPy reference"):
        assert by_name[name].equal == SAME
    assert by_name["model.hbm, machine code"].score == by_name["QAT, exact forward"].score
    assert all(np.unique(head).size > 50 for head in project.exact.values())
    assert_heads_are_integers(project)
    assert {p.name for p in paths.values()} == {"model.hbm", "model.hbir", "model.onnx", "model.pt"}
    assert "conv" in paths["hbir"].read_text(encoding="utf-8")
    assert set(torch.load(paths["pt"], weights_only=True)) == {"net", "float", "qat"}
    assert "QAT, exact forward, loss" in " ".join(told)


def assert_heads_are_integers(project: Project) -> None:
    """A head's real numbers tell its i32 accumulators apart, so that equal heads are equal integers."""
    found = project.fixed.integers(*project.example)
    accumulators = [v.numpy() for v in found.values() if v.dtype == torch.int32]
    assert [a.shape[-1] for a in accumulators] == [1, 2, 1]
    for acc, name in zip(accumulators, ("hm", "vaf", "haf"), strict=True):
        head = project.exact[name][0]
        for channel in range(acc.shape[-1]):
            integers, reals = acc[0, ..., channel].ravel(), head[channel].ravel()
            assert len(np.unique(integers)) == len(np.unique(reals)) > 50
            assert np.array_equal(np.argsort(integers, kind="stable"), np.argsort(reals, kind="stable"))


def test_a_difference_is_noticed() -> None:
    project = Project.__new__(Project)
    project.differences = []
    heads = {name: np.zeros((2, 1, 3, 3), np.float32) for name in ("hm", "vaf", "haf")}
    other = {**heads, "haf": heads["haf"] + np.float32(1e-6)}
    assert project._equal("first", heads, {**heads}) == SAME
    assert project._equal("second", heads, other) == "18 numbers differ"
    assert project.differences == ["second"]


def test_mirrored_batches_hold_the_maps_of_mirrored_lanes() -> None:
    s = scene(HELD_OUT + 3)
    rows, columns = s.image.shape[:2]
    mirrored = batch_of([s]).mirrored()
    lanes = [np.stack([columns - 1 - lane[:, 0], lane[:, 1]], axis=1) for lane in s.lanes]
    maps = draw_maps(lanes, rows, columns)
    assert np.array_equal(mirrored.hm[0].numpy(), maps.hm)
    assert np.allclose(mirrored.vaf[0].numpy(), maps.vaf, atol=1e-5)
    assert np.array_equal(mirrored.haf[0].numpy(), maps.haf)
