"""Inputs from `.png` and `.jpg` files. Pillow decodes them and loads with the first image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hbc.diagnostics import error

from .arrays import require_regular
from .base import Array, Input, SampleError
from .preprocess import EXTRA, checked

if TYPE_CHECKING:
    from PIL.Image import Image

    from .spec import Preprocess

SUFFIXES = {".png", ".jpg", ".jpeg"}
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1, "yuv444": 3}
MAX_PIXELS = 1 << 26  # of a file, before it is resized: a bomb is told before it is unpacked


def load_image(path: Path, info: Input, spec: Preprocess | None = None) -> Array:
    """The image as a value of `info`: of its shape and dtype (or of those that `spec` states).

    Without a specification: RGB, stretched to the input's size, pixel values from 0 to 255. Raises SampleError.
    """
    spec = checked({}, "--preprocess") if spec is None else spec
    layout, height, width = _geometry(info, spec)
    pixels = _colours(_fitted(_opened(path), height, width, spec), spec.color)
    x = (pixels - np.asarray(spec.mean, np.float32)) * np.asarray(spec.scale or 1.0, np.float32)
    x = x if spec.std is None else x / np.asarray(spec.std, np.float32)
    x = x.transpose(2, 0, 1) if layout == "NCHW" else x
    dtype = np.dtype(spec.dtype or info.dtype.numpy)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = np.clip(np.rint(x), limits.min, limits.max)
    made = np.ascontiguousarray(x[None] if len(info.shape) == 4 else x, dtype)
    if made.shape != info.shape:
        why = f"it becomes {_text(made.shape)}, input {info.name!r} is {_text(info.shape)}"
        raise error(SampleError, "the image does not fit", where=str(path), why=why, hint="resize=, color=, layout=")
    return made


def _geometry(info: Input, spec: Preprocess) -> tuple[str, int, int]:
    """Layout, height and width of the input."""
    dims = info.shape[1:] if len(info.shape) == 4 and info.shape[0] == 1 else info.shape
    channels = CHANNELS[spec.color]
    fits = [
        layout
        for layout, axis in (("NCHW", 0), ("NHWC", 2))
        if len(dims) == 3 and dims[axis] == channels and spec.layout in {None, layout}
    ]
    if not fits:
        why = f"its shape is {_text(info.shape)}; {spec.color} has {channels} channel{'s' * (channels > 1)}"
        hint = "an image fills 1xCxHxW or 1xHxWxC; try color= and layout=, or save arrays with numpy.save"
        raise error(SampleError, f"input {info.name!r} takes no such image", why=why, hint=hint)
    layout = fits[0]
    size = dims[1:] if layout == "NCHW" else dims[:2]
    return layout, *(spec.resize or (size[0], size[1]))


def _opened(path: Path) -> Image:
    try:
        from PIL import Image
    except ImportError as err:
        raise error(SampleError, "reading images needs Pillow", where=str(path), why=str(err), hint=EXTRA) from err
    hint = "give a .png or .jpg"
    try:
        require_regular(path, hint)
        with Image.open(path, formats=["PNG", "JPEG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                why = f"{image.width}x{image.height} pixels; {MAX_PIXELS} are taken at most"
                raise error(SampleError, "the image is too large", where=str(path), why=why)
            return image.convert("RGB")
    except FileNotFoundError as err:
        raise error(SampleError, "there is no such file", where=str(path), hint="check the path") from err
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as err:
        why = " ".join(str(err).split())[:200]
        raise error(SampleError, "the image can't be read", where=str(path), why=why, hint=hint) from err


def _fitted(image: Image, height: int, width: int, spec: Preprocess) -> Image:
    from PIL import ImageOps
    from PIL.Image import Resampling

    names = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC", "area": "BOX"}
    method: Any = getattr(Resampling, names[spec.filter])
    size = (width, height)
    if spec.fit == "letterbox":
        return ImageOps.pad(image, size, method, color=(spec.pad,) * 3)
    if spec.fit == "crop":
        return ImageOps.fit(image, size, method)
    return image if image.size == size else image.resize(size, method)


def _colours(image: Image, color: str) -> Array:
    """Float32 pixels, height × width × channels."""
    if color in {"gray", "yuv444"}:
        image = image.convert("L" if color == "gray" else "YCbCr")
    pixels = np.asarray(image, np.float32)
    if color == "gray":
        return pixels[..., None]
    return pixels[..., ::-1] if color == "bgr" else pixels


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
