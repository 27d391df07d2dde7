"""Inputs from images and folders, and the specification of how an image becomes an input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hbc.diagnostics import OptionError
from hbc.samples import SampleError, parse_preprocess, read_given, read_samples
from hbc_runtime.program import TensorInfo
from hbc_runtime.types import DType, Layout

Image = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'hbc[images]'")
pytest.importorskip("pydantic", reason="it checks specifications: pip install 'hbc[images]'")

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)


def info(shape: tuple[int, ...], dtype: DType = DType.F32, name: str = "x") -> TensorInfo:
    return TensorInfo(name, shape, dtype, Layout.ANY, None, 0)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A lossless image of 4 rows and 6 columns."""
    path = tmp_path / "i.png"
    Image.fromarray(PIXELS).save(path)
    return path


def loaded(path: Path, wanted: TensorInfo, text: str = "") -> np.ndarray:
    (sample,) = read_samples(path, [wanted], parse_preprocess(text))
    return sample[wanted.name]


# ---- what an image becomes


def test_without_a_specification_it_is_rgb_as_it_is(image: Path) -> None:
    (sample,) = read_samples(image, [info((1, 3, 4, 6))])
    np.testing.assert_array_equal(sample["x"], PIXELS.transpose(2, 0, 1)[None].astype(np.float32))
    np.testing.assert_array_equal(loaded(image, info((1, 4, 6, 3), DType.U8)), PIXELS[None])
    np.testing.assert_array_equal(loaded(image, info((3, 4, 6))), PIXELS.transpose(2, 0, 1))


def test_mean_and_scale_are_per_channel_in_the_order_of_color(image: Path) -> None:
    got = loaded(image, info((1, 4, 6, 3)), "color=bgr,mean=1:2:3,scale=1/2:1/4:1/8")
    want = (PIXELS[..., ::-1].astype(np.float32) - np.float32([1, 2, 3])) * np.float32([0.5, 0.25, 0.125])
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(loaded(image, info((1, 4, 6, 3)), "std=4"), PIXELS[None] / np.float32(4))


def test_integers_are_rounded_half_to_even_and_clipped(image: Path) -> None:
    got = loaded(image, info((1, 4, 6, 3), DType.I8), "mean=128,scale=0.5")
    np.testing.assert_array_equal(got[0], np.rint((PIXELS.astype(np.float32) - 128) / 2).astype(np.int8))
    clipped = loaded(image, info((1, 4, 6, 3), DType.I8))
    np.testing.assert_array_equal(clipped[0], np.minimum(PIXELS, 127).astype(np.int8))


def test_gray_and_yuv_are_those_of_itu_r_601(image: Path) -> None:
    r, g, b = np.moveaxis(PIXELS.astype(np.float64), -1, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    gray = loaded(image, info((1, 1, 4, 6)), "color=gray")
    assert np.abs(gray[0, 0] - y).max() <= 1  # Pillow rounds in integers
    yuv = loaded(image, info((1, 3, 4, 6)), "color=yuv444")[0]
    assert np.abs(yuv[0] - y).max() <= 1
    assert np.abs(yuv[1] - ((b - y) * 0.564 + 128).clip(0, 255)).max() <= 1.5
    assert np.abs(yuv[2] - ((r - y) * 0.713 + 128).clip(0, 255)).max() <= 1.5


def test_sizes_follow_the_input_and_the_fit(tmp_path: Path) -> None:
    path = tmp_path / "half.png"
    half = np.zeros((4, 8, 3), np.uint8)
    half[:, 4:] = 200
    Image.fromarray(half).save(path)
    wanted = info((1, 3, 8, 8))
    stretched = loaded(path, wanted, "filter=nearest")
    np.testing.assert_array_equal(np.unique(stretched[..., :4]), [0])
    np.testing.assert_array_equal(np.unique(stretched[..., 4:]), [200])
    boxed = loaded(path, wanted, "fit=letterbox,pad=7,filter=nearest")
    np.testing.assert_array_equal(np.unique(boxed[:, :, [0, 1, 6, 7]]), [7])
    np.testing.assert_array_equal(np.unique(boxed[:, :, 2:6]), [0, 200])
    cut = loaded(path, info((1, 3, 4, 4)), "fit=crop,filter=nearest")
    np.testing.assert_array_equal(cut[0, 0], [[0, 0, 200, 200]] * 4)
    np.testing.assert_array_equal(loaded(path, wanted, "resize=8x8,filter=nearest"), stretched)


def test_layout_is_asked_for_where_shapes_do_not_tell(image: Path) -> None:
    planes = loaded(image, info((1, 3, 5, 3)), "layout=nchw,filter=nearest")
    pixels = loaded(image, info((1, 3, 5, 3)), "layout=nhwc,filter=nearest")
    assert planes.shape == pixels.shape
    assert not np.array_equal(planes, pixels)


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("resise=3x3", "did you mean 'resize'?"),
        ("resize=3", "HEIGHTxWIDTH"),
        ("resize=0x3", "from 1 to"),
        ("mean=1:2", "one per channel"),
        ("mean=x", "one per channel"),
        ("mean=1/0", "one per channel"),
        ("mean=nan", "one per channel"),
        ("scale=inf", "one per channel"),
        ("color=cmyk", "rgb"),
        ("layout=HW", "NCHW"),
        ("pad=300", "grey level"),
        ("std=0", "is 0"),
        ("scale=2,std=2", "give one of them"),
        ("color=gray,mean=1:2:3", "gray has one channel"),
        ("dtype=float64", "float32"),
        ("mean=1,mean=2", "stands twice"),
        ("mean", "has no value"),
        ("missing.yaml", "can't be read"),
    ],
)
def test_a_specification_that_cannot_be_says_why(text: str, words: str) -> None:
    with pytest.raises(SampleError) as caught:
        parse_preprocess(text)
    assert words in str(caught.value)


