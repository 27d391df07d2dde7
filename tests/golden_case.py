"""Golden cases: a RUN line, a program, and what becomes of it; as text, and as a proof by execution.

    // RUN: hbc opt -p fuse-conv [--stage fuse] [--march bayes-e] [--arith onnx] [--locs]
    // EXACT
    graph @two_users(%x: tensor<1x3x8x8xf32>) -> (%r, %s) { ... }
    // ----- expected
    module @model { ... }

In `.hbir` cases both programs are also run on random inputs, and must give equal arrays; passes whose class says
`changes_numerics` must only give arrays of the same shapes and dtypes, but a line `// EXACT` asks them for equal ones,
too, where a case is one of those that do not change. In `.err` cases the expected part is a message.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hbc.backend.bpu.target import Target
from hbc.diagnostics import HbcError, render
from hbc.ir import Module, TensorType, interpret, parse_module, print_module, verify
from hbc.ir.dense import seeded
from hbc.ir.ops import Call, CallGraph
from hbc.ir.printer import HEADER
from hbc.ir.types import DYNAMIC
from hbc.passes.base import Pass
from hbc.passes.manager import PassManager, Stage
from hbc.passes.pipeline_text import parse_pipeline
from hbc.passes.registry import PASSES

FOLDER = Path(__file__).parent / "golden"
MARK = "// ----- expected\n"
EXACT = "\n// EXACT\n"
RUN = "// RUN: hbc opt"
TRIALS = 3


@dataclass(frozen=True)
class Case:
    """One golden file in its parts; `options` are those of `hbc opt`."""

    path: Path
    given: str
    expected: str
    options: argparse.Namespace

    @staticmethod
    def read(path: Path) -> Case:
        """The case in a file. AssertionError where it has no RUN line."""
        given, _, expected = path.read_text(encoding="utf-8").partition(MARK)
        first, _, _ = given.partition("\n")
        assert first.startswith(RUN), f"{path}: the first line must begin with {RUN!r}"
        return Case(path, given, expected, _OPTIONS.parse_args(shlex.split(first.removeprefix(RUN))))

    def is_exact(self, passes: Sequence[Pass]) -> bool:
        """True where the passes may not change a number of this case."""
        return EXACT in self.given or not any(p.changes_numerics for p in passes)

    def update(self, text: str) -> None:
        """Write `text` as what is expected."""
        self.path.write_text(f"{self.given.rstrip()}\n{MARK}{text}", encoding="utf-8")

    def parse(self, text: str) -> Module:
        """A program of this case, for the march and arithmetic that RUN names."""
        module = parse_module(text, filename=self.path.name)
        module.march = self.options.march or module.march
        module.arith = self.options.arith or module.arith
        return module

    def stages(self, target: Target) -> list[Stage]:
        """What RUN asks for."""
        if self.options.stage:
            named = {s.name: s for s in target.pipeline}
            return [named[name] for name in self.options.stage.split(",")]
        return [Stage("opt", parse_pipeline(self.options.passes, PASSES))] if self.options.passes else []

    def run(self) -> tuple[Module, list[Pass]]:
        """The program after the passes, and the passes. HbcError where something is wrong with it."""
        module = self.parse(self.given)
        verify(module)
        target = Target(module.march, module.arith)
        stages = self.stages(target)
        PassManager(target).run_all(stages, module)
        return module, [p for s in stages for p in s.passes]

    def print(self, module: Module) -> str:
        """A program as golden files hold it."""
        return print_module(module, locs=self.options.locs).removeprefix(f"{HEADER}\n")

    def message(self) -> str:
        """What the user is told, of a program that is wrong."""
        try:
            self.run()
        except HbcError as error:
            return f"{render(error.diagnostic)}\n"
        return "no error\n"


_OPTIONS = argparse.ArgumentParser(exit_on_error=False)
_OPTIONS.add_argument("-p", dest="passes")
_OPTIONS.add_argument("--stage")
_OPTIONS.add_argument("--march")
_OPTIONS.add_argument("--arith")
_OPTIONS.add_argument("--locs", action="store_true")


# ---- proof by execution


def assert_same_meaning(before: Module, after: Module, *, exact: bool = True) -> None:
    """Run both on the same inputs: the same outputs by name and type; the same in every element if `exact`."""
    for trial in range(TRIALS):
        inputs = {str(a.name): random_array(a.type, trial, i) for i, a in enumerate(before.graph.args)}
        want = interpret(before, inputs, cpu=uninterpreted)
        got = interpret(after, inputs, cpu=uninterpreted)
        assert list(got) == list(want)
        for name, expected in want.items():
            array = got[name]
            assert (array.shape, array.dtype) == (expected.shape, expected.dtype), name
            if exact:
                nan = expected.dtype.kind == "f"
                assert np.array_equal(array, expected, equal_nan=nan), (
                    f"{name}, trial {trial}: {worst(array, expected)}"
                )


def random_array(t: TensorType, trial: int, index: int) -> np.ndarray:
    """Trials 0 and 1: any integer, floats within ±1 and then ±100. Trial 2: the ends of the range, and halves."""
    noise = seeded(1000 * trial + index, t.shape, t.dtype)
    if trial < 2:
        return noise * noise.dtype.type(100) if t.dtype.is_float and trial else noise
    if t.dtype.is_integer:
        return np.where(noise & 1, *t.dtype.limits).astype(t.dtype.numpy)
    if t.dtype.is_float:
        return (np.rint(noise * 4) / 2).astype(t.dtype.numpy)  # halves: where roundings differ
    return noise


def uninterpreted(op: Call | CallGraph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A stand-in for a CPU op: a function of which only this is known, that equal inputs give equal results."""
    what = (op.op_type, op.node_proto) if isinstance(op, Call) else ("", op.graph_proto)
    digest = hashlib.blake2b(repr((*what, *op.versions.items())).encode(), digest_size=4)
    for array in arrays:
        digest.update(repr((array.dtype.str, array.shape)).encode() + array.tobytes())
    seed = int.from_bytes(digest.digest(), "little")
    shapes = [tuple(seed % 5 if d == DYNAMIC else d for d in r.type.shape) for r in op.results]
    return [seeded((seed + r.index) % (1 << 32), s, r.type.dtype) for r, s in zip(op.results, shapes, strict=True)]


def worst(got: np.ndarray, want: np.ndarray) -> str:
    """Where two arrays differ most, for messages."""
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
    at = np.unravel_index(int(np.nanargmax(apart)), apart.shape) if np.isfinite(apart).any() else ()
    index = tuple(int(i) for i in at)
    return f"{np.count_nonzero(got != want)} of {got.size} differ; at {index} {got[at]} is not {want[at]}"
