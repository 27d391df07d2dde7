"""Which tensor of one stage is which of another's, and what became of those that have no counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .facts import Facts
from .stage import Place
from .stored import Pair


@dataclass(frozen=True)
class Absent:
    """A tensor of the reference stage that the other has no tensor for.

    `why`: `inside` an op of the judged stage (`where`: that op and its tensor), a `copy` of a compared tensor
    (`where`), `shape`: one stage's array doesn't fit the other's (`where`: how), or `gone`: its value was known, or
    nothing reads it.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    why: str
    where: str = ""

    def __str__(self) -> str:
        said = {
            "inside": f"inside {self.where}",
            "copy": f"a copy of {self.where!r}",
            "gone": "folded away",
            "shape": self.where,
        }
        return said[self.why]


def pair(source: Sequence[Place], to: Sequence[Place], facts: Facts) -> dict[str, Pair]:
    """The pairs by the judged stage's name, in its running order.

    Names that are the same come first. A tensor none of whose copies (quantised, dequantised, by the model's own nodes)
    has a counterpart of its name is compared with one of the copies that the other stage has.
    """
    theirs = {p.name: p for p in source}
    groups: dict[str, list[Place]] = {}
    for p in source:
        groups.setdefault(facts.group(p.name), []).append(p)
    met = {facts.group(p.name) for p in to if p.name in theirs}
    pairs = {}
    for p in to:
        group = facts.group(p.name)
        copies = [] if group in met else sorted(groups.get(group, ()), key=lambda c: c.quant is None)
        found = theirs.get(p.name) or next(iter(copies), None)
        if found is not None:
            pairs[p.name] = Pair(p, found, quantum_of(p, found, facts))
            met.add(group)
    return pairs


def quantum_of(to: Place, source: Place, facts: Facts) -> float | None:
    """The step to count in: of the judged tensor's scale, else of the other's, else of the float's own quantisation.

    None for a 32-bit accumulator, whose step is far below the model's own.
    """
    quants = [p.quant for p in (to, source) if p.quant is not None and p.dtype != "i32"]
    if not quants and any(p.dtype == "i32" for p in (to, source)):
        return None
    found = facts.quantum(to.name, quants)
    return facts.quantum(source.name, []) if found is None else found


def absent(source: Sequence[Place], to: Sequence[Place], pairs: dict[str, Pair], facts: Facts) -> Iterator[Absent]:
    """The reference stage's tensors that no pair has, in its running order."""
    used = {p.source.name for p in pairs.values()}
    compared = {facts.group(p.source.name): p.to.name for p in pairs.values()}
    makers: dict[str, Place] = {}
    for p in to:
        for node in p.nodes:
            makers.setdefault(node, p)
    for p in source:
        if p.name in used:
            continue
        group = facts.group(p.name)
        maker = next((makers[n] for n in p.nodes if n in makers), None)
        if group in compared:
            yield Absent(p.name, p.op, p.nodes, "copy", compared[group])
        elif maker is not None:
            yield Absent(p.name, p.op, p.nodes, "inside", f"{maker.op} {maker.name!r}")
        else:
            yield Absent(p.name, p.op, p.nodes, "gone")
