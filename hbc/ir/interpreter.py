"""Runs a module op by op with the NumPy references: slow, exact, and the judge of every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hbc_runtime.errors import InputMismatch

from . import fixed_point
from .core import Graph, Module, Op, Value
from .naming import value_names
from .ops.misc import CALLS, Call, CallGraph
from .semantics import Semantics

CpuEngine = Callable[[Call | CallGraph, list[np.ndarray]], Sequence[np.ndarray]]


def evaluate(
    op: Op, sem: Semantics, arrays: Sequence[np.ndarray | None], cpu: CpuEngine | None = None
) -> list[np.ndarray]:
    """The results of one op for the values of its operands (None for a missing one), of the results' shapes and dtypes.

    Quantised arithmetic by `fixed_point`, a `call` or `call_graph` by `cpu` (LookupError where there is none), all else
    by the class.
    """
    if isinstance(op, CALLS) and cpu is not None:
        results = cpu(op, [a for a in arrays if a is not None])
    elif fixed_point.is_fixed(op):
        results = fixed_point.evaluate(op, sem, arrays)
    else:
        results = op.reference(sem, *arrays)
    made = [np.asarray(r) for r in results]
    for value, array in zip(op.results, made, strict=True):
        t = value.type
        fits = t.holds(array)
        assert fits, f"{op} made {array.dtype}{array.shape}, its type is {t.dtype.text}{t.shape}"
    return made


def interpret(
    module: Module, inputs: Mapping[str, np.ndarray], *, cpu: CpuEngine | None = None, keep: bool = False
) -> dict[str, np.ndarray]:
    """The graph's outputs by name, for arrays by argument name, under the module's march and arithmetic.

    `keep` adds every other value, by the name that the text gives it ("12" for `%12`); outputs win where names meet.
    Raises hbc_runtime.InputMismatch where an input is missing, unknown, or of another shape or dtype.
    """
    graph = module.graph
    sem = Semantics(module.march, module.arith)
    env: dict[Value, np.ndarray] = dict(_bound(graph, inputs))
    last = {} if keep else _last_readers(graph)
    for op in graph.ops:
        results = evaluate(op, sem, [None if v is None else env[v] for v in op.operands], cpu)
        env.update(zip(op.results, results, strict=True))
        for value in last.get(op, ()):
            del env[value]
    kept = {str(name): env[value] for value, name in value_names(graph).items()} if keep else {}
    return kept | {o.name: env[o.value] for o in graph.outputs}


def _bound(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[tuple[Value, np.ndarray]]:
    names = [str(a.name) for a in graph.args]
    for name in inputs:
        if name not in names:
            msg = f"there is no input {name!r}; inputs are {', '.join(map(repr, names))}"
            raise InputMismatch(msg)
    bound = []
    for arg, name in zip(graph.args, names, strict=True):
        if name not in inputs:
            msg = f"input {name!r} is missing"
            raise InputMismatch(msg)
        array = np.asarray(inputs[name])
        if array.shape != arg.type.shape or array.dtype != arg.type.dtype.numpy:
            want = f"{arg.type.dtype.text}{list(arg.type.shape)}"
            msg = f"input {name!r} is {array.dtype}{list(array.shape)}, not {want}"
            raise InputMismatch(msg)
        bound.append((arg, array))
    return bound


def _last_readers(graph: Graph) -> dict[Op, list[Value]]:
    """For each op the values that nobody needs after it."""
    returned = {o.value for o in graph.outputs}
    last: dict[Value, Op] = {}
    for op in graph.ops:
        for value in (*op.operands, *op.results):
            if value is not None and value not in returned:
                last[value] = op
    readers: dict[Op, list[Value]] = {}
    for value, op in last.items():
        readers.setdefault(op, []).append(value)
    return readers
