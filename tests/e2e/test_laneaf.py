"""The lane detection example: its scenes, maps, decoding and F1, the trained model in its folder, and its demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("PIL", reason="the example reads and draws pictures with Pillow")

import hbc
from hbc_runtime import Session

ROOT = Path(__file__).parents[2]
LANEAF = ROOT / "examples" / "laneaf"
MODEL, PROGRAM = LANEAF / "lane.onnx", LANEAF / "lane.hbm"

sys.path.insert(0, str(LANEAF))
try:
    from laneaf.decoding import clusters, decode  # type: ignore[import-not-found]
    from laneaf.drawing import draw_lanes, sheet  # type: ignore[import-not-found]
    from laneaf.evaluating import (  # type: ignore[import-not-found]
        NAMES,
        images_of,
        same,
        session_heads,
        total_score,
    )
    from laneaf.files import lines_file, read_image, read_lanes  # type: ignore[import-not-found]
    from laneaf.maps import Maps, draw_maps, to_cell, to_pixel  # type: ignore[import-not-found]
    from laneaf.metric import LINE, Score, overlap, score, spans  # type: ignore[import-not-found]
    from laneaf.scenes import HELD_OUT, scene, scenes  # type: ignore[import-not-found]
finally:
    sys.path.remove(str(LANEAF))

KEPT = {"bright": 0, "dashes": 1, "car": 4, "bend": 6}
Array = np.ndarray[Any, Any]


def upright(x: float) -> Array:
    """A lane that goes straight up at column x, a point in each of the maps' rows 5 to 22."""
    y = np.arange(89.5, 21, -4)
    return np.stack([np.full_like(y, x), y], axis=1)


def logits(maps: Any) -> tuple[Array, Array, Array]:
    return 20 * maps.hm - 10, maps.vaf, maps.haf


# Scenes.


def test_a_number_is_a_scene() -> None:
    a, b, other = scene(7), scene(7), scene(8)
    assert np.array_equal(a.image, b.image)
    assert all(np.array_equal(x, y) for x, y in zip(a.lanes, b.lanes, strict=True))
    assert not np.array_equal(a.image, other.image)


def test_scenes_hold_two_to_four_lanes_inside_of_the_image() -> None:
    found = scenes(HELD_OUT, 40)
    assert {len(s.lanes) for s in found} == {2, 3, 4}
    for s in found:
        assert s.image.shape == (96, 256, 3)
        assert s.image.dtype == np.uint8
        assert s.image.std() > 5
        for lane in s.lanes:
            assert (np.diff(lane[:, 1]) == -4).all()
            assert ((lane >= 0) & (lane <= [255, 95])).all()


@pytest.mark.parametrize("name", KEPT)
def test_kept_scenes_are_those_of_their_numbers(name: str) -> None:
    """Within one of 256 levels: another machine's exp may round a pixel the other way."""
    made = scene(HELD_OUT + KEPT[name])
    path = LANEAF / "scenes" / f"{name}.png"
    away = np.abs(read_image(path).astype(int) - made.image)
    assert away.max() <= 1
    lanes = read_lanes(lines_file(path))
    assert len(lanes) == len(made.lanes)
    for kept, lane in zip(lanes, made.lanes, strict=True):
        assert np.abs(kept - lane).max() <= 0.006  # two digits in the file


# Maps, decoding, F1.


@pytest.mark.parametrize(("rows", "columns", "count"), [(96, 256, 60), (288, 832, 4)])
def test_decoding_true_maps_finds_every_lane(rows: int, columns: int, count: int) -> None:
    total = Score()
    for s in scenes(HELD_OUT + 500, count, rows, columns):
        maps = draw_maps(s.lanes, rows, columns)
        assert set(np.unique(maps.hm)) == {0.0, 1.0}
        on = maps.hm[0] > 0
        assert np.allclose(np.hypot(*maps.vaf)[on], 1, atol=1e-6)
        assert (np.abs(maps.haf[0]) == on).all()
        total += score(decode(*logits(maps)), s.lanes, rows, columns)
    assert total.right >= 2 * count
    assert total.f1 == 1.0


def test_lanes_that_touch_are_told_apart_by_their_fields() -> None:
    """Two lines three cells apart: the heat map alone is one block."""
    lanes = (upright(101.5), upright(113.5))
    maps = draw_maps(lanes, 96, 256)
    assert len(clusters(maps.hm[0, 12], np.zeros(64), 0.5)) == 1
    assert len(clusters(maps.hm[0, 12], maps.haf[0, 12], 0.5)) == 2
    assert score(decode(*logits(maps)), lanes, 96, 256) == Score(2, 0, 0)


def test_a_lane_goes_on_behind_a_gap_of_three_rows_and_no_more() -> None:
    for missing, count in ((3, 1), (4, 2)):
        maps = draw_maps((upright(101.5),), 96, 256)
        maps.hm[0, 14 - missing : 14] = 0
        assert len(decode(*logits(maps))) == count


def test_nothing_is_found_in_empty_maps() -> None:
    empty = Maps(np.zeros((1, 24, 64)), np.zeros((2, 24, 64)), np.zeros((1, 24, 64)))
    assert decode(*logits(empty)) == ()
    assert Score().f1 == 1.0


