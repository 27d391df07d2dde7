"""`docs/diagnostics.md` and `hbc help CODE`: every code with its wording, an example, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Diagnostic, render

GROUPS = {
    "E00": "Command line and files",
    "E01": "The text of the IR",
    "E02": "Reading a model",
    "E03": "The verifier",
    "E04": "Passes",
    "E05": "Emission",
    "E06": "Samples",
    "E07": "Comparing",
    "E08": "Quantising",
    "E09": "The quantisation kit for PyTorch",
    "R01": "The runtime",
}
ABOUT = """\
Generated from the classes of `hbc/diagnostics` and `runtime/errors.py`. Every error that hbc raises on purpose has one
of these codes, and `hbc help CODE` prints the same. Each text below is one example: names and values are those of your
model.
"""


@dataclass(frozen=True)
class Entry:
    """One code: its class, what it means, and what its message looks like."""

    code: str
    name: str
    meaning: str
    example: str
    why: str = ""
    hint: str = ""


def codes() -> list[type[Diagnostic]]:
    """The diagnostics with a code of their own, by code."""
    own = [c for c in Diagnostic.__subclasses__() if c.__module__.startswith(f"{__package__}.")]
    return sorted(own, key=lambda c: c.CODE)


def entries() -> dict[str, Entry]:
    """Every code that hbc or its runtime gives to an error, in order."""
    found = {c.CODE: _entry(c) for c in codes()}
    found.update((e.code, e) for e in _of_the_runtime())
    return dict(sorted(found.items()))


def _entry(cls: type[Diagnostic]) -> Entry:
    return Entry(cls.CODE, cls.__name__, _line(cls.__doc__), render(cls(**cls.EXAMPLE)), cls.WHY, cls.HINT)


def _of_the_runtime() -> list[Entry]:
    from hbc_runtime import errors  # loads NumPy: not before someone asks

    kinds = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.HbmError)]
    return [Entry(c.CODE, c.__name__, _line(c.__doc__), f"error[{c.CODE}]: {c.EXAMPLE}") for c in kinds]


def describe(code: str) -> str | None:
    """What `hbc help CODE` prints; None for a code that nothing has."""
    entry = entries().get(code.upper())
    return None if entry is None else f"{entry.code} {entry.name}\n\n{entry.meaning}\n\n{entry.example}"


def catalogue() -> str:
    """`docs/diagnostics.md`: every code with its meaning and an example of its text."""
    parts = ["# Diagnostics\n", ABOUT]
    group = ""
    for entry in entries().values():
        if entry.code[:3] != group:
            group = entry.code[:3]
            parts.append(f"## {group}: {GROUPS[group]}\n")
        example = "\n".join(f"    {line}".rstrip() for line in entry.example.split("\n"))
        parts.append(f"### {entry.code} {entry.name}\n\n{entry.meaning}\n\n{example}\n")
    return "\n".join(parts)


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
