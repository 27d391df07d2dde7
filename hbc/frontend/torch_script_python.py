"""What TorchScript does with numbers, texts, lists and dicts: done in Python, at once.

Lists and dicts may hold computed tensors; they are Python's own, so that `append` is seen by everyone who holds one.
"""

from __future__ import annotations

import operator as py
from collections.abc import Callable, Sequence
from typing import Any

from .torch_api import require_torch
from .torch_recorder import Live

UNDECIDED = object()  # these operands aren't Python's own: the operator has tensors, and is recorded as any other


def python_op(torch: Any, kind: str, node: Any, args: list[Any]) -> Any:
    """The value of `kind` on `args`. UNDECIDED where a tensor stands where only numbers and lists may."""
    rule = PYTHON[kind]
    if kind.startswith("aten::") and not _is_python(torch, kind, args):
        return UNDECIDED
    return rule(node, *args)


def _is_python(torch: Any, kind: str, args: Sequence[Any]) -> bool:
    if kind in {"aten::warn", "aten::format"}:
        return True
    if kind in {"aten::__is__", "aten::__isnot__"}:
        return True
    if not args:
        return False
    plain = not isinstance(args[0], (Live, torch.Tensor))
    return plain and (isinstance(args[0], _CONTAINERS) or not any(isinstance(a, (Live, torch.Tensor)) for a in args))


_CONTAINERS = (list, tuple, dict)


def _append(_node: Any, items: list[Any], item: Any) -> Any:
    items.append(item)
    return items


def _set_item(_node: Any, items: Any, index: Any, item: Any) -> Any:
    items[index] = item
    return items


def _extend(_node: Any, items: list[Any], more: Sequence[Any]) -> Any:
    items.extend(more)
    return ()


def _insert(_node: Any, items: list[Any], index: int, item: Any) -> Any:
    items.insert(index, item)
    return ()


def _unpack(_node: Any, items: Sequence[Any]) -> Any:
    if not isinstance(items, (list, tuple)):
        return UNDECIDED
    return items


def _dict(_node: Any, *pairs: Any) -> Any:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


class NamedItems(tuple[Any, ...]):  # noqa: SLOT001 - it holds the names
    """A NamedTuple of the model: a tuple that remembers the names of its fields."""

    fields: tuple[str, ...]

    def __new__(cls, items: Sequence[Any], fields: tuple[str, ...]) -> NamedItems:  # noqa: PYI034 - needs Python 3.11
        made = super().__new__(cls, items)
        made.fields = fields
        return made


def _to_tensor(_node: Any, value: Any) -> Any:
    if isinstance(value, Live):
        return value
    torch = require_torch("")
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _dtype(_node: Any, value: Any) -> Any:
    return _tensor(value).dtype


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Live) else value


def _slice(_node: Any, items: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return items[start:end:step]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _node, *args: function(*args)


def _divide(a: Any, b: Any) -> Any:
    return a / b


PYTHON: dict[str, Callable[..., Any]] = {
    "prim::ListConstruct": lambda _n, *items: list(items),
    "prim::TupleConstruct": lambda _n, *items: items,
    "prim::DictConstruct": _dict,
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::TupleIndex": lambda _n, items, index: items[index],
    "prim::TupleSlice": lambda n, items: tuple(items[n.i("beg") : n.i("end")]),
    "prim::NumToTensor": _to_tensor,
    "prim::unchecked_cast": lambda _n, value: value,
    "prim::unchecked_unwrap_optional": lambda _n, value: value,
    "aten::_unwrap_optional": lambda _n, value: value,
    "prim::Uninitialized": lambda _n: None,
    "prim::Print": lambda _n, *_items: (),
    "prim::device": lambda _n, x: _tensor(x).device,
    "prim::dtype": _dtype,
    "prim::layout": lambda _n, x: _tensor(x).layout,
    "prim::is_cuda": lambda _n, _x: False,
    "prim::is_quantized": lambda _n, x: _tensor(x).is_quantized,
    "prim::requires_grad": lambda _n, _x: False,
    "prim::data": lambda _n, x: x,
    "prim::min": lambda _n, *items: min(*items),
    "prim::max": lambda _n, *items: max(*items),
    "prim::abs": lambda _n, x: abs(x),
    "aten::append": _append,
    "aten::_set_item": _set_item,
    "aten::extend": _extend,
    "aten::insert": _insert,
    "aten::pop": lambda _n, items, *at: items.pop(*at),
    "aten::clear": lambda _n, items: items.clear() or (),
    "aten::reverse": lambda _n, items: items.reverse() or (),
    "aten::copy": lambda _n, items: items.copy(),
    "aten::list": lambda _n, items: list(items),
    "aten::keys": lambda _n, items: list(items.keys()),
    "aten::values": lambda _n, items: list(items.values()),
    "aten::items": lambda _n, items: list(items.items()),
    "aten::get": lambda _n, items, key, *other: items.get(key, *other),
    "aten::len": _plain(len),
    "aten::slice": _slice,
    "aten::__getitem__": _plain(py.getitem),
    "aten::__contains__": _plain(py.contains),
    "aten::__is__": _plain(py.is_),
    "aten::__isnot__": _plain(py.is_not),
    "aten::__not__": _plain(py.not_),
    "aten::__and__": _plain(py.and_),
    "aten::__or__": _plain(py.or_),
    "aten::add": _plain(py.add),
    "aten::add_": lambda _n, items, more: items.extend(more) or items,
    "aten::sub": _plain(py.sub),
    "aten::mul": _plain(py.mul),
    "aten::div": _plain(_divide),
    "aten::floordiv": _plain(py.floordiv),
    "aten::remainder": _plain(py.mod),
    "aten::pow": _plain(py.pow),
    "aten::neg": _plain(py.neg),
    "aten::eq": _plain(py.eq),
    "aten::ne": _plain(py.ne),
    "aten::lt": _plain(py.lt),
    "aten::le": _plain(py.le),
    "aten::gt": _plain(py.gt),
    "aten::ge": _plain(py.ge),
    "aten::Int": _plain(int),
    "aten::Float": _plain(float),
    "aten::Bool": _plain(bool),
    "aten::format": lambda _n, text, *_items: text,
    "aten::warn": lambda _n, *_items: (),
}
