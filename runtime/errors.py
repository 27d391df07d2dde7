"""What the runtime raises.

HbmError                    anything wrong with a `.hbm`, an input or the machine
├── HbmFormatError          the bytes are not a sound `.hbm`
├── HbmVersionError         the file was written by a newer or foreign hbc
├── InputMismatch           an input array does not fit the model
└── MissingDependency       a CPU segment needs a package that is not installed
"""

from __future__ import annotations


class HbmError(Exception):
    """Base of every error that the runtime raises on purpose; its text says what, where, why and what to try."""


class HbmFormatError(HbmError):
    """The bytes are not a sound `.hbm`: an offset, length, enum, shape or plan in them is wrong."""


class HbmVersionError(HbmError):
    """The container's schema version is not one that this runtime reads."""


class InputMismatch(HbmError):  # noqa: N818 - the name says what happened; every base here is an Error already
    """An input is missing, unknown, or has another shape or dtype than the model's."""


class MissingDependency(HbmError):  # noqa: N818
    """A package that this program needs (ONNX Runtime, for CPU segments) is not installed."""
