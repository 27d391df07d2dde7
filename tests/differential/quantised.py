"""One float op between DequantizeLinear and QuantizeLinear, integers in and out: hbc beside ONNX Runtime, in quanta."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import hbc
from hbc_runtime import Session
from hbc_runtime.program import CpuSegment, Program
from tests.unit.frontend.net import Net, onnxruntime_outputs

Array = npt.NDArray[Any]
ARITHS = ("bpu", "onnx")


@dataclass(frozen=True)
class Scaled:
    """A scale and a zero point; the zero point's dtype is the tensor's."""

    scale: float
    zero: np.generic

    @property
    def dtype(self) -> np.dtype[Any]:
        """The tensor's dtype."""
        return np.asarray(self.zero).dtype

    def ints(self, rng: np.random.Generator, *shape: int) -> Array:
        """Integers over the whole range."""
        info = np.iinfo(self.dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(self.dtype)


def scaled(rng: np.random.Generator, dtype: Any, low: float = 0.01, high: float = 0.1) -> Scaled:
    """A scale in [low, high] (finer by 256 for 16 bits) and any zero point."""
    info = np.iinfo(dtype)
    fine = 1 if np.dtype(dtype).itemsize == 1 else 256
    zero = rng.integers(info.min, info.max, endpoint=True)
    return Scaled(float(np.float32(rng.uniform(low, high) / fine)), np.dtype(dtype).type(zero))


class Case(Net):
    """A net with integer inputs and one integer output `y`; `feeds` holds what goes in."""

    def __init__(self, opset: int = 21) -> None:
        super().__init__(opset)
        self.feeds: dict[str, Array] = {}

    def feed(self, x: Array) -> str:
        """`x` as an input of its own dtype."""
        name = self.input(f"in{len(self.feeds)}", x.shape, x.dtype)
        self.feeds[name] = x
        return name

    def activation(self, x: Array, by: Scaled) -> str:
        """Integers as an input, and the reals that they stand for."""
        return self.dq(self.feed(x), by.scale, by.zero)

    def weight(self, w: Array, scale: Any, axis: int = 0) -> str:
        """Constant integers, and their reals: one scale, or one per entry of `axis`."""
        zero = np.zeros(np.shape(scale), w.dtype)
        return self.dq(self.const(w), scale, zero, **({"axis": axis} if np.ndim(scale) else {}))

    def result(self, y: str, by: Scaled, out: str = "y") -> Case:
        """`y` quantised as an output."""
        self.output(self.q(y, by.scale, by.zero, out=out), dtype=by.dtype)
        return self


def quanta(case: Case, arith: str, march: str = "nash-e", *, cpu: bool = False) -> int:
    """The largest distance between hbc's and ONNX Runtime's integers.

    Asserts equal shapes and dtypes, that JIT and reference agree, and that all of it runs as instructions; with `cpu`,
    that not all of it does.
    """
    model = case.model()
    program = hbc.compile(model, arith=arith, march=march).program
    reasons = cpu_reasons(program)
    assert bool(reasons) == cpu, reasons or "nothing of this runs on the CPU"
    theirs = onnxruntime_outputs(model, case.feeds)
    ours = Session(program).run(case.feeds)
    slow = Session(program, engine="reference").run(case.feeds)
    for name, got in ours.items():
        np.testing.assert_array_equal(got, slow[name], err_msg=f"JIT and reference, {name}")
    return distance(ours, theirs)


def distance(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> int:
    """The largest distance between two sets of outputs, in integers; shapes and dtypes must agree.

    Reals count in millionths of the largest one (of 1 at least), for what sums them in another order.
    """
    worst = 0
    for name, want in theirs.items():
        got = ours[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        if want.dtype.kind == "f":
            assert np.isfinite(want).all(), "reals of a test are finite"
            apart = np.abs(got.astype(np.float64) - want) / (1e-6 * max(1.0, float(np.abs(want).max(initial=0))))
        else:
            apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
        worst = max(worst, math.ceil(apart.max(initial=0)))
    return worst


def cpu_reasons(program: Program) -> list[str]:
    """Why nodes run on the CPU, over all segments."""
    return [r for s in program.models[0].segments if isinstance(s, CpuSegment) for r in s.reasons]


def one_op(build: Callable[[Case, str], str], x: Array, x_by: Scaled, y_by: Scaled, opset: int = 21) -> Case:
    """dequantize → what `build` makes of it → quantize."""
    case = Case(opset)
    return case.result(build(case, case.activation(x, x_by)), y_by)


def checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, valid by ONNX's own checker."""
    onnx.checker.check_model(model, full_check=True)
    return model
