"""`docs/marches.md`: the marches' numbers with their sources. Their rules are on pages of their own."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

from hbc.backend.bpu import march as march_module
from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.backend.bpu.rules import RULES
from hbc.catalogue import markdown
from hbc.ir.semantics import Semantics
from hbc.options import MARCH_ALIASES
from hbc_runtime.isa import Rounding
from hbc_runtime.types import DType

from .text import NOTICE, doc

ABOUT_ARITHMETIC = """\
What a march means for integers under `--arith bpu`. [Numerics](numerics.md) has the rest, which all marches share.
"""
ABOUT_LIMITS = """\
Each march has a page with its rules and the rewrites to try. An op within them runs on the BPU if its operands and its
result are quantised. Any other runs on the CPU; `hbc check-ops` and `hbc compile --explain` show which rule said so.
"""

ROUNDINGS = {
    Rounding.HALF_EVEN_F32: "divide in float32, half to even",
    Rounding.HALF_AWAY_F64: "divide in float64, half away from zero",
}
_FIELD = re.compile(r"^    (\w+): [^#\n]*(?:# (.*))?$", re.MULTILINE)


def marches_page() -> str:
    """The marches' numbers with their sources, what each means for arithmetic, and where the rules of each stand."""
    aliases = ", ".join(f"`{alias}` means `{name}`" for alias, name in MARCH_ALIASES.items())
    parts = [
        "# Marches\n",
        NOTICE.format("`hbc/backend/bpu/march.py` and `hbc/backend/bpu/rules`"),
        f"A march is one generation of the BPU; `--march` picks it, and {aliases}.\n",
        doc(march_module),
        "## Numbers\n",
        "*Asked by* names the rules below that look at a number; the others are for information.\n",
        markdown(("", *MARCHES, "source", "asked by"), _march_rows()),
        "## Arithmetic\n",
        ABOUT_ARITHMETIC,
        markdown(("march", "Quantize rounds", "a bias is stored as"), _semantics_rows()),
        "## What each march takes\n",
        ABOUT_LIMITS,
    ]
    rows = ((f"[{m.name}](ops-{m.name}.md)", m.boards, sum(r.where(m) for r in RULES)) for m in MARCHES.values())
    parts.append(markdown(("march", "boards", "rules"), rows))
    return "\n".join(parts)


def _march_rows() -> Iterator[tuple[str, ...]]:
    comments = dict(_FIELD.findall(inspect.getsource(MarchSpec)))
    asked: dict[str, list[str]] = {}
    for rule in RULES:
        for name in sorted(set(re.findall(r"\bmarch\.(\w+)", inspect.getsource(rule.predicate)))):
            asked.setdefault(name, []).append(rule.name)
    for field in dataclasses.fields(MarchSpec):
        if field.name != "name":
            values = [_shown(getattr(m, field.name)) for m in MARCHES.values()]
            yield field.name, *values, comments[field.name], ", ".join(asked.get(field.name, ()))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(d.text if isinstance(d, DType) else str(d) for d in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _semantics_rows() -> Iterator[tuple[str, ...]]:
    for march in MARCHES:
        sem = Semantics(march)
        yield march, ROUNDINGS[sem.rounding], "i16 with a left shift" if sem.bias_is_16_bit else "i32"
