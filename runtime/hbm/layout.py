"""The container's fixed facts: identifier, version, limits, and where its digest lies."""

from __future__ import annotations

import hashlib

IDENTIFIER = b"HBM1"
VERSION = 4  # with command streams; native code may lie behind it
NATIVE_VERSION = 3  # with native code and without command streams
PLAIN_VERSION = 2  # with neither: a file says no more than it has to, and older runtimes read it
VERSIONS = (PLAIN_VERSION, NATIVE_VERSION, VERSION)
DIGEST_SIZE = 32
PAGE = 4096  # what lies behind the FlatBuffer begins at a multiple of it

GIB = 1 << 30
MAX_FILE = 2 * GIB - 1  # FlatBuffers offsets are 32 bit, and Python's builder stops at 2 GiB
MAX_METADATA = 64 << 20  # bytes besides constants and embedded models; decoding makes about ten times as much of them
MAX_BUFFER = 16 * GIB  # bytes of one tensor, and of a run's arena, inputs and outputs: far above any board's memory
MAX_WORK = 1 << 42  # elementary steps of one run: a thousand times a large network, minutes on one core
MAX_RANK = 8
MAX_TENSORS = 1 << 20
MAX_INSTRUCTIONS = 1 << 18
INT_ATTRIBUTE = (-(1 << 31), (1 << 32) - 1)  # what i32 and u32 hold, so that no kernel's i64 index arithmetic overflows


def digest(data: bytes | bytearray | memoryview, at: int) -> bytes:
    """SHA-256 of `data` without the DIGEST_SIZE bytes at `at`, where the digest itself is stored."""
    view = memoryview(data)
    sha = hashlib.sha256(view[:at])
    sha.update(view[at + DIGEST_SIZE :])
    return sha.digest()


def behind(size: int) -> int:
    """Where in the file native code begins: the first multiple of PAGE behind a FlatBuffer of `size` bytes."""
    return -(-size // PAGE) * PAGE
