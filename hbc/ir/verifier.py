"""What every graph obeys, whatever its ops: checked after each pass, always."""

from __future__ import annotations

import math

from hbc.diagnostics import VerifyError

from .core import Graph, Module, Op, Use, Value
from .kinds import attr_kinds
from .location import FusedLoc
from .ops.misc import CALLS, CallGraph
from .types import DYNAMIC, TensorType

DEVICES = ("bpu", "host", "cpu")


def verify(module: Module) -> None:
    """Raise VerifyError, naming op and node, where the module breaks a law:

    FORM: operands, attributes and results are as the op's class declares.  SSA: every operand is defined above its op.
    USES: use lists and operands say the same.
    TYPE: sizes are known (but for outputs of a call_graph) and not negative, quantisations fit their tensors.
    NAMES: arguments and outputs have distinct names.  OUTPUTS: there are some, and they are values of this graph.
    (C1) …: the numbered constraints of the op's class.
    """
    graph = module.graph
    _verify_border(graph)
    seen = set(graph.args)
    for op in graph.ops:
        _verify_form(op)
        for value in op.operands:
            if value is not None and value not in seen:
                raise _broken(op, "SSA", f"operand {_named(value)} is not defined above it")
        _verify_results(op, seen)
        seen.update(op.results)
        _verify_constraints(op)
    for out in graph.outputs:
        _require_graph(graph, "OUTPUTS", out.value in seen, f"{out.name!r} is {_named(out.value)}, which no op makes")
    _verify_uses(graph, seen)


def _broken(op: Op, law: str, message: str) -> VerifyError:
    return VerifyError(op=op.NAME, node=_node(op), constraint=law, message=message)


def _require(op: Op, law: str, ok: bool, message: str) -> None:  # noqa: FBT001
    if not ok:
        raise _broken(op, law, message)


def _require_graph(graph: Graph, law: str, ok: bool, message: str) -> None:  # noqa: FBT001
    if not ok:
        raise VerifyError(op="graph", node=graph.name, constraint=law, message=message)


def _is_located(op: Op) -> bool:
    return not isinstance(op.loc, FusedLoc) or bool(op.loc.parts)


def _node(op: Op) -> str:
    return op.node if _is_located(op) else "?"


def _named(value: Value | None) -> str:
    return "none" if value is None else repr(value.name) if value.name is not None else f"an unnamed {value.type}"


# ---- the graph


def _verify_border(graph: Graph) -> None:
    for i, arg in enumerate(graph.args):
        _require_graph(graph, "FORM", arg.owner is graph and arg.index == i, f"argument {i} belongs elsewhere")
        wrong = type_fault(arg.type)
        _require_graph(graph, "TYPE", not wrong, f"argument {arg.name!r}: {wrong}")
    for what, names in (("arguments", [a.name for a in graph.args]), ("outputs", [o.name for o in graph.outputs])):
        twice = next((n for i, n in enumerate(names) if n in names[:i]), None) if len(set(names)) < len(names) else None
        _require_graph(graph, "NAMES", twice is None, f"two {what} are named {twice!r}")
        _require_graph(graph, "NAMES", None not in names, f"one of the {what} has no name")
    _require_graph(graph, "OUTPUTS", bool(graph.outputs), "it returns nothing")


def _verify_uses(graph: Graph, values: set[Value]) -> None:
    """Every reading is in its value's use list once, and nothing else is."""
    expected: dict[Value, set[Use]] = {v: set() for v in values}
    for op in graph.ops:
        for i, value in enumerate(op.operands):
            if value is not None:
                expected[value].add(Use(op, i))
    for i, out in enumerate(graph.outputs):
        expected[out.value].add(Use(None, i))
    for value, uses in expected.items():
        if len(value.uses) != len(uses) or set(value.uses) != uses:
            strange = next((u for u in value.uses if u not in uses), None)
            reader = "one is missing or doubled" if strange is None else f"{strange.op or 'an output'} is not a reader"
            message = f"the use list of {_named(value)} is wrong: {reader}"
            if value.op is not None:
                raise _broken(value.op, "USES", message)
            _require_graph(graph, "USES", False, message)  # noqa: FBT003


