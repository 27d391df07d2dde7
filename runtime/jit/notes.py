"""What is known of `.hbm` files that were read and checked before, so that opening one again takes no reading.

A note lies in the cache's folder and is named after a file's device and inode. It holds for as long as size, time of
writing and time of change are what they were: the last of these moves with every write and cannot be set back by who
writes. A note about a file that was written moments ago would not tell a second write from the first, so there is none.
In the same way a note tells in which state the cache's entry of the model's code was found sound.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
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
from .obtain import is_made, state

MAGIC = b"HBCNOTE2"
SETTLED = 2.0  # seconds: the coarsest clock that file systems write times by
_HEAD = len(MAGIC) + 32


@dataclass(frozen=True)
class Note:
    """What is known of a file's only model: its outline, its fingerprint, and where its code was found sound."""

    outline: Outline
    content: str
    code: cache.State | None


def find(opened: Opened) -> Note | None:
    """What is known of the only model of a file, where there is a note that holds."""
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
    note = json.loads(text)  # written by `_write`, as the digest says: its fields are there
    if note["about"] != _about(opened):
        return None
    return Note(_outline(note, opened.data), note["content"], None if note["code"] is None else tuple(note["code"]))


def keep(opened: Opened, outline: Outline, model: Model, *, sound: bool = True) -> None:
    """Note that the file holds a sound program with just this model, where its code will be found again.

    `sound` says that the cache's entry, as it lies there, was written or checked just now. Models with CPU segments are
    not noted: making those ready takes their ONNX, and far longer than reading does.
    """
    place = _place(opened)
    if place is None or any(step is not None for step in outline.steps) or not _settled(opened):
        return
    content = keys.fingerprint(model)
    if is_made(content, host(), outline.natives):
        _write(place, opened, Note(outline, content, _settled_state(entry_of(content)) if sound else None))


def entry_of(content: str) -> cache.State | None:
    """The state of the cache's entry for the model with that fingerprint; None where there is none."""
    return state(content, host())


def renew(opened: Opened, note: Note, code: cache.State | None) -> None:
    """Note that the model's code was found sound in the state `code`, which was asked for before it was checked."""
    place, code = _place(opened), _settled_state(code)
    if place is not None and code is not None and code != note.code:
        _write(place, opened, Note(note.outline, note.content, code))


def _settled_state(code: cache.State | None) -> cache.State | None:
    """That state, unless it is so fresh that a write may follow that leaves it as it is."""
    return code if code is not None and time.time() - code[3] * 1e-9 > SETTLED else None


def _write(place: Path, opened: Opened, note: Note) -> None:
    facts = {"about": _about(opened), "content": note.content, "code": note.code}
    text = json.dumps({**_plain(note.outline, opened.data), **facts}).encode()
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
    return [__version__, *cache.state_of(s)]


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
