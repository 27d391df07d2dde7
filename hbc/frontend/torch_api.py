"""The one place where the front end imports PyTorch, when a TorchScript or `.pt2` model is given and not before."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hbc.diagnostics import NoOnnx

from .problem import problem


def require_torch(where: str) -> Any:
    """The torch module; FrontendError that says how to install it where it is missing."""
    try:
        with _no_log():
            import torch
    except ImportError as error:
        raise problem(
            "reading this model needs PyTorch",
            where=where,
            why=str(error),
            hint="pip install hbc[torch], or export the model to ONNX where PyTorch is",
            kind=NoOnnx,
        ) from error
    return torch


@contextmanager
def _no_log() -> Iterator[None]:
    """PyTorch's C++ side reads its log level once, when it loads: what it says of operators isn't for the user."""
    if _LEVEL in os.environ or "torch" in sys.modules:
        yield
        return
    os.environ[_LEVEL] = "ERROR"
    try:
        yield
    finally:
        del os.environ[_LEVEL]


_LEVEL = "TORCH_CPP_LOG_LEVEL"


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch's warnings that `torch.jit` and quantised dtypes are deprecated: the user gave a file, not code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def register_ops(torch: Any) -> None:
    """Make the operators known that `.pt2` files of quantised models hold, beside PyTorch's own.

    `quantized_decomposed` comes with `torch.ao`. `hbc::fake_quantize` belongs to hbc's own quantisation kit; where that
    one isn't loaded, a plain definition stands in, by which files can be read and run.
    """
    with quiet():
        try:
            import torch.ao.quantization.fx._decomposed
        except ImportError:  # gone from a later PyTorch: files that need it are told so
            return
        finally:
            _register_fake_quantize(torch)


def _register_fake_quantize(torch: Any) -> None:
    if _has(torch, "hbc", "fake_quantize"):
        return
    library = torch.library.Library("hbc", "FRAGMENT")
    library.define(
        "fake_quantize(Tensor x, Tensor scale, Tensor zero_point, SymInt quant_min, SymInt quant_max, SymInt axis) -> "
        "Tensor"
    )

    def fake_quantize(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, axis: int) -> Any:
        shape = [-1 if i == axis else 1 for i in range(x.dim())] if axis >= 0 else []
        s, z = (scale.reshape(shape), zero_point.reshape(shape)) if shape else (scale, zero_point)
        return (torch.clamp(torch.round(x / s) + z, quant_min, quant_max) - z) * s

    library.impl("fake_quantize", fake_quantize, "CompositeExplicitAutograd")
    _LIBRARIES.append(library)


_LIBRARIES: list[Any] = []  # a definition lasts as long as its library


def _has(torch: Any, namespace: str, name: str) -> bool:
    try:
        getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, RuntimeError):
        return False
    return True


@dataclass(frozen=True)
class Operator:
    """One overload of a PyTorch operator, called with all its arguments in the order of its schema."""

    function: Any
    names: tuple[str, ...]
    positional: int  # how many of them may be given by position
    overload: str

    def __call__(self, *values: Any) -> Any:
        rest = dict(zip(self.names[self.positional :], values[self.positional :], strict=False))
        return self.function(*values[: self.positional], **rest)


def operator(torch: Any, name: str, overload: str) -> Operator | None:
    """The operator `namespace::word`, in this overload; None where this PyTorch has none."""
    namespace, _, word = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), word, None)
    found = None if packet is None else getattr(packet, overload or "default", None)
    if found is None:
        return None
    arguments = found._schema.arguments  # noqa: SLF001 - PyTorch's own name for it, everywhere
    names = tuple(a.name for a in arguments)
    return Operator(found, names, sum(not a.kwarg_only for a in arguments), overload)
