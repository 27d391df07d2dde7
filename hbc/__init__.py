"""hbc compiles quantised ONNX and PyTorch models for the Horizon BPU; `hbc_runtime` executes them bit for bit.

    import hbc
    hbc.compile("model.onnx", march="nash").save("model.hbm")

Importing this package loads neither onnx nor llvmlite nor torch: names are resolved on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .diagnostics import (
    EmitError,
    FrontendError,
    HbcError,
    OptionError,
    ParseError,
    PassError,
    VerifyError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from hbc_runtime.version import __version__

    from .driver import Compiled
    from .ir.core import Module
    from .options import CompileOptions
    from .report import Report

__all__ = [
    "CompileOptions",
    "Compiled",
    "EmitError",
    "FrontendError",
    "HbcError",
    "OptionError",
    "ParseError",
    "PassError",
    "Report",
    "VerifyError",
    "__version__",
    "compile",
    "parse",
]

_LAZY = {
    "CompileOptions": "hbc.options",
    "Compiled": "hbc.driver",
    "Report": "hbc.report",
    "__version__": "hbc_runtime.version",
}


def compile(  # noqa: A001 - the name that the API promises
    source: str | Path | bytes | ModelProto | object, march: str = "nash", arith: str = "bpu", **options: object
) -> Compiled:
    """Compile a model: a path, the bytes of a file, an `onnx.ModelProto`, or PyTorch's ScriptModule or ExportedProgram.

    hbc.compile("model.pt", march="nash", example=[(1, 3, 288, 832)])

    `march`: bernoulli2, bayes, bayes-e, nash-e, nash-m, nash-p, or nash for nash-e. `arith`: `bpu` for the chip's
    arithmetic, `onnx` for ONNX's. `options`: the other fields of `CompileOptions` (`shapes`, `strict`, `cpu_fallback`,
    `name`, `aot`, `example`, `output_names`). Raises HbcError, in one of its kinds, where the model or an option
    cannot be taken.
    """
    from .driver import compile_model
    from .options import CompileOptions

    return compile_model(source, CompileOptions.of(march=march, arith=arith, **options))


def parse(text: str) -> Module:
    """The module that `.hbir` text describes; ParseError, with the place, where it describes none."""
    from .ir.parser import parse_module

    return parse_module(text)


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        msg = f"module 'hbc' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
