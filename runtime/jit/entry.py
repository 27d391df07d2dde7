"""Machine code as bytes: what a file of the cache holds, and what lies behind the program in a `.hbm`.

Magic, the length of a JSON head, the head, the object files, the packed constants on a page of their own. The head
holds the key, where these lie, a checksum of either, and one of itself: whatever was damaged is as good as not there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..program import ALIGN
from .code import Code, aligned
from .keys import checksum

MAGIC = b"HBCCODE5"
PAGE = 4096
_DIGEST = 32
_HEAD = len(MAGIC) + 8 + _DIGEST


def write(file: BinaryIO, key: str, code: Code) -> None:
    """Write the entry of `code`, which `key` names, to `file` from where it stands."""
    objects = b"".join(code.objects)
    about = {
        "key": key, "objects": [len(o) for o in code.objects], "packed": int(code.packed.size), "scratch": code.scratch,
        "flipped": list(code.flipped), "stages": code.stages, "work": code.work, "shared": code.shared,
        "objects_sha256": hashlib.sha256(objects).hexdigest(), "packed_checksum": checksum(code.packed),
    }  # fmt: skip
    text = json.dumps(about).encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)
    file.write(bytes(_padding(_HEAD + len(text), ALIGN)))
    file.write(objects)
    file.write(bytes(_padding(_objects_at(len(text)) + len(objects), PAGE)))
    file.write(code.packed.data)


def read(data: memoryview, key: str, *, checked: bool = False) -> Code | None:
    """The code in an entry, its packed constants as they lie in `data`; None where it isn't sound or not of `key`.

    The constants of an entry that was `checked` before are not read.
    """
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEAD:
        return None
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    text = bytes(data[_HEAD : _HEAD + size])
    if hashlib.sha256(text).digest() != data[_HEAD - _DIGEST : _HEAD]:
        return None
    about = json.loads(text)  # written by `write`, as the digest says: its fields are there
    if about["key"] != key:
        return None
    first = _objects_at(size)
    ends = [first + n for n in itertools.accumulate(about["objects"])]
    objects = tuple(bytes(data[a:b]) for a, b in itertools.pairwise([first, *ends]))
    second = ends[-1] + _padding(ends[-1], PAGE)
    packed = np.frombuffer(data[second : second + about["packed"]], np.uint8)
    if hashlib.sha256(b"".join(objects)).hexdigest() != about["objects_sha256"]:
        return None
    if not checked and checksum(packed) != about["packed_checksum"]:
        return None
    counts = (about[k] for k in ("stages", "work", "shared"))
    return Code(objects, _at_line(packed), about["scratch"], tuple(about["flipped"]), *counts)


def _objects_at(size: int) -> int:
    """Where the object files begin, behind a head of `size` bytes."""
    return _HEAD + size + _padding(_HEAD + size, ALIGN)


def _padding(at: int, unit: int) -> int:
    return -at % unit


def _at_line(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`data` itself where it is aligned as kernels want it, else a copy that is."""
    if data.ctypes.data % ALIGN == 0:
        return data
    copy = aligned(data.size)
    copy[:] = data
    return copy
