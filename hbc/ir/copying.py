"""Copies of modules, for what may go wrong and for comparing before with after."""

from __future__ import annotations

from .core import Graph, Module, Op, Value


def clone(module: Module) -> Module:
    """A module of new values and ops. Constants (whose arrays nobody writes to), types and locations are shared."""
    return Module(clone_graph(module.graph), module.name, module.march, module.arith, dict(module.metadata))


def clone_graph(graph: Graph) -> Graph:
    """A graph of new values and ops; AssertionError where an op reads a value that is defined below it or elsewhere."""
    copy = Graph(graph.name)
    copy.arena_size = graph.arena_size
    made: dict[Value, Value] = {}
    for arg in graph.args:
        assert arg.name is not None
        made[arg] = copy.add_arg(arg.name, arg.type)
        made[arg].offset = arg.offset
    for op in graph.ops:
        copy.ops.append(_clone_op(op, made))
    for out in graph.outputs:
        copy.add_output(out.name, made[out.value])
    return copy


def _clone_op(op: Op, made: dict[Value, Value]) -> Op:
    assert all(v is None or v in made for v in op.operands), f"{op} reads what is not defined above it"
    copy = type(op)([None if v is None else made[v] for v in op.operands], dict(op.attrs), op.loc)
    copy.placement = op.placement
    for result in op.results:
        made[result] = Value(result.type, copy, result.index, result.name)
        made[result].offset = result.offset
        copy.results.append(made[result])
    return copy
