"""What `--explain` and `--report` say, as tables of plain cells; rendered for a terminal, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hbc.report import FOLDED, LayerRow, NodeRow, Report
from hbc.words import human_bytes, human_count, plural, shape_text, some

DEVICE = "runs on"
Short = Callable[[str], str]  # a name as it is shown: shortened in the middle where the terminal is narrow


@dataclass(frozen=True)
class Part:
    """One table; `right` names the columns of numbers."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    title: str = ""
    right: tuple[str, ...] = ()


def parts(report: Report, short: Short = str) -> Iterator[Part]:
    """The tables of a report that have rows."""
    for make in (layers, on_the_cpu, folded, outputs, requantised, constants, tables, notes):
        part = make(report, short)
        if part.rows:
            yield part
    if report.notes:
        yield Part(("noted when the model was read",), [(note,) for note in report.notes])
    yield segments(report)


def layers(report: Report, short: Short) -> Part:
    """The nodes that run, a line for each group that became one computation."""
    columns = ("nodes", "type", DEVICE, "as", "in", "MACs")
    rows = [_layer_cells(g, short) for g in report.groups]
    return Part(columns, rows, f"{report.model} on {report.march}, arith {report.arith}", ("MACs",))


def _layer_cells(g: LayerRow, short: Short) -> tuple[object, ...]:
    work = human_count(g.macs) if g.macs else ""
    return " + ".join(map(short, g.nodes)), " + ".join(g.op_types), g.device, ", ".join(g.ops), g.types, work


def on_the_cpu(report: Report, short: Short) -> Part:
    """Why nodes run on the CPU, and what to try; nodes with one reason share a line."""
    found: dict[tuple[str, str], list[NodeRow]] = {}
    for n in report.layers:
        if n.device == "cpu":
            found.setdefault((n.reason, n.hint), []).append(n)
    rows = [
        (", ".join(f"{short(n.node)} ({n.op_type})" if n.op_type else short(n.node) for n in nodes), why, hint)
        for (why, hint), nodes in found.items()
    ]
    return Part(("on the CPU", "why", "what to try"), rows)


def folded(report: Report, short: Short) -> Part:
    """Nodes of which nothing runs, and what took them away."""
    found: dict[tuple[str, str], list[str]] = {}
    for n in report.layers:
        if n.device == FOLDED:
            found.setdefault((n.by, n.reason), []).append(f"{short(n.node)} ({n.op_type})")
    rows = [(", ".join(names), by, why) for (by, why), names in found.items()]
    return Part(("folded", "by", "why"), rows)


def outputs(report: Report, short: Short) -> Part:
    """Which outputs keep the accumulator's precision, and why the others don't."""
    rows = [
        (
            short(o.name),
            o.dtype,
            shape_text(o.shape),
            f"high: i32, {plural(o.scales, 'scale')}" if o.high_precision else "not high",
            o.reason,
        )
        for o in report.outputs
    ]
    return Part(("output", "dtype", "shape", "precision", "why"), rows)


def requantised(report: Report, short: Short) -> Part:
    """Tensors that get another scale in a step of their own."""
    rows = [(short(r.tensor), r.before, r.after, r.why) for r in report.requantized]
    return Part(("requantised", "from", "to", "why"), rows)


def constants(report: Report, short: Short) -> Part:
    """Constants whose integers or scales aren't the model's; the nodes that read one share a line."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for c in report.constants:
        found.setdefault((c.tensor, c.before, c.after, c.why), []).append(short(c.node))
    rows = [(short(tensor), some(nodes), before, after, why) for (tensor, before, after, why), nodes in found.items()]
    return Part(("constant", "of", "from", "to", "why"), rows)


def tables(report: Report, short: Short) -> Part:
    """Nodes that became look-up tables."""
    rows = [(" + ".join(map(short, t.nodes)), t.kind, t.entries, _error(t.worst)) for t in report.tables]
    return Part(("became a table", "of", "entries", "largest error"), rows, right=("entries",))


def _error(worst: int | None) -> str:
    if worst is None:
        return "not measured"
    return plural(worst, "quantum", "quanta") if worst else "exact"


def notes(report: Report, short: Short) -> Part:
    """Tensors with something to say about them."""
    rows = [
        *((short(t.tensor), short(t.node), f"affine: {t.detail}") for t in report.affine),
        *(
            (short(t.tensor), short(t.node), f"wide: sums of {t.detail} may pass 32 bits, and then saturate")
            for t in report.wide
        ),
    ]
    return Part(("tensor", "node", "affine (a real BPU would refuse it) or wide"), rows)


def segments(report: Report) -> Part:
    """What each segment needs. The CPU's constants are the bytes of its ONNX model."""
    rows = [
        (s.name, s.device, s.steps, human_count(s.macs), human_bytes(s.arena_bytes), human_bytes(s.constant_bytes))
        for s in report.segments
    ]
    columns = ("segment", "on", "steps", "MACs", "arena", "constants")
    return Part(columns, rows, right=columns[2:])