@given(st.floats(0, 12), st.floats(60, 200))
@example(0.0, 100.0)
@example(LINE * 256 / 3, 100.0)
@example(LINE * 256, 100.0)
def test_overlap_of_shifted_lanes(shift: float, x: float) -> None:
    """Two upright lines of width w, d apart: (w − d) / (w + d), by hand."""
    width = LINE * 256
    found = overlap(spans(upright(x), 96, 256), spans(upright(x + shift), 96, 256))
    assert found == pytest.approx(max(width - shift, 0) / (width + shift), abs=1e-9)


def test_half_an_overlap_is_the_border() -> None:
    """IoU is above a half where lines are less than a third of their width apart."""
    third = LINE * 256 / 3
    truth = (upright(60.0), upright(150.0))
    found = (upright(60.0 + 0.98 * third), upright(150.0 + 1.02 * third), upright(220.0))
    assert score(found, truth, 96, 256) == Score(1, 2, 1)
    assert score(found, truth, 96, 256).f1 == pytest.approx(2 / 5)
    assert score((), truth, 96, 256) == Score(0, 0, 2)


def test_two_findings_of_one_lane_count_once() -> None:
    truth = (upright(100.0),)
    assert score((upright(100.0), upright(100.5)), truth, 96, 256) == Score(1, 1, 0)


def test_cells_and_pixels() -> None:
    assert to_pixel(np.array([0.0, 63.0])).tolist() == [1.5, 253.5]
    assert to_cell(to_pixel(np.array([0.25, 7.0]))).tolist() == [0.25, 7.0]


def test_pictures_show_lanes() -> None:
    s = scene(3)
    plain, drawn = draw_lanes(s.image, ()), draw_lanes(s.image, s.lanes, s.lanes)
    assert drawn.shape == (288, 768, 3)
    assert 200 < (plain != drawn).any(-1).sum() < 30_000
    assert sheet([plain, drawn, drawn]).shape == (2 * 288 + 4, 2 * 768 + 4, 3)


# The trained model.


def test_the_artefacts_are_small() -> None:
    files = [MODEL, PROGRAM, *(LANEAF / "scenes").iterdir()]
    assert sum(p.stat().st_size for p in files) < 1_000_000


@pytest.fixture(scope="module")
def compiled() -> hbc.Compiled:
    return hbc.compile(MODEL, march="nash")


def test_the_whole_network_runs_on_the_bpu_and_heads_keep_their_accumulators(compiled: hbc.Compiled) -> None:
    assert {row.node for row in compiled.report.nodes if row.device == "cpu"} == set()
    assert [o.name for o in compiled.report.outputs] == list(NAMES)
    assert all(o.high_precision for o in compiled.report.outputs)


def test_the_model_compiles_to_the_heads_of_the_kept_program(compiled: hbc.Compiled) -> None:
    """Machine code and NumPy, both files: the same numbers."""
    kept = scenes(HELD_OUT, 2)
    images = images_of(kept)
    with Session(PROGRAM) as session:
        heads = session_heads(session, images)
    assert all(np.unique(heads[name]).size > 100 for name in NAMES)
    for source, engine in ((PROGRAM, "reference"), (compiled.program, "jit"), (compiled.program, "reference")):
        with Session(source, engine=engine) as session:
            other = session_heads(session, images)
        assert same(heads, other), engine
    other["haf"][1, 0, 3, 5] += 1e-3
    assert not same(heads, other)


def test_the_model_finds_lanes_that_it_was_not_trained_on() -> None:
    held_out = scenes(HELD_OUT, 60)
    with Session(PROGRAM) as session:
        total = total_score(session_heads(session, images_of(held_out)), held_out)
    assert total.right + total.missed == sum(len(s.lanes) for s in held_out)
    assert total.f1 > 0.97


# The demo.


def demo(cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LANEAF / "demo.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_demo_finds_draws_and_counts(tmp_path: Path) -> None:
    done = demo(tmp_path, PROGRAM, "-o", "out/lanes.png", "--test", "8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 lanes in ")
    assert lines[4] == "  3 of 3 lanes found, 0 found that aren't there"
    assert lines[5] == "picture: out/lanes.png"
    assert lines[6].startswith("8 held-out scenes: F1 ")
    assert "RDK S100 (an estimate)" in lines[-1]
    picture = read_image(tmp_path / "out" / "lanes.png")
    assert not np.array_equal(picture, draw_lanes(read_image(LANEAF / "scenes" / "car.png"), ()))


def test_the_demo_says_what_is_wrong(tmp_path: Path) -> None:
    text = tmp_path / "no.png"
    text.write_text("no image")
    done = demo(tmp_path, PROGRAM, "--image", text)
    assert done.returncode == 1
    assert "cannot identify image file" in done.stderr
    hbc.compile(ROOT / "examples" / "digits" / "digits_qat.onnx").save(tmp_path / "digits.hbm")
    done = demo(tmp_path, tmp_path / "digits.hbm")
    assert done.returncode == 1
    assert "has no output haf or hm or vaf" in done.stderr
    assert "Traceback" not in done.stderr
