"""The `.hbm` container: a FlatBuffer with one program in it."""

from __future__ import annotations

from .layout import IDENTIFIER, VERSION
from .reader import read
from .writer import write

__all__ = ["IDENTIFIER", "VERSION", "read", "write"]
