"""What quantising raises."""

from __future__ import annotations

from hbc.diagnostics import CannotQuantize, HbcError


class QuantizeError(HbcError):
    """A model cannot be quantised, or not with these samples or this configuration."""

    FAMILY = CannotQuantize
