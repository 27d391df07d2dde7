"""The IR after a stage or a pass, run by the interpreter: `ir:load`, `ir:quantize`, `ir:quantize/fold-qdq`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from hbc.backend.bpu.target import Target
from hbc.backend.cpu import engine
from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.interpreter import evaluate
from hbc.ir.location import node_names
from hbc.options import CompileOptions, pick
from hbc.passes.manager import PassManager

from .order import channels_last
from .stage import Array, Place, Sample
from .stepped import Key, Stepped, Unit


def module_after(model: Path, options: CompileOptions, where: str) -> Module:
    """The module after `STAGE`, or after `STAGE/PASS` (its last run in that stage; `STAGE/PASS#1` for its first).

    Raises OptionError where there is no such stage or pass, HbcError where the model cannot be compiled so far.
    """
    name, _, within = where.partition("/")
    target = Target(options.march, options.arith)
    stages = {s.name: s for s in target.pipeline}
    pick("stage", name, ["load", *stages])
    if not within:
        return lower_model(model, options, stop_after=name)
    stage = stages[pick("stage with passes", name, stages)]
    wanted, _, number = within.partition("#")
    names = [p.name for p in stage.passes]
    pick(f"pass of stage {name}", wanted, dict.fromkeys(names))
    at = [i for i, n in enumerate(names) if n == wanted]
    runs = [str(i + 1) for i in range(len(at))]
    end = at[int(pick(f"run of {wanted}", number, runs)) - 1 if number else -1]
    order = ["load", *stages]
    module = lower_model(model, options, stop_after=order[order.index(name) - 1])
    PassManager(target).run(replace(stage, passes=stage.passes[: end + 1], ensures=None, forbids=frozenset()), module)
    return module


def ir_stage(module: Module, name: str, about: str) -> Stepped:
    """The module as a stage, by the interpreter."""
    semantics = Target(module.march, module.arith).semantics

    def run(op: Op, arrays: Sequence[Array | None]) -> Sequence[Array]:
        return evaluate(op, semantics, arrays, cpu=engine.evaluate)

    return stepped(module, name, about, run)


def float_stage(module: Module, name: str, about: str) -> Stepped:
    """A module without quantisation as a stage: ops by ONNX Runtime, what it has no form for by NumPy."""
    semantics = Target(module.march, module.arith).semantics

    def run(op: Op, arrays: Sequence[Array | None]) -> Sequence[Array]:
        if isinstance(op, ops.Call) or (op.NAME.startswith(HEAVY) and not op.out.type.is_quantized):
            return engine.evaluate(op, arrays)
        return evaluate(op, semantics, arrays, cpu=engine.evaluate)

    return stepped(module, name, about, run)


Evaluate = Callable[[Op, Sequence["Array | None"]], Sequence[Array]]
HEAVY = ("conv", "linear", "matmul")  # where float64 in NumPy would take minutes


def stepped(module: Module, name: str, about: str, run: Evaluate) -> Stepped:
    """The module's ops as units, evaluated by `run`."""
    graph = module.graph
    constants = {op.out: op.value for op in graph.walk(ops.Const)}
    body = [op for op in graph.ops if not isinstance(op, ops.Const)]
    units = tuple(Unit(tuple(op.operands), tuple(op.results), partial(run, op)) for op in body)

    def start(sample: Sample) -> dict[Key, Array]:
        return {a: np.asarray(sample[str(a.name)]) for a in graph.args}

    def constant(key: Key) -> Array | None:
        return constants[key]  # type: ignore[index] # keys of these units are values

    return Stepped(name, about, units, places(module), constant, start)


def places(module: Module) -> dict[Key, Place]:
    """The named values that depend on the inputs. A name that two carry is the first one's; outputs have their own."""
    graph = module.graph
    live: set[Value] = set(graph.args)
    rows = [
        (op.INSTRUCTION, op.attrs.get("perm"), tuple(op.operands), tuple(op.results))
        for op in graph.ops
        if isinstance(op, ops.BpuOp)
    ]
    last = channels_last(rows)
    outputs = {o.value: o.name for o in graph.outputs}
    taken: set[str | None] = set(outputs.values())
    found: dict[Key, Place] = {}
    for op in graph.ops:
        if isinstance(op, ops.Const) or not any(v in live for v in op.operands):
            continue
        live.update(op.results)
        for value in op.results:
            name = outputs.get(value) or (value.name if value.name not in taken else None)
            if name:
                taken.add(name)
                t = value.type
                found[value] = Place(
                    name, op.NAME.removeprefix("bpu."), node_names(op.loc), t.dtype.text, t.quant, value in last
                )
    return found
