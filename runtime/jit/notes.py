"""What is known of `.hbm` files that were read and checked before, so that opening one again takes no reading.

A note lies in the cache's folder and is named after a file's device and inode. It holds for as long as size, time of
writing and time of change are what they were: the last of these moves with every write and cannot be set back by who
writes. A note about a file that was written moments ago would not tell a second write from the first, so there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..outline import Outline
from ..program import Constants, Model, NativeCode, TensorInfo
from ..source import Opened
from ..types import DType, Layout, Quant
from ..version import __version__
from . import cache, keys
from .host import host
from .obtain import is_made

MAGIC = b"HBCNOTE1"
SETTLED = 2.0  # seconds: the coarsest clock that file systems write times by
_HEAD = len(MAGIC) + 32


def find(opened: Opened) -> tuple[Outline, str] | None:
    """The outline of the only model of a file, and its fingerprint, where there is a note that holds."""
    place = _place(opened)
    if place is None:
        return None
    try:
        data = place.read_bytes()
        if not cache.is_ours(place):
            return None
    except OSError:
        return None
    text = data[_HEAD:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(text).digest() != data[len(MAGIC) : _HEAD]:
        return None
    note = json.loads(text)  # written by `keep`, as the digest says: its fields are there
    return (_outline(note, opened.data), note["content"]) if note["about"] == _about(opened) else None


def keep(opened: Opened, outline: Outline, model: Model) -> None:
    """Note that the file holds a sound program with just this model, where its code will be found again.

    Models with CPU segments are not noted: making those ready takes their ONNX, and far longer than reading does.
    """
    place = _place(opened)
    if place is None or any(step is not None for step in outline.steps) or not _settled(opened):
        return
    content = keys.fingerprint(model)
    if not is_made(content, host(), outline.natives):
        return
    text = json.dumps({**_plain(outline, opened.data), "about": _about(opened), "content": content}).encode()
    cache.put(place, lambda file: file.write(MAGIC + hashlib.sha256(text).digest() + text))


def _place(opened: Opened) -> Path | None:
    """Where the note about a file is; None for a buffer, without a cache, and where times of change mean little."""
    folder = cache.folder() if opened.status is not None and hasattr(os, "getuid") else None
    if folder is None or opened.status is None:
        return None
    return folder / f"{opened.status.st_dev:x}-{opened.status.st_ino:x}{cache.NOTE_SUFFIX}"


def _about(opened: Opened) -> list[object]:
    """Which state of which file a note is about, and which runtime checked it."""
    s = opened.status
    assert s is not None
    return [__version__, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]


def _settled(opened: Opened) -> bool:
    s = opened.status
    assert s is not None
    return time.time() - max(s.st_mtime, s.st_ctime) > SETTLED


# ---- outlines as JSON


def _plain(o: Outline, data: memoryview) -> dict[str, Any]:
    natives = [[n.model, n.key, n.cpu, n.features, n.made_by, *_span(n.data, data)] for n in o.natives]
    return {
        "march": o.march, "arith": o.arith, "name": o.name, "inputs": [_plain_info(i) for i in o.inputs],
        "outputs": [_plain_info(i) for i in o.outputs], "arena_size": o.arena_size, "steps": len(o.steps),
        "constants": _span(o.constants, data), "natives": natives,
    }  # fmt: skip


def _outline(note: dict[str, Any], data: memoryview) -> Outline:
    natives = tuple(_native(row, data) for row in note["natives"])
    return Outline(
        note["march"], note["arith"], note["name"], tuple(map(_info, note["inputs"])),
        tuple(map(_info, note["outputs"])), note["arena_size"], (None,) * note["steps"],
        _slice(data, *note["constants"]), natives,
    )  # fmt: skip


def _native(row: list[Any], data: memoryview) -> NativeCode:
    model, key, cpu, features, made_by, first, size = row
    return NativeCode(model, key, cpu, features, made_by, _slice(data, first, size))


def _plain_info(i: TensorInfo) -> list[Any]:
    quant = None if i.quant is None else [i.quant.scale, i.quant.zero_point, i.quant.axis]
    return [i.name, i.shape, int(i.dtype), int(i.layout), quant, i.tensor]


def _info(plain: list[Any]) -> TensorInfo:
    name, shape, dtype, layout, quant, tensor = plain
    if quant is not None:
        scale, zero_point, axis = quant
        quant = Quant(tuple(scale), tuple(zero_point), axis)
    return TensorInfo(name, tuple(shape), DType(dtype), Layout(layout), quant, tensor)


def _span(part: Constants, whole: memoryview) -> tuple[int, int]:
    """Where in the file a part of it lies, and how long it is."""
    if not len(part):
        return 0, 0
    first = np.frombuffer(part.data, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    return first, len(part)


def _slice(data: memoryview, first: int, size: int) -> Constants:
    return Constants(data[first : first + size])
