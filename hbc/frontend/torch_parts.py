"""Operators that hbc has no rule for, said by simpler ones: what PyTorch itself makes of them when it runs them.

`einsum`, `lstm` or `cosine_similarity` are programs of other operators inside PyTorch. One run on the example shows
which; where hbc takes all of those, they stand in the record list in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .torch_ops import RULES
from .torch_recorder import CREATES, SAME

MOST = 4096  # parts of one operator: a long recurrence has as many steps as its sequence has


@dataclass(frozen=True)
class Part:
    """One call inside: an overload of an operator, its arguments, and what it gave."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """`aten::mul`."""
        return str(self.function._schema.name)  # noqa: SLF001 - PyTorch's own name for it, everywhere

    @property
    def operands(self) -> list[Any]:
        """Everything that it was given."""
        return [*self.args, *self.kwargs.values()]

    def values(self, names: Sequence[str]) -> list[Any]:
        """All its arguments in the order of its schema."""
        rest = self.function._schema.arguments[len(self.args) :]  # noqa: SLF001
        return [*self.args, *(self.kwargs.get(a.name, a.default_value) for a in rest[: len(names) - len(self.args)])]


@dataclass(frozen=True)
class Parts:
    """The calls of one operator in running order, and what it returned: tensors that they made."""

    calls: tuple[Part, ...]
    result: Any


def parts_of(torch: Any, op: str, function: Callable[..., Any], raw: Sequence[Any]) -> Parts | None:
    """The calls that `function` is made of on `raw`; None where it is none, or hbc lacks a rule for one of them."""
    calls: list[Part] = []
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), _watch(torch, calls):
        result = function(*raw)
    names = {c.name for c in calls}
    if not calls or len(calls) > MOST or op in names or not all(map(_is_known, names)):
        return None
    return Parts(tuple(calls), result)


def _watch(torch: Any, calls: list[Part]) -> Any:
    """A context in which every call of an operator is noted in `calls`, those that hbc doesn't know by their parts."""
    table = torch._decomp.core_aten_decompositions()  # noqa: SLF001 - there is no public name for it

    def dispatch(self: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_known(func._schema.name) and func in table:  # noqa: SLF001
            with self:
                made = table[func](*args, **kwargs)
            if made is not NotImplemented:
                return made
        result = func(*args, **kwargs)
        calls.append(Part(func, args, kwargs, result))
        return result

    mode = torch.utils._python_dispatch.TorchDispatchMode  # noqa: SLF001
    return type("Watch", (mode,), {"__torch_dispatch__": dispatch})()


def _is_known(name: str) -> bool:
    word = name.partition("::")[2]
    return name in RULES or name.removesuffix("_") in RULES or word in SAME or word in CREATES or word in _CONSTANTS


_CONSTANTS = {"arange", "zeros", "ones", "full", "empty", "scalar_tensor", "tensor", "eye", "linspace"}


def tensors_in(torch: Any, value: Any) -> Iterator[Any]:
    """The tensors in a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(torch, item)
