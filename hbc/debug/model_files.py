"""A quantised model file and samples, ready to be looked into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hbc.backend.bpu.target import Target
from hbc.backend.cpu import engine
from hbc.diagnostics import OptionError, error
from hbc.ir import ops
from hbc.ir.core import Module, Op
from hbc.ir.interpreter import evaluate
from hbc.options import CompileOptions
from hbc.verify.ir_stage import HEAVY, stepped
from hbc.verify.run import Reader, bound_sample, drawn_samples, infos_of
from hbc.verify.stage import Array, Sample
from hbc.verify.stages import Bench
from hbc.verify.stepped import Stepped

OnStep = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much
Watch = Callable[[Op, Sequence["Array | None"]], None]


@dataclass(frozen=True)
class Case:
    """A model that is open, and samples for it. `said`: where these come from."""

    bench: Bench
    options: CompileOptions
    samples: tuple[Sample, ...]
    said: str

    @property
    def module(self) -> Module:
        """The model as it is taken in."""
        return self.bench.loaded


@contextmanager
def opened(
    model: Path,
    options: CompileOptions,
    inputs: Path | Reader | None,
    count: int | None,
    seed: int = 0,
    threads: int = 1,
    *,
    float_model: Path | None = None,
    said: str = "",
) -> Iterator[Case]:
    """The model and its samples: `count` of those in `inputs`, or random ones; `said`: where they come from.

    Raises HbcError.
    """
    with Bench(model, options, None, float_model, threads) as bench:
        infos = infos_of(bench)
        where, drawn = drawn_samples(bench, infos, None, inputs, None, count, seed)
        yield Case(bench, options, tuple(bound_sample(infos, s, options) for s in drawn), said or where)


def watched(module: Module, watch: Watch | None = None) -> Stepped:
    """The module op by op: heavy ones of reals by ONNX Runtime; `watch` is told every op and its operands."""
    semantics = Target(module.march, module.arith).semantics

    def run(op: Op, arrays: Sequence[Array | None]) -> Sequence[Array]:
        if watch is not None:
            watch(op, arrays)
        if isinstance(op, ops.Call) or (op.NAME.startswith(HEAVY) and not op.out.type.is_quantized):
            return engine.evaluate(op, arrays)
        return evaluate(op, semantics, arrays, cpu=engine.evaluate)

    return stepped(module, "model", "the model as it is written", run)


def outputs_of(stage: Stepped, module: Module, sample: Sample) -> dict[str, Array]:
    """The outputs of one run."""
    return stage.fetch(sample, [o.name for o in module.graph.outputs])


def quantize_nodes(case: Case) -> list[ops.Quantize]:
    """The model's quantize nodes; OptionError where it has none."""
    nodes = list(case.module.graph.walk(ops.Quantize))
    if not nodes:
        hint = "hbc quantize makes them of a float model; models of integer operators have none"
        raise error(OptionError, "the model has no quantize nodes", where=str(case.bench.model), hint=hint)
    return nodes


def is_weight(op: ops.Quantize) -> bool:
    """True where what is rounded doesn't depend on the inputs."""
    todo, seen = [op.x], set()
    while todo:
        value = todo.pop()
        if value.op is None:
            return False
        if value in seen:
            continue
        seen.add(value)
        todo += [v for v in value.op.operands if v is not None]
    return True


def maker_of(op: ops.Quantize) -> str:
    """What makes the tensor that is rounded."""
    return "input" if op.x.op is None else op.x.op.NAME
