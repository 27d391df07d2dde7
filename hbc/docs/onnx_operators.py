"""`docs/onnx-operators.md`: every ONNX operator and what hbc makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hbc.catalogue import markdown
from hbc.frontend.onnx_catalogue import HOWS, Operator, newest_opset, operators
from hbc.frontend.onnx_dialects import REFUSED

from .text import NOTICE, linked

ABOUT = """\
What hbc makes of each operator, read off the import rules. *integers*, *table* and *composite* hold where operands and
result are quantised, within the limits of the op ([ops](ops.md)) and of the march ([marches](marches.md)); where they
aren't, the op runs on the CPU in reals, and `hbc compile --explain` names what is in the way. A rule may also leave
single nodes to ONNX Runtime: the note says which. Any operator without a rule is a CPU call, if ONNX Runtime has it.
"""


def onnx_operators_page() -> str:
    """ONNX's own operators, those of other domains, and those that are refused."""
    own = [o for o in operators() if not o.domain]
    counts = Counter(o.how for o in own)
    parts = [
        "# ONNX operators\n",
        NOTICE.format("the import rules (`hbc/frontend/onnx_ops`) and ONNX's own list"),
        f"ONNX's own domain up to opset {newest_opset()} has {len(own)} operators:\n",
        markdown(("", "operators", "means"), ((how, counts[how], text) for how, text in HOWS.items() if counts[how])),
        ABOUT,
        "## ai.onnx\n",
        _table(own),
    ]
    for domain in sorted({o.domain for o in operators() if o.domain}):
        parts += [f"## {domain}\n", _table([o for o in operators() if o.domain == domain])]
    parts += ["## Refused\n", "Operators of other tools that no integers can stand for.\n"]
    parts.append(markdown(("operator", "why"), sorted(REFUSED.items())))
    return "\n".join(parts)


def _table(rows: Sequence[Operator]) -> str:
    return markdown(("operator", "opset", "becomes", "ops", "note"), _cells(rows))


def _cells(rows: Sequence[Operator]) -> Iterator[tuple[str, ...]]:
    for o in rows:
        ops = ", ".join(f"`{name}`" for name in o.becomes)
        yield o.name, str(o.since or ""), o.how, ops, linked(o.note)
