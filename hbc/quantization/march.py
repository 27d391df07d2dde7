"""The chip that a model is trained for."""

from __future__ import annotations

import enum

from hbc.options import march_named


class March(str, enum.Enum):
    """The marches, by the vendor's names."""

    BERNOULLI2 = "bernoulli2"
    BAYES = "bayes"
    BAYES_E = "bayes-e"
    NASH = "nash-e"
    NASH_E = "nash-e"  # noqa: PIE796 - NASH is a second name of it
    NASH_M = "nash-m"
    NASH_P = "nash-p"


_current = March.NASH_E


def set_march(march: March | str) -> None:
    """The march of every model that is prepared from now on. OptionError, with the nearest name, for an unknown one."""
    global _current  # noqa: PLW0603 - a setting of the process, as the vendor's
    _current = march if isinstance(march, March) else March(march_named(march.lower().replace("_", "-")))


def get_march() -> March:
    """The march that is set; nash-e by default."""
    return _current


def has_int16(march: str) -> bool:
    """False on bernoulli2 (public manual: no int16 feature maps there)."""
    return march != March.BERNOULLI2.value
