"""What becomes of every PyTorch operator that has an import rule: for `docs/torch-operators.md`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .onnx_catalogue import classes_of, how_of, mentions, sentence
from .torch_import import REFUSED
from .torch_ops import RULES
from .torch_recorder import QUANTISERS, SAME


@dataclass(frozen=True)
class TorchOperator:
    """One operator by its whole name: `how` is one of `onnx_catalogue.HOWS`, `becomes` names ops of the IR."""

    name: str
    how: str
    becomes: tuple[str, ...]
    note: str


@cache
def torch_operators() -> tuple[TorchOperator, ...]:
    """Every operator with a rule, by name, then those that are refused with a reason of their own."""
    rows = [_operator(name) for name in sorted(RULES, key=lambda n: (n.partition("::")[0], n.strip("_")))]
    return (*rows, *(TorchOperator(name, "refused", (), hint) for name, hint in sorted(REFUSED.items())))


def _operator(name: str) -> TorchOperator:
    rule, word = RULES[name], name.partition("::")[2]
    quantises = name in QUANTISERS
    classes = classes_of(rule, word, quantises=quantises)
    how = (
        "integers"
        if quantises
        else "folded"
        if word in SAME and not classes
        else how_of(classes, calls=mentions(rule, word, "called"))
    )
    return TorchOperator(name, how, tuple(c.NAME for c in classes), sentence(rule))
