"""Writing in place, as TorchScript does, said without: `y.relu_()`, `y[:, 0] = x`, `y += x`.

A record list has values, not storage. A write makes a new value, and everyone who holds the tensor holds that one from
then on. A write to a part of a tensor (a *view*: what select, slice, view, transpose and their kin give) makes a new
value of the whole: the part is put back in place, as `select_scatter` and `slice_scatter` do. Parts that were taken
before are taken again when they are next read. What is a view is seen from the memory of the example's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hbc.diagnostics import NotTaken

from .torch_api import Operator, operator
from .torch_memory import axes_order, laid_out, places, shares, strided_places
from .torch_ops import RULES
from .torch_parts import parts_of, tensors_in
from .torch_recorder import Live, Recorder, Spot, raw_of, short

_RESHAPES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as", "reshape_as"}
_SWAPS = {"transpose", "t", "permute", "numpy_T", "movedim", "moveaxis", "swapaxes", "swapdims", "mT", "mH", "adjoint"}
_PARTS = {"chunk", "split", "split_with_sizes", "unbind", "unsafe_chunk", "unsafe_split", "tensor_split"}


@dataclass(frozen=True)
class View:
    """How a tensor was taken out of `base`: by `function` on `values` (`base` first), as result `index` of several."""

    base: Any  # a Live, or a constant
    op: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    index: int | None = None


class Writer:
    """A recorder's `apply` for operators that may write in place."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.torch = recorder, recorder.torch
        self._promoted: dict[int, tuple[Any, Live]] = {}  # constants that something computed was written to
        self._constant_views: dict[int, tuple[Any, View]] = {}

    def current(self, value: Any) -> Any:
        """`value` as it is now: after writes to it, or to what it is a part of."""
        if isinstance(value, self.torch.Tensor):
            return self._promoted[id(value)][1] if id(value) in self._promoted else self._constant(value)
        if isinstance(value, Live):
            self._refresh(value)
            return value
        if isinstance(value, list):
            return [self.current(v) for v in value]
        return tuple(self.current(v) for v in value) if isinstance(value, tuple) else value

    def apply(
        self, op: str, function: Callable[..., Any], names: Sequence[str], values: Sequence[Any], spot: Spot
    ) -> Any:
        """As `Recorder.apply`; an operator whose name ends in `_` writes to its first operand."""
        given = [self.current(v) for v in values]
        word = op.partition("::")[2]
        if word.endswith("_") and not word.endswith("__") and any(isinstance(v, Live) for v in _flat(given)):
            return self._write_result(op.removesuffix("_"), function, values[0], given, spot)
        if word in {"as_strided", "as_strided_copy"} and isinstance(given[0], Live):
            return self._strided(op, values[0], given, spot)
        if op not in RULES and any(isinstance(v, Live) for v in _flat(given)):
            made = self._by_parts(op, function, given, spot)
            if made is not None:
                return made
        result = self.recorder.apply(op, function, names, given, spot)
        self._note_view(op, function, names, values, result)
        return result

    def _by_parts(self, op: str, function: Callable[..., Any], given: list[Any], spot: Spot) -> Any:
        """An operator without a rule as the operators that PyTorch makes of it; None where those have none either."""
        raw = [raw_of(v) for v in given]
        try:
            found = parts_of(self.torch, op, function, raw)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, ImportError):
            return None  # the operator itself is run next, and says what is wrong with it
        if found is None:
            return None
        held = {id(r): v for r, v in zip(_flat(raw), _flat(given), strict=True) if self._is_tensor(v)}
        scope = f"{spot.scope}/{short(op)}" if spot.scope else short(op)
        for part in found.calls:
            if any(id(t) not in held for t in tensors_in(self.torch, part.operands)):
                return None  # PyTorch made it behind our back: it may hang on the inputs
            called = operator(self.torch, part.name, part.function._schema.overload_name)  # noqa: SLF001
            assert called is not None, part
            values = [_replaced(v, held) for v in part.values(called.names)]
            made = self.apply(part.name, called, called.names, values, Spot(scope, spot.source))
            values = [v for v in _flat([made]) if self._is_tensor(v)]
            held.update((id(t), v) for t, v in zip(tensors_in(self.torch, part.result), values, strict=True))
        return _replaced(found.result, held)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, (Live, self.torch.Tensor))

    # -- writing

    def _write_result(self, op: str, function: Callable[..., Any], target: Any, given: list[Any], spot: Spot) -> Any:
        pure = self._pure(op, function, spot)
        if op.partition("::")[2] in _RESHAPES | _SWAPS:
            return self._turn(op, pure, target, given, spot)
        result = self.recorder.apply(op, pure, pure.names, given, spot)
        self._write(target, result, spot, op)
        return self.current(target)

    def _turn(self, op: str, pure: Operator, target: Any, given: list[Any], spot: Spot) -> Any:
        """`y.transpose_(0, 1)`: everyone who holds `target` holds another view of its elements, which stay."""
        if not isinstance(target, Live):
            what = f"the model writes into the shape of a constant by {op}_"
            raise self.recorder.fail(spot, op, what, hint="write it without the trailing underscore", kind=NotTaken)
        before = Live(target.ref, target.tensor)
        before.view, before.seen, before.version = target.view, target.seen, target.version
        result = self.recorder.apply(op, pure, pure.names, [before, *given[1:]], spot)
        target.ref, target.tensor = result.ref, result.tensor
        target.view, target.seen = View(before, op, pure, pure.names, (before, *given[1:])), before.version
        return target

    def _pure(self, op: str, function: Callable[..., Any], spot: Spot) -> Operator:
        found = operator(self.torch, op, getattr(function, "overload", ""))
        if found is None or not _takes_the_same(found, function):
            found = self._alike(op, function) or found
        if found is None:
            what = f"{op}_ writes in place in a way that hbc can't follow"
            raise self.recorder.fail(spot, op, what, hint="write it without the trailing underscore", kind=NotTaken)
        return found

    def _alike(self, op: str, function: Callable[..., Any]) -> Operator | None:
        """The overload of `op` with the arguments of `function`: `transpose_` is `transpose.int` without a name."""
        packet = getattr(self.torch.ops.aten, op.partition("::")[2], None)
        overloads = [] if packet is None else packet.overloads()
        found = (operator(self.torch, op, name) for name in overloads)
        return next((f for f in found if f is not None and _takes_the_same(f, function)), None)

    def _write(self, target: Any, new: Any, spot: Spot, op: str) -> None:
        """Everyone who holds `target` holds `new` from now on."""
        view = self._view(target)
        if view is not None:
            self._write(view.base, self._put_back(view, new, spot, op), spot, op)
            return
        if isinstance(target, self.torch.Tensor):
            if id(target) not in self._promoted:
                self._promoted[id(target)] = (target, Live(new.ref, new.tensor))
            live = self._promoted[id(target)][1]
        else:
            live = target
        live.ref, live.tensor = new.ref, laid_out(self.torch, new.tensor, live.tensor)
        live.version += 1

    def _view(self, value: Any) -> View | None:
        if isinstance(value, Live):
            return value.view
        found = self._constant_views.get(id(value))
        return None if found is None else found[1]

    def _put_back(self, view: View, part: Any, spot: Spot, op: str) -> Any:
        """The whole of `view.base` with `part` where the view was."""
        base, word = self.current(view.base), view.op.partition("::")[2]
        rest = dict(zip(view.names[1:], view.values[1:], strict=False))
        aten, apply = self.torch.ops.aten, self.recorder.apply
        if word == "select":
            given = [base, part, rest["dim"], rest["index"]]
            return apply("aten::select_scatter", aten.select_scatter, ("self", "src", "dim", "index"), given, spot)
        if word == "slice":
            keys = ("dim", "start", "end", "step")
            given = [base, part, *(rest.get(k, d) for k, d in zip(keys, (0, None, None, 1), strict=True))]
            return apply("aten::slice_scatter", aten.slice_scatter, ("self", "src", *keys), given, spot)
        shape = list(_tensor(base).shape)
        if word in _RESHAPES:
            return apply("aten::reshape", aten.reshape, ("self", "shape"), [part, shape], spot)
        if word in _SWAPS:
            order = axes_order(self.torch, view.function, view.values[1:], len(shape))
            back = [order.index(i) for i in range(len(order))]
            return apply("aten::permute", aten.permute, ("self", "dims"), [part, back], spot)
        if word in _PARTS and view.index is not None:
            return self._put_back_part(view, base, part, rest, spot)
        return self._put_back_anywhere(view, base, part, spot, op)

    def _put_back_anywhere(self, view: View, base: Any, part: Any, spot: Spot, op: str) -> Any:
        """By the places of the view's elements: of diagonals, windows, strides."""
        shape = tuple(_tensor(base).shape)
        rest = [raw_of(v) for v in view.values[1:]]
        index = places(self.torch, view.function, rest, shape)
        if index.unique().numel() < index.numel():
            hint = "write to a clone of it, or put the parts together with torch.cat"
            what = f"the model writes into the result of {view.op}"
            raise self.recorder.fail(spot, op, what, why="of which several elements are one", hint=hint, kind=NotTaken)
        aten, apply = self.torch.ops.aten, self.recorder.apply
        whole, src = (apply("aten::reshape", aten.reshape, ("self", "shape"), [v, [-1]], spot) for v in (base, part))
        names = ("self", "dim", "index", "src")
        flat = apply("aten::scatter", aten.scatter.src, names, [whole, 0, index, src], spot)
        return apply("aten::reshape", aten.reshape, ("self", "shape"), [flat, list(shape)], spot)

    def _put_back_part(self, view: View, base: Any, part: Any, rest: dict[str, Any], spot: Spot) -> Any:
        aten, apply, dim = self.torch.ops.aten, self.recorder.apply, rest.get("dim", 0)
        assert view.index is not None, view
        if view.op.endswith("unbind"):
            given = [base, part, dim, view.index]
            return apply("aten::select_scatter", aten.select_scatter, ("self", "src", "dim", "index"), given, spot)
        sizes = [p.shape[dim] for p in view.function(_tensor(base), *view.values[1:])]
        start = sum(sizes[: view.index])
        given = [base, part, dim, start, start + sizes[view.index], 1]
        names = ("self", "src", "dim", "start", "end", "step")
        return apply("aten::slice_scatter", aten.slice_scatter, names, given, spot)

    # -- reading

    def _refresh(self, live: Live) -> None:
        view = live.view
        if view is None:
            return
        base = self.current(view.base)
        if not isinstance(base, Live) or base.version == live.seen:
            return
        again = self.recorder.apply(view.op, view.function, view.names, [base, *view.values[1:]], Spot())
        again = again if view.index is None else again[view.index]
        live.ref, live.tensor, live.seen = again.ref, again.tensor, base.version
        live.version += 1

    def _constant(self, tensor: Any) -> Any:
        """A constant, or where it is a part of one that was written to, what it is by now."""
        found = self._constant_views.get(id(tensor))
        if found is None:
            return tensor
        view = found[1]
        base = self.current(view.base)
        if not isinstance(base, Live):
            return tensor
        again = self.recorder.apply(view.op, view.function, view.names, [base, *view.values[1:]], Spot())
        return again if view.index is None else again[view.index]

    def _note_view(
        self, op: str, function: Callable[..., Any], names: Sequence[str], values: Sequence[Any], result: Any
    ) -> None:
        if not values or not self._is_tensor(values[0]):
            return
        base = self.current(values[0])
        several = isinstance(result, (list, tuple))
        for i, part in enumerate(result if several else [result]):
            if part is base or not self._is_tensor(part) or not shares(_tensor(part), _tensor(base)):
                continue
            view = View(values[0], op, function, tuple(names), tuple(values), i if several else None)
            if isinstance(part, Live):
                part.view, part.seen = view, base.version if isinstance(base, Live) else 0
            else:
                self._constant_views[id(part)] = (part, view)

    def _strided(self, op: str, base: Any, given: list[Any], spot: Spot) -> Any:
        """`as_strided`: the elements of a tensor by their places in its memory."""
        tensor, size, stride, *offset = [raw_of(v) for v in given]
        index = strided_places(self.torch, tensor, size, stride, offset[0] if offset else None)
        if index is None:
            what, why = "as_strided reads beyond the tensor", "the memory around it belongs to a larger one"
            raise self.recorder.fail(spot, op, what, why=why, hint="take it of the larger tensor", kind=NotTaken)
        take = operator(self.torch, "aten::take", "")
        assert take is not None
        result = self.recorder.apply("aten::take", take, take.names, [given[0], index], spot)
        if isinstance(base, Live) and not op.endswith("_copy"):
            result.view, result.seen = View(base, "aten::take", take, take.names, (base, index)), base.version
        return result


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Live) else value


def _takes_the_same(pure: Operator, function: Callable[..., Any]) -> bool:
    """Whether two operators have the same arguments, by name and type: `pow.Scalar` raises a number, `pow_` doesn't."""
    if pure.names != getattr(function, "names", ()):
        return False
    schemas = [f.function._schema.arguments for f in (pure, function) if isinstance(f, Operator)]  # noqa: SLF001
    return [str(a.type) for a in schemas[0]] == [str(a.type) for a in schemas[-1]]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [w for v in values for w in (_flat(v) if isinstance(v, (list, tuple)) else [v])]


def _replaced(value: Any, held: dict[int, Any]) -> Any:
    """`value` with what the tensors in it stand for."""
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(v, held) for v in value)
    return held.get(id(value), value)
