"""Ways to damage a file, from a seeded generator, so that a failure is one number to write down."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from hbc_runtime.hbm.writer import seal

INTERESTING = (
    0, 1, 2, 3, 4, 7, 8, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 1 << 24, 0x7FFFFFFF, 0x80000000, 2**32 - 1,
)  # fmt: skip


def _flip(r: random.Random, data: bytearray) -> None:
    for _ in range(r.choice((1, 1, 2, 8))):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)


def _byte(r: random.Random, data: bytearray) -> None:
    for _ in range(r.choice((1, 1, 4))):
        data[r.randrange(len(data))] = r.randrange(256)


def _number(r: random.Random, data: bytearray) -> None:
    size, code = r.choice(((2, "<H"), (4, "<I"), (4, "<I"), (8, "<Q")))
    if len(data) < size:
        return
    at = r.randrange(0, len(data) - size + 1, size)
    value = r.choice((*INTERESTING, len(data), len(data) - at))
    if r.random() < 0.3:
        value = struct.unpack_from(code, data, at)[0] + r.choice((-64, -8, -4, -1, 1, 4, 8, 64))
    struct.pack_into(code, data, at, value % (1 << 8 * size))


def _truncate(r: random.Random, data: bytearray) -> None:
    del data[r.randrange(len(data)) :]


def _splice(r: random.Random, data: bytearray) -> None:
    n = r.choice((4, 8, 16, 64))
    a, b = r.randrange(len(data)), r.randrange(len(data))
    data[a : a + n] = data[b : b + n]


def _insert(r: random.Random, data: bytearray) -> None:
    at = r.randrange(len(data))
    data[at:at] = bytes(r.randrange(256) for _ in range(r.choice((1, 4, 16))))


def _delete(r: random.Random, data: bytearray) -> None:
    at = r.randrange(len(data))
    del data[at : at + r.choice((1, 4, 16))]


def _random(r: random.Random, data: bytearray) -> None:
    del data[8:]
    data.extend(r.randbytes(r.randrange(512)))


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _byte, _number, _number, _number, _splice, _truncate, _insert, _delete, _random,
)  # fmt: skip


def mutate(seed: int, data: bytes) -> bytes:
    """`data` after one to three mutations, with its digest made right where that is still possible.

    Without a right digest nearly every mutation would end at the digest, and nothing behind it would be tried.
    """
    r, out = random.Random(seed), bytearray(data)
    for _ in range(r.randint(1, 3)):
        if out:
            r.choice(MUTATIONS)(r, out)
    if r.random() < 0.9:
        try:
            return seal(out)
        except (ValueError, struct.error):
            pass  # no digest to be found any more: the reader is to say so
    return bytes(out)