# ---- one op


def _verify_form(op: Op) -> None:
    _require(op, "FORM", _is_located(op), "its location names no place")
    fixed = [o for o in op.OPERANDS if not o.variadic]
    variadic = len(fixed) < len(op.OPERANDS)
    counted = len(op.operands) >= len(fixed) if variadic else len(op.operands) == len(fixed)
    want = f"{len(fixed)} or more" if variadic else f"{len(fixed)}"
    _require(op, "FORM", counted, f"it has {len(op.operands)} operands, not {want}")
    for i, value in enumerate(op.operands):
        spec = op.OPERANDS[min(i, len(op.OPERANDS) - 1)]
        _require(op, "FORM", value is not None or spec.optional, f"operand {i} ({spec.name!r}) is missing")
    kinds = attr_kinds(type(op))
    if op.attrs.keys() != kinds.keys():
        raise _broken(op, "FORM", f"its attributes are {sorted(op.attrs)}, not {sorted(kinds)}")
    for name, kind in kinds.items():
        try:
            kind.conform(op.attrs[name])
        except TypeError as error:
            raise _broken(op, "FORM", f"attribute {name!r}: {error}") from None
    if op.placement is not None:
        _require(op, "FORM", op.placement.device in DEVICES, f"it is placed on {op.placement.device!r}")


def _verify_results(op: Op, seen: set[Value]) -> None:
    one = len(op.results) == 1 or isinstance(op, CALLS)
    _require(op, "FORM", one, f"it has {len(op.results)} results, not 1")
    for i, result in enumerate(op.results):
        _require(op, "FORM", result.owner is op and result.index == i, f"result {i} belongs to another op")
        if result in seen:
            raise _broken(op, "SSA", f"it makes {_named(result)} again")
        may_be_dynamic = isinstance(op, CallGraph) and result.is_output and not result.users
        wrong = type_fault(result.type, may_be_dynamic=may_be_dynamic)
        _require(op, "TYPE", not wrong, f"result {i}: {wrong}")


def _verify_constraints(op: Op) -> None:
    try:
        op.verify()
    except VerifyError:
        raise
    except Exception as error:  # a constraint that cannot even be evaluated (an axis that is not there) is broken
        message = f"its shapes and attributes do not fit together ({type(error).__name__}: {error})"
        raise _broken(op, "FORM", message) from error


def type_fault(t: TensorType, *, may_be_dynamic: bool = False) -> str:
    """What is wrong with a type, or "" where it is sound."""
    if t.is_dynamic and not may_be_dynamic:
        return f"{t} has an open size, which only results of call_graph may have that are outputs and nothing else"
    if any(d < 0 and d != DYNAMIC for d in t.shape):
        return f"shape {t.shape} has a negative size"
    if t.quant is None:
        return ""
    if t.is_dynamic:
        return f"{t} has scales and an open size"
    q = t.quant
    if not t.dtype.is_integer:
        return f"{t.dtype.text} is not an integer, but has scales"
    if not all(0 < s < math.inf for s in q.scale):
        return f"scale {next(s for s in q.scale if not 0 < s < math.inf)} is not positive and finite"
    lo, hi = t.dtype.limits
    if not all(lo <= z <= hi for z in q.zero_point):
        return f"zero point {next(z for z in q.zero_point if not lo <= z <= hi)} is outside {t.dtype.text}"
    if q.axis is None:
        return ""
    if not 0 <= q.axis < t.rank:
        return f"quantisation axis {q.axis} of rank {t.rank}"
    return "" if len(q.scale) == t.shape[q.axis] else f"{len(q.scale)} scales along an axis of size {t.shape[q.axis]}"
