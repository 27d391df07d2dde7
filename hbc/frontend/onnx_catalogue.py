"""What becomes of every ONNX operator, read off the import rules: for `docs/onnx-operators.md` and `hbc ops`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType

import onnx

from hbc.ir import fixed_point, ops
from hbc.ir.core import Op

from .onnx_dialects import REFUSED
from .onnx_model import NEWEST
from .onnx_ops import RULES
from .onnx_ops.registry import Key

# Operators that the walk itself answers, without a rule.
AT_IMPORT = {
    "Constant": "its value is read",
    "ConstantOfShape": "where its shape is known",
    "Shape": "shapes are static",
    "Size": "shapes are static",
    "If": "where its condition is known; else a CPU call",
}
HOME = "hbc.frontend."
_TOOLS = ("building", "onnx_node", "onnx_scope", "onnx_infer", "onnx_tensors", "problem", "torch_node", "torch_api")
TOOLS = {f"{HOME}{name}" for name in _TOOLS}
AS_IT_IS = {"Identity", "Dropout"}
PLUMBING = (ops.Const, ops.Cast, ops.Reinterpret, ops.Quantize, ops.Dequantize)  # what rules use beside what they say
HOWS = {
    "integers": "an instruction or several on the BPU, where operands and result are quantised",
    "table": "a look-up table on the BPU, where it is a function of one quantised tensor",
    "composite": "several instructions on the BPU, where operand and result are quantised",
    "folded": "nothing runs: its value is known, or it changes nothing",
    "CPU call": "ONNX Runtime runs it",
    "refused": "an error that says why",
}


@dataclass(frozen=True)
class Operator:
    """One operator: `since` is the opset of its newest definition, `becomes` names ops of the IR."""

    domain: str
    name: str
    since: int
    how: str
    becomes: tuple[str, ...]
    note: str


@cache
def operators() -> tuple[Operator, ...]:
    """Every operator of ONNX's own domain as the installed onnx lists them, then those of other domains with a rule."""
    own = {s.name: s for s in onnx.defs.get_all_schemas() if not s.domain and s.since_version <= NEWEST}
    rows = [_operator("", name, own[name].since_version) for name in sorted(own)]
    others = sorted(k for k in RULES if k[0])
    return (*rows, *(_operator(domain, name, 0) for domain, name in others))


def newest_opset() -> int:
    """The newest opset that both the installed onnx and the rules know."""
    return min(NEWEST, onnx.defs.onnx_opset_version())


def operators_of(cls: type[Op]) -> tuple[str, ...]:
    """The ONNX operators that become `cls`, by name; those of other domains with their domain."""
    found = []
    for domain, name in RULES:
        if cls in _classes((domain, name)):
            found.append(f"{domain}.{name}" if domain else name)
    return tuple(sorted(found, key=lambda n: ("." in n, n)))


def _operator(domain: str, name: str, since: int) -> Operator:
    rule = RULES.get((domain, name))
    if rule is None:
        how = "folded" if name in AT_IMPORT else "refused" if name in REFUSED else "CPU call"
        return Operator(domain, name, since, how, (), AT_IMPORT.get(name) or REFUSED.get(name, ""))
    classes = _classes((domain, name))
    calls = "call" in _names(rule, name)
    how = "folded" if name in AS_IT_IS else _how((domain, name), classes, calls=calls)
    return Operator(domain, name, since, how, tuple(c.NAME for c in classes), sentence(rule))


def _how(key: Key, classes: tuple[type[Op], ...], *, calls: bool) -> str:
    if _quantises(key):
        return "integers"
    return how_of(classes, calls=calls)


def how_of(classes: tuple[type[Op], ...], *, calls: bool) -> str:
    """One of HOWS, by the op classes that a rule builds."""
    work = [c for c in classes if c not in PLUMBING]
    if not work:
        return "CPU call" if calls or classes else "folded"
    if any(issubclass(c, ops.Composite) for c in work):
        return "composite"
    if any(c in fixed_point.DERIVE for c in work):
        return "integers"
    return "table" if any(issubclass(c, (ops.Unary, ops.Binary)) for c in work) else "CPU call"


def sentence(rule: object) -> str:
    """The first sentence of what a rule says of itself."""
    text = " ".join(inspect.cleandoc(getattr(rule, "__doc__", None) or "").split("\n\n")[0].split())
    return text.rstrip(".")


# ---- reading a rule


@cache
def _classes(key: Key) -> tuple[type[Op], ...]:
    return classes_of(RULES[key], key[1], quantises=_quantises(key))


def classes_of(rule: Callable[..., object], op_type: str, *, quantises: bool) -> tuple[type[Op], ...]:
    """The op classes that a rule may build for an operator, what the rest of it uses last."""
    met = [t for t in _things(rule, op_type) if isinstance(t, type) and issubclass(t, Op)]
    real = [c for c in met if c.NAME and c not in ops.CALLS]
    work = [c for c in real if c not in PLUMBING or (quantises and c in (ops.Quantize, ops.Dequantize))]
    return tuple(dict.fromkeys(work or real))


def _quantises(key: Key) -> bool:
    """True where quantising is what an operator is for, and not what a rule does beside it."""
    return key[1].endswith(("QuantizeLinear", "DequantizeLinear", "Calibration")) or key[1].startswith("Hz")


def mentions(rule: Callable[..., object], op_type: str, name: str) -> bool:
    """True where a rule's code, or that of a function it uses, says `name`."""
    return name in _names(rule, op_type)


@cache
def _names(rule: Callable[..., object], op_type: str) -> frozenset[str]:
    found: set[str] = set()
    for code in _codes(rule):
        found.update(code.co_names)
    found.update(f.__name__ for f in _things(rule, op_type) if isinstance(f, FunctionType))
    return frozenset(found)


def _things(rule: Callable[..., object], op_type: str) -> Iterator[object]:
    """What a rule's code names, functions of the front end's rules followed; of a table the row of the operator."""
    waiting: list[object] = [rule]
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, dict):
            waiting += [thing[name] for name in _spellings(op_type) if name in thing]
        elif isinstance(thing, (tuple, list)):
            waiting += thing
        elif isinstance(thing, FunctionType) and thing.__module__.startswith(HOME) and thing.__module__ not in TOOLS:
            waiting += [c.cell_contents for c in thing.__closure__ or ()]
            for code in _codes(thing):
                named = [thing.__globals__[n] for n in code.co_names if n in thing.__globals__]
                waiting += [t for t in named if t is not ops]
                waiting += [getattr(ops, n) for n in code.co_names if ops in named and hasattr(ops, n)]


def _spellings(op_type: str) -> list[str]:
    """How tables of rules may call an operator: `QLinearSigmoid`, `Sigmoid`, `sigmoid`; `HardSwish`, `hard_swish`."""
    plain = op_type.removeprefix("QLinear")
    return [op_type, plain, plain.lower(), re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).lower()]


def _codes(function: object) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    waiting = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            yield code
            waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
