"""The command line: verbs that call the driver and render what it returns. The only part of hbc that prints."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
