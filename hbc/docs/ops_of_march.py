"""`docs/ops-<march>.md`: what a march takes, read off the predicates that the compiler asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.backend.bpu.rules import RULES, Rule
from hbc.catalogue import markdown
from hbc.frontend.onnx_catalogue import operators
from hbc.ir import ops

from .text import NOTICE, one_line

ABOUT = """\
What {name} ({boards}) runs: {activations} activations, {weights} weights. An op that keeps these rules runs on the BPU
if its operands and its result are quantised; any other runs on the CPU. `hbc check-ops MODEL --march {name}` says for
each node of a model which rules it breaks, and with which value. The numbers behind them: [marches](marches.md).
"""
NOT_ASKED = """\
## What the manuals say and hbc does not ask

- The manuals run Reshape and Transpose of bernoulli2 on the CPU, want strides of a transposed convolution on nash below
  its kernel, and divide in i16 alone on bayes. hbc takes these, as its executor has them; a board may refuse them.
- Operators without any form on the BPU (TopK, CumSum, Conv3D with strides of 3, deformable convolutions) are the
  CPU's on every march: [ONNX operators](onnx-operators.md).
"""
MANY = 12  # ops that a row names; a rule over more is one over arithmetic at large


def pages() -> dict[str, Callable[[], str]]:
    """Every march's page by its file name."""
    return {f"ops-{name}.md": _maker(march) for name, march in MARCHES.items()}


def _maker(march: MarchSpec) -> Callable[[], str]:
    return lambda: ops_of_march_page(march)


def ops_of_march_page(march: MarchSpec) -> str:
    """The rules of one march, each with the ONNX operators that it is about and the rewrite to try."""
    about = ABOUT.format(
        name=march.name, boards=march.boards, activations=march.activation_names, weights=march.weight_names
    )
    kept = [rule for rule in RULES if rule.where(march)]
    rows = ((r.name, _operators(r), one_line(r.text(march)), r.advice(march)) for r in kept)
    table = markdown(("rule", "ONNX operators", "says", "try"), rows)
    parts = [
        f"# What {march.name} takes\n", NOTICE.format("`hbc/backend/bpu/rules` and `hbc/backend/bpu/march.py`"), about,
        "## Rules\n", table, *_whole(march), NOT_ASKED,
    ]  # fmt: skip
    return "\n".join(parts)


def _whole(march: MarchSpec) -> Iterator[str]:
    if march.max_outputs:
        yield f"## The model as a whole\n\nAt most {march.max_outputs} outputs: `hbc check-ops` warns beyond.\n"


def _operators(rule: Rule) -> str:
    """The ONNX operators that may become an op of the rule's; the ops where no operator is named after them."""
    mine = {name for name, cls in ops.TABLE.items() if issubclass(cls, rule.classes)}
    if mine == {"lut", "segment_lut"}:
        return "functions of one tensor (Sigmoid, Tanh, Gelu, Exp, …)"
    found = sorted({o.name for o in operators() if not o.domain and mine & set(o.becomes)})
    return (
        ", ".join(found) if 0 < len(found) <= MANY else f"{len(found)} operators" if found else ", ".join(sorted(mine))
    )
