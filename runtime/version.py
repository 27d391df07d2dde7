"""The version of hbc and of its runtime, which are released together."""

from __future__ import annotations

__version__ = "0.1.0"
