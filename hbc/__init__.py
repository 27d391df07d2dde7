"""hbc compiles quantised ONNX and PyTorch models for the Horizon BPU; `hbc_runtime` executes them bit for bit.

    import hbc
    hbc.compile("model.onnx", march="nash").save("model.hbm")

Importing this package loads neither onnx nor llvmlite nor torch: names are resolved on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from onnx import ModelProto

    from hbc_runtime.version import __version__

    from .driver import Compiled
    from .ir.core import Module
    from .options import CompileOptions
    from .ptq import QuantizeError, QuantizeResult
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
    "QuantizeError",
    "QuantizeResult",
    "Report",
    "VerifyError",
    "__version__",
    "compile",
    "parse",
    "quantize",
]

_LAZY = {
    "CompileOptions": "hbc.options",
    "Compiled": "hbc.driver",
    "QuantizeError": "hbc.ptq",
    "QuantizeResult": "hbc.ptq",
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
    `name`, `aot`, `example`, `output_names`, `optimize_level`, `objective`). Raises HbcError, in one of its kinds,
    where the model or an option cannot be taken.
    """
    from .driver import compile_model
    from .options import CompileOptions

    return compile_model(source, CompileOptions.of(march=march, arith=arith, **options))


def quantize(
    source: str | Path | bytes | ModelProto | object,
    calib: str | Path | Sequence[Mapping[str, npt.ArrayLike]],
    march: str = "nash",
    *,
    config: str | Path | Mapping[str, object] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    example: Any = (),
    output_names: Sequence[str] = (),
    **options: Any,
) -> QuantizeResult:
    """Quantise a float model (as `compile` takes it) by calibration; `compile` takes the result.

    `calib`: samples, each a mapping from input names to arrays, or a file or folder of them. `config`: a `.yaml` or
    `.json` file, or its keys as a mapping (docs/quantize.md). `shapes`: of inputs that the model leaves open.
    `example`, `output_names`: of a PyTorch model, as `compile` has them. `options`: `preprocess`, `rank`,
    `histograms`, `threads`, `on_step`, as `hbc.ptq.run.quantize_model` has them.

        hbc.compile(hbc.quantize("float.onnx", samples).data).save("model.hbm")

    Raises QuantizeError, or another HbcError, where the model, the samples or the configuration cannot be taken.
    """
    from .options import CompileOptions
    from .ptq.run import quantize_model

    given = CompileOptions.of(march=march, shapes=shapes or {}, example=example, output_names=output_names)
    return quantize_model(source, given, calib=calib, config=config, **options)


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
