"""A program against the framework of its model: output by output, then inside, to name where they part most."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import error
from hbc_runtime import Session
from hbc_runtime.program import Model, Program, Tensor, TensorInfo
from hbc_runtime.types import DType, holds

from .analysis import behind_moves
from .options import CompileOptions
from .opwise import OpResult
from .samples import Sample
from .verify.measure import Distance, finite, measure, worst
from .verify.program_stage import makers as makers_of
from .verify.references import Reference, reference_of
from .verify.stage import StageError, require_same_model
from .verify.stored import as_stored, to_reals
from .words import shape_text

Array = npt.NDArray[Any]
TOLERANCE = 0.999  # of cosine similarity


@dataclass(frozen=True)
class Difference(Distance):
    """How far one array is from another, and whether the two decide alike.

    `argmax`: the share of positions at which both have their largest class at the same index, where there is an axis of
    classes. `iou`: for a map of probabilities (one channel, all in 0..1), how far the regions above 1/2 overlap.
    """

    argmax: float | None
    iou: float | None


@dataclass(frozen=True)
class OutputResult:
    """One output over all samples: the worst of each figure (of `equal`, `argmax` and `iou` the mean).

    `ort_cosine` is ONNX Runtime's optimised run against its unoptimised one, in the sample where they part most.
    """

    name: str
    difference: Difference
    ort_cosine: float | None
    passed: bool


@dataclass(frozen=True)
class TensorResult:
    """One tensor inside, on the first sample, and the nodes that make it."""

    name: str
    nodes: tuple[str, ...]
    op: str
    difference: Difference


@dataclass(frozen=True)
class CheckResult:
    """The verdict, the outputs, and the inner tensors in the order in which they are computed."""

    samples: int
    tolerance: float
    outputs: tuple[OutputResult, ...]
    tensors: tuple[TensorResult, ...]
    ops: tuple[OpResult, ...] = ()  # each fed the reference's own integers, on the first sample
    reference: str = "ONNX Runtime"

    @property
    def ops_passed(self) -> bool:
        """True where every op that could be compared is within 1 quantum."""
        return all(o.quanta <= 1 for o in self.ops)

    @property
    def worst_op(self) -> OpResult | None:
        """The op that is farthest off on ONNX Runtime's own integers."""
        return max(self.ops, key=lambda o: (o.quanta, -o.equal), default=None)

    @property
    def passed(self) -> bool:
        """True where every output is within tolerance on every sample."""
        return all(o.passed for o in self.outputs)

    @property
    def worst(self) -> TensorResult | None:
        """The inner tensor that is farthest off, by cosine."""
        return min(self.tensors, key=lambda t: t.difference.cosine, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        worst = None if self.worst is None else dataclasses.asdict(self.worst)
        head = {"passed": self.passed, "ops_passed": self.ops_passed}
        return finite({**head, **dataclasses.asdict(self), "worst": worst})


def check_program(
    program: Program,
    model: Path,
    samples: Sequence[Sample],
    *,
    tolerance: float = TOLERANCE,
    threads: int = 1,
    look_inside: bool = True,
    options: CompileOptions | None = None,
) -> CheckResult:
    """Run `program` and the model's own framework, ONNX Runtime or PyTorch, on `samples` and compare.

    An output passes where in every sample its cosine to PyTorch, or to ONNX Runtime's unoptimised run, is at least
    `tolerance`, or at least that of ONNX Runtime's own optimised run. `options` give the examples that a PyTorch model
    needs. Raises StageError where the program isn't of that model, ProbeError,
    HbmError.
    """
    theirs = reference_of(model, options or CompileOptions(), threads)
    require_same_model(program.models[0], theirs.outputs, model)
    with Session(program, threads=threads) as session:
        runs = [(session.run(s), theirs.run(s), theirs.optimised(s)) for s in samples]
        model_ = session.model
    outputs = tuple(_output(model_, info, runs, tolerance) for info in model_.outputs)
    tensors = _inner(program, theirs, samples[0]) if look_inside else ()
    return CheckResult(len(samples), tolerance, outputs, tensors, reference=theirs.name)


def difference(got: Array, want: Array, *, quantum: float | None = None) -> Difference:
    """How far `got` is from `want`, two arrays of one shape. NaN equals NaN."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    return _decided(measure(a, b, quantum=quantum), argmax=_argmax_agreement(a, b), iou=_iou(a, b))


def _decided(d: Distance, argmax: float | None, iou: float | None) -> Difference:
    return Difference(d.equal, d.max_abs, d.max_quanta, d.cosine, d.sqnr, argmax, iou)


def _argmax_agreement(a: Array, b: Array) -> float | None:
    axis = 1 if a.ndim in {4, 5} else a.ndim - 1  # channels of an image, or the last axis of a list of scores
    if a.ndim < 2 or a.shape[axis] < 2 or not a.size:
        return None
    return float((a.argmax(axis) == b.argmax(axis)).mean())


def _iou(a: Array, b: Array) -> float | None:
    if b.ndim != 4 or b.shape[1] != 1 or not b.size or not (b.min() >= 0 and b.max() <= 1):
        return None
    above_a, above_b = a > 0.5, b > 0.5
    union = int((above_a | above_b).sum())
    return int((above_a & above_b).sum()) / union if union else 1.0


# ---- outputs

Run = tuple[Mapping[str, Array], Mapping[str, Array], "Mapping[str, Array] | None"]  # ours, plain and optimised theirs


def _output(model: Model, info: TensorInfo, runs: Iterable[Run], tolerance: float) -> OutputResult:
    quantum = _quantum(model, info)
    rows, passed, theirs = [], True, []
    for ours, plain, optimised in runs:
        want = plain[info.name]
        if not holds(info.shape, DType.of(want.dtype), want):
            why = f"the program gives {shape_text(info.shape)}, the model {shape_text(want.shape)}"
            raise error(StageError, f"output {info.name!r} has two shapes", why=why, hint="--shape, as at compilation")
        row = _sized_difference(ours[info.name], want, quantum)
        least = tolerance
        if optimised is not None:
            theirs.append(_sized_difference(optimised[info.name], want, None).cosine)
            least = min(tolerance, theirs[-1])
        passed &= row.cosine >= least
        rows.append(row)
    return OutputResult(info.name, _worst(rows), min(theirs, default=None), passed)


def _sized_difference(got: Array, want: Array, quantum: float | None) -> Difference:
    """As `difference`; where a size that depends on the data came out otherwise, nothing of `got` is right."""
    if got.shape == want.shape:
        return difference(got, want, quantum=quantum)
    return Difference(equal=0.0, max_abs=math.inf, max_quanta=None, cosine=0.0, sqnr=-math.inf, argmax=None, iou=None)


def _worst(rows: Sequence[Difference]) -> Difference:
    shares = {name: [v for r in rows if (v := getattr(r, name)) is not None] for name in ("argmax", "iou")}
    means = {name: float(np.mean(values)) if values else None for name, values in shares.items()}
    return _decided(worst(rows), **means)


def _quantum(model: Model, info: TensorInfo) -> float | None:
    """The step of an output in its own unit: 1 for integers, the scale of what a float output is dequantised from."""
    if not info.dtype.is_float:
        return 1.0
    tensor = behind_moves(model, info.tensor)
    if tensor.quant is None or tensor.dtype is DType.I32:  # an accumulator's step is far below the model's own
        return None
    return max(tensor.quant.scale)


# ---- inside


def _inner(program: Program, reference: Reference, sample: Sample) -> tuple[TensorResult, ...]:
    """The tensors that both sides know by name, on one sample, in running order."""
    with Session(program, engine="reference") as session:
        ours = session.intermediates(sample)
        tensors = session.model.tensors
        makers = {index: (nodes, op) for index, nodes, op in makers_of(session.model)}
    shared = set(ours) & set(reference.inner)
    theirs = reference.inside(sample, sorted(shared))
    results = []
    for index, (nodes, op) in makers.items():
        name = tensors[index].name
        if name in shared and name in theirs:
            row = compare_tensor(ours[name], tensors[index], theirs[name])
            if row is not None:
                shared.discard(name)
                results.append(TensorResult(name, nodes, op, row))
    return tuple(results)


def compare_tensor(ours: Array, tensor: Tensor, theirs: Array) -> Difference | None:
    """Our integers (in the program's layout) against ONNX Runtime's tensor of the same name (in the model's), as reals.

    None where the shapes are not the same up to layout, or integers on both sides have a scale per channel. Where both
    orders of axes fit, the closer one is meant.
    """
    if theirs.dtype.kind != "f" and tensor.quant is not None and tensor.quant.axis is not None:
        return None
    a, b = to_reals(ours, tensor.quant), to_reals(theirs, as_stored(tensor.dtype, tensor.quant, theirs.dtype))
    quantum = None if tensor.quant is None else max(tensor.quant.scale)
    views = [a] if a.ndim != 4 else [a, a.transpose(0, 3, 1, 2)]  # NHWC inside, NCHW in the model
    rows = [difference(v, b, quantum=quantum) for v in views if v.shape == b.shape]
    return max(rows, key=lambda r: (r.cosine, r.equal), default=None)
