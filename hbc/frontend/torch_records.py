"""What a PyTorch model is, once it is walked: one list of operators with all that they read, whatever file it came in.

A tensor that depends on the model's inputs is a `Ref`; every other one a `Weight`, with its values. Numbers, texts and
lists stand for themselves. Both walkers (`torchscript`, `torch_export`) make these; the rules in `torch_ops` read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbc.diagnostics import FrontendError
from hbc.ir.types import DType, Quant

Arg = Any  # Ref | Weight | number | bool | str | None | a packed parameter | list or tuple of these


@dataclass(frozen=True)
class Ref:
    """A computed tensor. `quant`: of PyTorch's own quantised tensors, which hold integers.

    `constant`: its values (a torch.Tensor) where it follows from constants alone, as fake-quantised weights do.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    quant: Quant | None = None
    constant: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Weight:
    """A constant tensor by the path of its attribute (`layer1.0.conv1.weight`), or by what it was folded from."""

    name: str
    tensor: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Record:
    """One operator at work.

    `op`: its name, `aten::conv2d`. `args`: by the names of its schema. `node`: a name of its own, from the path of the
    user's module: `layer1.0.conv1/conv2d`. `source`: file and line of the user's code, where the model knows it.
    `fault`: why it can't be taken in, where the walk saw that already. `call`: runs it again on arguments in the order
    of `args`.
    """

    op: str
    args: Mapping[str, Arg]
    results: tuple[Ref, ...]
    node: str
    source: str = ""
    fault: FrontendError | None = field(default=None, compare=False, repr=False)
    call: Callable[[Sequence[Any]], Any] = field(default=lambda _args: None, compare=False, repr=False)


@dataclass(frozen=True)
class Recorded:
    """A whole model: its operators in running order, inputs, outputs by name, and notes for the user."""

    file: str
    records: tuple[Record, ...]
    inputs: tuple[Ref, ...]
    outputs: tuple[tuple[str, Ref | Weight], ...]
    notes: tuple[str, ...]
    producer: str


def tensors(arg: Arg) -> Iterator[Ref | Weight]:
    """The tensors within an argument, in order."""
    if isinstance(arg, (Ref, Weight)):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from tensors(item)


def substituted(arg: Arg, values: Mapping[str, Any]) -> Any:
    """The argument with tensors in place of what stands for them: `values` by the names of Refs."""
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, Weight):
        return arg.tensor
    if isinstance(arg, (list, tuple)):
        return [substituted(item, values) for item in arg]
    return arg
