"""FakeQuantize modules of `torch.ao` (and modules shaped like them) in TorchScript: one record each.

Their own code also observes ranges and keeps statistics, in a dozen operators that no program needs. The buffers
`scale` and `zero_point` hold what was learned, whether or not the observer was left on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .torch_api import operator
from .torch_recorder import Recorder, Spot

_FAKE_QUANTISE = re.compile(r"FakeQuantize$|FakeQuant$")
_OBSERVER = re.compile(r"(?:^|\.)(?:torch\.ao|torch\.quantization|torchao)\..*Observer$")
_MANGLED = re.compile(r"\.___torch_mangle_\d+")


@dataclass(frozen=True)
class Quantiser:
    """What a FakeQuantize module does: `axis` is −1 for one scale."""

    scale: Any
    zero_point: Any
    quant_min: int
    quant_max: int
    axis: int
    enabled: bool
    observes: bool

    def apply(self, recorder: Recorder, x: Any, path: str, result_kind: str) -> Any:
        """The record on `x`; where the module was traced to return its state too, a tuple with the tensor first."""
        if self.observes:
            recorder.note(f"{path}: its observer was left on; its scale is the one in its buffers")
        if not self.enabled:
            recorder.note(f"{path}: fake quantisation is switched off there, so it is left out")
            return x
        zero = self.zero_point
        zero = zero if zero.dtype.is_floating_point else zero.to(recorder.torch.int32)
        for name, tensor in (("scale", self.scale), ("zero_point", zero)):
            recorder.name_constant(tensor, f"{path}.{name}")
        function = operator(recorder.torch, "hbc::fake_quantize", "default")
        assert function is not None, "registered when the file was opened"
        given = {
            "x": x, "scale": self.scale, "zero_point": zero, "quant_min": self.quant_min, "quant_max": self.quant_max,
            "axis": self.axis,
        }  # fmt: skip
        given |= {"qmin": self.quant_min, "qmax": self.quant_max, "ch_axis": self.axis}
        values = [given[name] for name in function.names]
        made = recorder.apply("hbc::fake_quantize", function, function.names, values, Spot(path))
        return FirstOf(made) if result_kind == "TupleType" else made


class FirstOf(tuple[Any, ...]):
    """A result whose further parts, the observer's state, nobody has: any number of them."""

    __slots__ = ()

    def __new__(cls, first: Any) -> FirstOf:  # noqa: PYI034 - needs Python 3.11
        return super().__new__(cls, (first,))


def type_name(module: Any) -> str:
    """The class of a scripted module, as `torch.nn.modules.conv.Conv2d`."""
    name = str(module._c._type().qualified_name())  # noqa: SLF001 - `original_name` lacks the package
    return _MANGLED.sub("", name).removeprefix("__torch__.")


def is_observer(module: Any) -> bool:
    """True for an observer of `torch.ao`, which hands its input on."""
    return bool(_OBSERVER.search(type_name(module)))


def quantiser(module: Any, torch: Any) -> Quantiser | None:
    """What a FakeQuantize module does; None for any other, and where that can't be told: its code is followed then."""
    if not _FAKE_QUANTISE.search(type_name(module)):
        return None
    scale, zero = getattr(module, "scale", None), getattr(module, "zero_point", None)
    if not isinstance(scale, torch.Tensor) or not isinstance(zero, torch.Tensor):
        return None
    try:
        nodes = [n for n in _nodes(module.graph) if "fake_quant" in n.kind()]
    except RuntimeError:  # saving left its code out: nothing calls it
        return None
    if len({n.kind() for n in nodes}) not in {1, 2}:
        return None
    limits = [_limits(module, n, torch) for n in nodes]
    if not limits or any(lim is None or lim[:2] != limits[0][:2] for lim in limits):  # type: ignore[index]
        return None
    low, high, axis = next((lim for lim in limits if lim is not None and lim[2] >= 0), limits[0])  # type: ignore[misc]
    axis = axis if scale.numel() > 1 else -1
    if scale.numel() > 1 and axis < 0:
        return None
    on, observes = (_flag(module, name) for name in ("fake_quant_enabled", "observer_enabled"))
    return Quantiser(scale.detach(), zero.detach(), low, high, axis, on is not False, observes is True)


def _flag(module: Any, name: str) -> bool | None:
    flag = getattr(module, name, None)
    return None if flag is None else bool(int(flag.reshape(-1)[0]) if hasattr(flag, "reshape") else flag)


def _limits(module: Any, node: Any, torch: Any) -> tuple[int, int, int] | None:
    """(quant_min, quant_max, axis) of an operator in the module's own code."""
    names = [a.name for a in torch._C.parse_schema(node.schema()).arguments]  # noqa: SLF001
    given = {n: _static(module, v) for n, v in zip(names, node.inputs(), strict=True)}
    low, high = given.get("quant_min"), given.get("quant_max")
    per_channel = "per_channel" in node.kind() or given.get("per_row_fake_quant") is True
    axis = given.get("axis", given.get("ch_axis")) if per_channel else -1
    if not all(isinstance(v, int) for v in (low, high, axis)):
        return None
    return int(low), int(high), int(axis)  # type: ignore[arg-type]


def _static(module: Any, value: Any) -> Any:
    """A constant of the module's code, or one of its attributes; None for what is computed."""
    node = value.node()
    if node.kind() == "prim::Constant":
        return value.toIValue()
    if node.kind() == "prim::GetAttr":
        base = _static(module, node.inputsAt(0))
        return None if base is None else getattr(base, node.s("name"), None)
    if node.kind() == "prim::Param" and value.debugName().startswith("self"):
        return module
    return None


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)
