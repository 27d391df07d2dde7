"""What the runtime raises.

HbmError                    anything wrong with a `.hbm`, an input or the machine
├── UnreadableProgram       there is no such file, or it cannot be read
├── HbmFormatError          the bytes are not a sound `.hbm`
├── HbmVersionError         the file was written by a newer or foreign hbc
├── InputMismatch           an input array does not fit the model
├── MissingDependency       a CPU segment needs a package that is not installed
├── OutOfMemory             the machine is too small for a run
├── SessionClosed           a run on a session that is closed
├── NoKernel                this runtime cannot execute an instruction
├── SegmentFailed           ONNX Runtime failed in a CPU segment
├── UnknownModel            the program has no model of that name, or several and none was named
├── TooManyThreads          the system starts no more threads
└── UnknownIsa              HBC_ISA names no instruction set of this machine

CODE is what `docs/diagnostics.md` lists the class under, EXAMPLE one of its texts.
"""

from __future__ import annotations

from typing import ClassVar


class HbmError(Exception):
    """Base of every error that the runtime raises on purpose; its text says what, where, why and what to try."""

    CODE: ClassVar[str] = "R0100"
    EXAMPLE: ClassVar[str] = "the program cannot be run"


class UnreadableProgram(HbmError):  # noqa: N818 - the name says what happened; every base here is an Error already
    """There is no such file, it is no regular file, or it may not be read."""

    CODE = "R0101"
    EXAMPLE = "'modle.hbm' cannot be read: No such file or directory\n  try: give the path of a .hbm file"


class HbmFormatError(HbmError):
    """The bytes are not a sound `.hbm`: an offset, length, enum, shape or plan in them is wrong."""

    CODE = "R0102"
    EXAMPLE = (
        "model.hbm is not a sound .hbm file: its content does not match its SHA-256 digest, so some bytes have changed "
        "since it was written\n  try: compile the model again"
    )


class HbmVersionError(HbmError):
    """The container's schema version is not one that this runtime reads."""

    CODE = "R0103"
    EXAMPLE = (
        "model.hbm has schema version 9, this runtime reads version 1\n"
        "  try: install the hbc that wrote the file, or compile the model again with this one"
    )


class InputMismatch(HbmError):  # noqa: N818
    """An input is missing, unknown, or has another shape or dtype than the model's."""

    CODE = "R0104"
    EXAMPLE = "input 'image': it has shape (1, 224, 224, 3); the model takes (1, 3, 224, 224)"


class MissingDependency(HbmError):  # noqa: N818
    """A package that this program needs (ONNX Runtime, for CPU segments) is not installed."""

    CODE = "R0105"
    EXAMPLE = "segment 'cpu_1' needs ONNX Runtime, which is not installed\n  try: pip install hbc[cpu]"


class OutOfMemory(HbmError):  # noqa: N818
    """A run needs more memory than this machine has."""

    CODE = "R0106"
    EXAMPLE = "a run of this model needs an arena of 9663676416 bytes, which this machine does not have"


class SessionClosed(HbmError):  # noqa: N818
    """A run was asked for after `close`."""

    CODE = "R0107"
    EXAMPLE = "the session is closed; make a new Session to run the model again"


class NoKernel(HbmError):  # noqa: N818
    """This runtime has no machine code for an instruction of the program."""

    CODE = "R0108"
    EXAMPLE = "cannot compile conv2d (from Conv_3): this runtime has no kernel for it; a newer hbc_runtime may"


class SegmentFailed(HbmError):  # noqa: N818
    """ONNX Runtime failed while it ran a CPU segment."""

    CODE = "R0109"
    EXAMPLE = "segment 'cpu_1': ONNX Runtime failed: indices element out of data bounds"


class UnknownModel(HbmError):  # noqa: N818
    """The program holds several models and none was named, or none of the name that was given."""

    CODE = "R0110"
    EXAMPLE = "the program has no model 'yolo'; pass model= one of 'yolov5s', 'yolov5m'"


class TooManyThreads(HbmError):  # noqa: N818
    """The system starts fewer threads than the session asked for."""

    CODE = "R0111"
    EXAMPLE = "only 3 of 64 threads could be started (can't start new thread); open the model with fewer threads"


class UnknownIsa(HbmError):  # noqa: N818
    """The environment variable HBC_ISA names no instruction set that this machine has."""

    CODE = "R0112"
    EXAMPLE = "HBC_ISA is 'avx9'; this machine runs avx2, sse2\n  try: one of these, or unset it for the best"
