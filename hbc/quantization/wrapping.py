"""`wrap`: a function of the user's that stays whole. It is never quantised and runs on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
RECORDERS: list[Any] = []  # the capture under way, innermost last


def wrap(function: F) -> F:
    """Keep `function` whole in a captured model: one node, real numbers, on the CPU.

    Use it as a decorator of a module-level function of tensors.
    """

    @functools.wraps(function)
    def whole(*args: Any, **kwargs: Any) -> Any:
        if RECORDERS:
            return RECORDERS[-1].whole(whole, args, kwargs)
        return function(*args, **kwargs)

    whole.is_wrapped = True  # type: ignore[attr-defined]
    return whole  # type: ignore[return-value]
