"""Stages by their names on the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hbc.backend.cpu.probe import Probe
from hbc.diagnostics import OptionError, error, nearest
from hbc.driver import compile_model, lower_model
from hbc.frontend import is_torch_path
from hbc.ir.core import Module
from hbc.options import CompileOptions
from hbc_runtime.program import Program

from .facts import Facts, facts_of
from .float_ir import without_quantisation
from .ir_stage import float_stage, ir_stage, module_after
from .onnx_stage import OnnxStage, optimized_stage
from .program_stage import JitStage, reference_stage
from .stage import Stage, StageError, require_same_model
from .torch_stage import torch_stage

NAMES = ("float", "torch", "ort", "ort-optimized", "ir:STAGE", "ir:STAGE/PASS", "reference", "jit")


@dataclass
class Bench:
    """One model and everything that is made of it for a comparison; a context manager that gives it back.

    `hbm`: the program to run, in place of one that is compiled. `float_model`: the float ONNX file, in place of one
    that is derived from `model`.
    """

    model: Path
    options: CompileOptions
    hbm: Program | None = None
    float_model: Path | None = None
    threads: int = 1
    resources: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Bench:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    @cached_property
    def loaded(self) -> Module:
        """The model as it is taken in. Nobody changes it."""
        return lower_model(self.model, self.options, stop_after="load")

    @cached_property
    def facts(self) -> Facts:
        """What the model says about its tensors, and the names that the float model has for them."""
        return facts_of(self.loaded)

    @cached_property
    def program(self) -> Program:
        """The program that is given, or the compiled model. StageError where the given one isn't this model's."""
        if self.hbm is None:
            return compile_model(self.model, self.options).program
        require_same_model(self.hbm.models[0], [o.name for o in self.loaded.graph.outputs], self.model)
        return self.hbm

    def stage(self, name: str) -> Stage:
        """The stage of this name. OptionError where there is none; HbcError, ProbeError where it can't be made."""
        check_stage(name)
        require_fitting(name, self.model)
        if name.startswith("ir:"):
            after = name.removeprefix("ir:")
            return ir_stage(module_after(self.model, self.options, after), name, f"IR after {after}, interpreted")
        makers: dict[str, Callable[[], Stage]] = {
            "float": self._float,
            "torch": lambda: torch_stage(self.model, self.options, self.facts),
            "ort": lambda: OnnxStage(self.model, "ort", "ONNX Runtime, optimiser off", self.facts, self.threads),
            "ort-optimized": lambda: optimized_stage(self.model, self._folder(), self.facts, self.threads),
            "reference": lambda: reference_stage(self.program, f"{self._origin}, NumPy engine"),
            "jit": self._jit,
        }
        return makers[name]()

    def _float(self) -> Stage:
        if self.float_model is None:
            module, names = without_quantisation(self.loaded)
            for name, stands_for in names.items():
                self.facts.root.setdefault(name, stands_for)
            return float_stage(module, "float", "the model without Q/DQ, weights dequantised")
        made = OnnxStage(self.float_model, "float", f"{self.float_model.name} by ONNX Runtime", Facts(), self.threads)
        wanted, has = [str(a.name) for a in self.loaded.graph.args], made.runner.inputs
        if set(wanted) != set(has):
            why = f"its inputs are {', '.join(map(repr, has))}, the quantised model's {', '.join(map(repr, wanted))}"
            raise error(StageError, "the float model is not this model's", where=str(self.float_model), why=why)
        Probe(self.float_model, optimised=False)  # refused here, before minutes of work
        return made

    def _jit(self) -> Stage:
        made = JitStage(self.program, f"{self._origin}, machine code", self.threads)
        self.resources.callback(made.close)
        return made

    @property
    def _origin(self) -> str:
        return "the given program" if self.hbm is not None else "the compiled program"

    def _folder(self) -> Path:
        return Path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="hbc-verify-")))


def default_source(model: Path) -> str:
    """The stage that is the reference where none is named: the model by its own framework."""
    return "torch" if is_torch_path(model) else "ort"


def require_fitting(name: str, model: Path) -> None:
    """OptionError for a stage of another framework than the model's."""
    if name in {"ort", "ort-optimized", "torch"} and (name == "torch") != is_torch_path(model):
        why = "it is a PyTorch model" if name != "torch" else "it is no PyTorch model"
        hint = f"--from {default_source(model)}"
        raise error(OptionError, f"there is no stage {name!r} of this model", where=str(model), why=why, hint=hint)


def check_stage(name: str) -> None:
    """OptionError where `name` is none of NAMES; which stages and passes there are after `ir:` is asked later."""
    if name.startswith("ir:") or name in NAMES:
        return
    hint = f"{nearest(name, NAMES, limit=1)} Stages are {', '.join(NAMES)}".strip()
    raise error(OptionError, f"there is no stage {name!r}", hint=hint)
