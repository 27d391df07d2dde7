"""The preprocessing specification as a checked value. Loads pydantic: import this module where it is needed only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

MAX_SIDE = 1 << 15


class Preprocess(BaseModel):
    """The steps from an image file to an input, in their order.

    `resize`: height × width (by default the input's). `fit`: `stretch`; `letterbox` keeps the proportions and fills up
    with `pad`; `crop` keeps them and cuts the middle out. `filter`: how pixels are interpolated. `color`: `rgb`, `bgr`,
    `gray` (ITU-R 601 luma), or `yuv444` (JPEG's full-range BT.601). `mean` is subtracted, then `scale` multiplies or
    `std` divides, per channel in the order of `color`. `layout` and `dtype`: by default the input's. Integers are
    rounded half to even and clipped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    resize: tuple[int, int] | None = None
    fit: Literal["stretch", "letterbox", "crop"] = "stretch"
    pad: int = 114
    filter: Literal["nearest", "bilinear", "bicubic", "area"] = "bilinear"
    color: Literal["rgb", "bgr", "gray", "yuv444"] = "rgb"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    dtype: Literal["float32", "uint8", "int8", "uint16", "int16"] | None = None

    @field_validator("resize", mode="before")
    @classmethod
    def _resize(cls, value: object) -> object:
        return _sizes(value)

    @field_validator("mean", "scale", "std", mode="before")
    @classmethod
    def _channels(cls, value: object) -> object:
        return None if value is None else _numbers(value)

    @field_validator("fit", "filter", "color", "dtype", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("layout", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _whole(self) -> Preprocess:
        if self.scale is not None and self.std is not None:
            raise ValueError("scale multiplies and std divides: give one of them")
        if self.std is not None and 0 in self.std:
            raise ValueError("std divides, and is 0")
        if not 0 <= self.pad <= 255:
            raise ValueError("pad is a grey level from 0 to 255")
        many = [k for k in ("mean", "scale", "std") if len(getattr(self, k) or ()) == 3]
        if self.color == "gray" and many:
            raise ValueError(f"gray has one channel, {many[0]} has three numbers")
        return self


def _sizes(value: object) -> object:
    parts = value.lower().split("x") if isinstance(value, str) else value
    if parts is None:
        return None
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise ValueError("give HEIGHTxWIDTH, as in 320x320")
    try:
        sizes = tuple(int(p) for p in parts)
    except (TypeError, ValueError):
        sizes = (0, 0)
    if not all(1 <= s <= MAX_SIDE for s in sizes):
        raise ValueError(f"both sizes are whole numbers from 1 to {MAX_SIDE}")
    return sizes


def _numbers(value: object) -> tuple[float, ...]:
    parts = value.split(":") if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    try:
        numbers = tuple(_number(p) for p in parts)
    except (TypeError, ValueError, ArithmeticError):
        numbers = ()
    if len(numbers) not in {1, 3} or not all(abs(n) < float("inf") for n in numbers):
        raise ValueError("give one number, or one per channel as in 123.7:116.3:103.5; fractions as in 1/255 are taken")
    return numbers


def _number(part: object) -> float:
    if isinstance(part, str) and "/" in part:
        above, below = part.split("/")
        return float(above) / float(below)
    if isinstance(part, bool) or not isinstance(part, str | int | float):
        raise TypeError(part)
    return float(part)
