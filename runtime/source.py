"""What a user names as a program, opened: a file, mapped, or a buffer. Nothing of it is read here."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .errors import UnreadableProgram

Source = bytes | bytearray | memoryview | str | os.PathLike[str]


@dataclass(frozen=True)
class Opened:
    """The bytes of a program, and how messages call them. Of a file also its mapping, and its state when opened."""

    name: str
    data: memoryview
    status: os.stat_result | None = None
    mapping: mmap.mmap | None = None

    def release(self) -> None:
        """Say that the mapped pages read so far are not needed soon: they stop counting as the process's memory."""
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)  # of a file's own pages: they are read again where they are missed


def open_source(source: Source) -> Opened:
    """`source`, mapped where it is a path. Raises UnreadableProgram for one that cannot be read."""
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source)
        frozen = view.readonly and view.format == "B" and view.ndim == 1 and view.c_contiguous
        # nobody may change it after the checks
        return Opened("the buffer", view if frozen else memoryview(view.tobytes()))
    path = Path(source)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block, a device might never end
            msg = f"{path} is not a regular file\n  try: give the path of a .hbm file"
            raise UnreadableProgram(msg)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:  # cannot be mapped
                return Opened(str(path), memoryview(b""))
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return Opened(str(path), memoryview(mapping), status, mapping)
    except (OSError, ValueError) as err:  # ValueError: a NUL in the path, or the file shrank to nothing meanwhile
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        msg = f"{str(source)!r} cannot be read: {reason}\n  try: give the path of a .hbm file"
        raise UnreadableProgram(msg) from err
