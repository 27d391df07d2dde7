"""Small PyTorch models for tests: traced, scripted or exported, and compared with the IR that hbc makes of them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hbc.example import examples_of
from hbc.frontend import load
from hbc.ir.core import Module
from hbc.ir.interpreter import interpret

torch = pytest.importorskip("torch", reason="PyTorch makes and runs these models")
Array = np.ndarray[Any, Any]


class Net(torch.nn.Module):
    """`function(*inputs, *modules)`, with the modules as children `m.0`, `m.1` …"""

    def __init__(self, function: Callable[..., Any], *modules: Any) -> None:
        super().__init__()
        self.function = function
        self.m = torch.nn.ModuleList(modules)

    def forward(self, *x: Any) -> Any:
        return self.function(*x, *self.m)


def trace(model: Any, *inputs: Any) -> Any:
    """torch.jit.trace, in inference mode, without its warnings."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model.eval(), tuple(x.clone() for x in inputs), strict=False)


def script(model: Any) -> Any:
    """torch.jit.script, in inference mode, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model.eval())


def saved(model: Any) -> bytes:
    """A traced or scripted model as torch.jit.save writes it."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(model, buffer)
    return buffer.getvalue()


def stored(value: Any, **options: Any) -> bytes:
    """Anything as torch.save writes it."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(value, buffer, **options)
    return buffer.getvalue()


def export(model: Any, *inputs: Any, decomposed: bool = False) -> Any:
    """torch.export, decomposed to core operators where asked for."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), tuple(x.clone() for x in inputs))
        return program.run_decompositions() if decomposed else program


def imported(model: Any, *inputs: Any, **options: Any) -> Module:
    """The model as IR, in ONNX's arithmetic."""
    module = load(model, examples=examples_of(list(inputs)), **options)
    module.arith = "onnx"
    return module


def run(module: Module, inputs: Sequence[Any]) -> dict[str, Array]:
    """The module's outputs by the interpreter."""
    arrays = {str(a.name): x.numpy() for a, x in zip(module.graph.args, inputs, strict=True)}
    return interpret(module, arrays)


def leaves(value: Any) -> Iterator[Array]:
    """The arrays of a result, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value.detach().numpy()


def require_same(model: Any, original: Any, *inputs: Any, relative: float = 2e-5) -> Module:
    """The imported model gives what PyTorch gives, shapes and dtypes too; returns it.

    `relative` to the largest value: float32 sums in another order, nothing else.
    """
    with torch.no_grad():
        want = list(leaves(original(*(x.clone() for x in inputs))))
    module = imported(model, *inputs)
    got = run(module, inputs)
    assert len(got) == len(want)
    for output, expected in zip(module.graph.outputs, want, strict=True):
        y = got[output.name]
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype), output.name
        most = relative * max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0)))
        apart = np.abs(y.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        assert float(apart) <= most, output.name
    return module
