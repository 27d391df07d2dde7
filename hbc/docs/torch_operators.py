"""`docs/torch-operators.md`: every PyTorch operator that hbc takes, and what it makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hbc.catalogue import markdown
from hbc.frontend.onnx_catalogue import HOWS
from hbc.frontend.torch_catalogue import TorchOperator, torch_operators

from .text import NOTICE, linked

ABOUT = """\
What hbc makes of each operator, read off the import rules. *integers*, *table* and *composite* hold where operands and
result are quantised, within the limits of the op ([ops](ops.md)) and of the march ([marches](marches.md)); where they
aren't, the op runs on the CPU in reals. A name with `_` behind it is the same operator in place.

An operator that isn't here is taken where PyTorch itself computes it by operators that are: `aten::einsum`,
`aten::lstm`, `aten::cosine_similarity` and many others. [TorchScript and .pt2](torchscript.md) says how.
"""
DOMAINS = {
    "aten": "PyTorch's own operators.",
    "hbc": "What hbc's own quantisation kit writes.",
    "quantized": "Of models that `torch.ao` converted.",
    "quantized_decomposed": "Of exported models whose quantisation is said by plain integers.",
}


def torch_operators_page() -> str:
    """The operators by namespace."""
    rows = torch_operators()
    counts = Counter(o.how for o in rows)
    parts = [
        "# PyTorch operators\n",
        NOTICE.format("the import rules (`hbc/frontend/torch_ops`)"),
        f"{len(rows)} operators have a rule:\n",
        markdown(("", "operators", "means"), ((how, counts[how], _means(how)) for how in HOWS if counts[how])),
        ABOUT,
    ]
    for domain, text in DOMAINS.items():
        parts += [f"## {domain}\n", f"{text}\n", _table([o for o in rows if o.name.startswith(f"{domain}::")])]
    return "\n".join(parts)


def _means(how: str) -> str:
    return "it runs on the CPU, in reals" if how == "CPU call" else HOWS[how]


def _table(rows: Sequence[TorchOperator]) -> str:
    return markdown(("operator", "becomes", "ops", "note"), _cells(rows))


def _cells(rows: Sequence[TorchOperator]) -> Iterator[tuple[str, ...]]:
    for o in rows:
        ops = ", ".join(f"`{name}`" for name in o.becomes)
        yield o.name.partition("::")[2], o.how.replace("CPU call", "CPU"), ops, linked(o.note)