def test_a_specification_comes_from_json_and_yaml_alike(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML reads YAML: pip install 'hbc[images]'")
    (tmp_path / "p.json").write_text(json.dumps({"resize": [4, 6], "mean": [1, 2, 3], "scale": "1/2"}))
    (tmp_path / "p.yaml").write_text("resize: 4x6\nmean: [1, 2, 3]\nscale: 0.5\n")
    specs = [parse_preprocess(str(tmp_path / f)) for f in ("p.json", "p.yaml")]
    assert specs[0] == specs[1] == parse_preprocess("resize=4x6,mean=1:2:3,scale=0.5")
    assert specs[0].scale == (0.5,)
    for name, text in (("a.json", "{"), ("b.yaml", "a: ["), ("c.yaml", "- 1"), ("d.json", "3")):
        (tmp_path / name).write_text(text)
        with pytest.raises(SampleError, match=r"sound JSON|keys and values"):
            parse_preprocess(str(tmp_path / name))


@pytest.mark.parametrize(
    ("shape", "text", "words"),
    [
        ((1, 10), "", "takes no such image"),
        ((2, 3, 4, 6), "", "takes no such image"),
        ((1, 1, 4, 6), "", "rgb has 3 channels"),
        ((1, 3, 4, 6), "resize=5x5", "it becomes 1x3x5x5"),
        ((1, 3, 4, 6), "layout=NHWC", "takes no such image"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(image: Path, shape: tuple[int, ...], text: str, words: str) -> None:
    with pytest.raises(SampleError) as caught:
        loaded(image, info(shape), text)
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0junk"])
def test_what_is_no_image_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "i.png").write_bytes(data)
    with pytest.raises(SampleError, match="the image can't be read"):
        read_samples(tmp_path / "i.png", [info((1, 3, 4, 6))])
    with pytest.raises(SampleError, match="no such file"):
        read_samples(tmp_path / "none.jpg", [info((1, 3, 4, 6))])


def test_an_image_beyond_the_limit_is_refused_before_it_is_unpacked(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hbc.samples.images.MAX_PIXELS", 23)
    with pytest.raises(SampleError, match="6x4 pixels"):
        loaded(image, info((1, 3, 4, 6)))


# ---- folders, and several inputs


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, value in (("b.png", 2), ("a.jpg", 0), ("c.npy", 3)):
        if name.endswith("npy"):
            np.save(tmp_path / name, np.full((1, 3, 4, 4), value, np.float32))
        else:
            Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(tmp_path / name)
    (tmp_path / "readme.txt").write_text("not a sample")
    found = read_samples(tmp_path, [info((1, 3, 4, 4))])
    assert [float(s["x"].mean()) for s in found] == [0, 2, 3]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SampleError, match="no sample in this folder"):
        read_samples(tmp_path / "empty", [info((1, 3, 4, 4))])


def test_an_array_of_many_samples_is_taken_apart(tmp_path: Path) -> None:
    many = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.save(tmp_path / "x.npy", many)
    found = read_samples(tmp_path / "x.npy", [info((1, 2, 3))])
    np.testing.assert_array_equal(np.concatenate([s["x"] for s in found]), many)
    assert len(read_samples(tmp_path / "x.npy", [info((4, 2, 3))])) == 1
    assert len(read_samples(tmp_path / "x.npy", [info((1, 3, 2))])) == 1  # of another shape: an error when it runs
    np.savez(tmp_path / "x.npz", a=many, b=many[:3])
    assert len(read_samples(tmp_path / "x.npz", [info((1, 2, 3), name=n) for n in "ab"])) == 1
    np.savez(tmp_path / "x.npz", a=many, b=many)
    assert len(read_samples(tmp_path / "x.npz", [info((1, 2, 3), name=n) for n in "ab"])) == 4


def test_named_values_stand_in_every_sample(image: Path, tmp_path: Path) -> None:
    infos = [info((1, 3, 4, 6)), info((2,), name="k=v")]
    np.save(tmp_path / "k.npy", np.float32([1, 2]))
    (sample,) = read_given([f"x={image}", f"k=v={tmp_path / 'k.npy'}"], infos)
    assert sample["x"].shape == (1, 3, 4, 6)
    np.testing.assert_array_equal(sample["k=v"], [1, 2])
    (partial,) = read_given([f"x={image}"], infos)
    assert set(partial) == {"x"}
    np.savez(
        tmp_path / "many.npz", **{"in0__x": sample["x"], "in0__k=v": [5, 5], "in1__x": sample["x"], "in1__k=v": [6, 6]}
    )
    several = read_given([str(tmp_path / "many.npz"), f"k=v={tmp_path / 'k.npy'}"], infos)
    assert [s["k=v"].tolist() for s in several] == [[1, 2], [1, 2]]
    with pytest.raises(OptionError, match="there is no input 'y'"):
        read_given([f"y={image}"], infos)
    with pytest.raises(SampleError, match="one image can't fill several inputs"):
        read_given([str(image)], infos)
