"""Models to look into: their units' results by name, the whole way from the inputs and on given operands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from hbc.diagnostics import OptionError, error

from ..capturing import Interface
from ..converting import FixedPointModel
from ..eager import as_graph
from ..errors import no_such
from ..exact import TABLED
from ..fake_quantize import FakeQuantize
from ..preparing import prepare
from ..pytree import walk
from ..states import batch_arguments, fake_quantizes, require_prepared
from ..units import QuantizedOperation, QuantizedUnit, QuantizedWeighted, is_prepared

Array = npt.NDArray[Any]
Values = Mapping[str, Array]
MODES = ("float", "fake", "lut", "exact")
COMPOSITE = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "div", "rdiv", "gelu", "pow"})


class Runnable(Protocol):
    """A model in one arithmetic."""

    about: str

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units that it has values of, in running order."""

    def run(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """Results of the units, as reals, the whole way from the inputs."""

    def outputs(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """The model's results by name."""

    def own(self, args: tuple[Any, ...], given: Values) -> dict[str, Array]:
        """Results of the units whose operands are those of `given`, rounded to this model's integers."""


def batches(inputs: Any, count: int, steps: int | None = None) -> Iterator[tuple[Any, ...]]:
    """The calls that `inputs` stands for: a tuple of arguments, a tensor or a mapping is one; else a loader of many.

    Of a loader's batch that is longer than the model's `count` arguments, labels for instance, the first are taken.
    """
    single = isinstance(inputs, (Tensor, Mapping, tuple))
    found: Iterable[Any] = [inputs] if single else inputs
    number = 0
    for number, batch in enumerate(found, 1):
        yield batch_arguments(batch, count)
        if number == steps:
            break
    if not number:
        raise error(OptionError, "there is no batch to look at", hint="give inputs, or a loader that isn't empty")


def argument_count(model: nn.Module) -> int:
    """How many arguments a model takes: a float one, those that its `forward` has no defaults for."""
    if not isinstance(model, FixedPointModel) and not is_prepared(model):
        taken = inspect.signature(model.forward).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return max(1, sum(p.kind in positional and p.default is p.empty for p in taken))
    interface: Interface = model.interface if isinstance(model, FixedPointModel) else model.meta["interface"]  # type: ignore[index, assignment]
    return max((position for _, position, _ in interface.inputs), default=0) + 1


def prepared_graph(model: nn.Module, verb: str) -> fx.GraphModule:
    """A prepared model as a graph of its units: itself, or, of one that keeps its own forward, what that does on the
    example of `prepare`. The units are the model's own. NotPrepared for a float model.
    """
    require_prepared(model, verb)
    return as_graph(model, model.meta["example_inputs"])  # type: ignore[index]


def as_prepared(model: nn.Module, args: tuple[Any, ...], like: nn.Module | None = None) -> fx.GraphModule:
    """A prepared model as it is; of a float one the units that `prepare` finds, in reals, by the method of `like`."""
    if is_prepared(model):
        return prepared_graph(model, "debug")
    own_forward = like is not None and is_prepared(like) and not isinstance(like, fx.GraphModule)
    options: dict[str, Any] = {"method": "eager"} if own_forward else {}
    made = prepare(model, args, **options)
    for fq in fake_quantizes(made):
        fq.observing = fq.quantizing = False
    return prepared_graph(made, "debug").eval()


def units_in_order(model: fx.GraphModule) -> dict[str, QuantizedUnit]:
    """The units by name, as they run."""
    modules = dict(model.named_modules())
    found = {str(n.target): modules[str(n.target)] for n in model.graph.nodes if n.op == "call_module"}
    return {name: m for name, m in found.items() if isinstance(m, QuantizedUnit)}


def kind_of(unit: QuantizedUnit) -> str:
    """What a unit computes: `Conv2d+add+relu`, `softmax`, `quantize`."""
    if isinstance(unit, QuantizedWeighted):
        parts = [unit.kind.__name__, *(["bn"] if unit.bn is not None else []), *(["add"] if unit.has_addend else [])]
        return "+".join([*parts, *([unit.activation] if unit.activation else [])])
    return unit.operation if isinstance(unit, QuantizedOperation) else "quantize"


def result_of(unit: QuantizedUnit) -> FakeQuantize | None:
    """The FakeQuantize of a unit's result where it rounds."""
    fq = unit.activation_post_process
    return fq if fq is not None and fq.quantizing else None


def dtype_of(unit: QuantizedUnit | None) -> str:
    """`int8`, `int16`, `int32` of an accumulator, `float32` where nothing is rounded."""
    fq = None if unit is None else unit.activation_post_process
    if fq is not None:
        return fq.spec.dtype if fq.quantizing else "float32"
    rounds = isinstance(unit, QuantizedWeighted) and unit.weight_fake_quant.quantizing
    return "int32" if rounds else "float32"


def scale_of(fq: FakeQuantize | None) -> float | None:
    """The largest scale."""
    return float(fq.scale.detach().max()) if fq is not None and fq.quantizing and fq.is_ready() else None


@contextmanager
def in_mode(model: fx.GraphModule, mode: str) -> Iterator[None]:
    """`float`: no rounding; `fake`: fake-quantised reals; `lut`: these, but tables and composites in integers; `exact`:
    the integers of the compiled program. Everything is as before afterwards; nothing is observed meanwhile.
    """
    if mode not in MODES:
        raise no_such("mode", mode, MODES)
    with kept_state(model):
        model.eval()
        for fq in fake_quantizes(model):
            fq.observing = False
            fq.quantizing = fq.quantizing and mode != "float"
            if mode != "float" and fq.quantizing and fq.axis is None:
                fq.require_scale()
        for unit in units_in_order(model).values():
            unit.mode = "exact" if mode == "exact" or (mode == "lut" and is_table(unit)) else "plain"
        yield


def is_table(unit: QuantizedUnit) -> bool:
    """True for a unit that the chip computes by look-up tables, alone or among other steps."""
    return isinstance(unit, QuantizedOperation) and unit.operation in TABLED | COMPOSITE


@contextmanager
def kept_state(model: nn.Module) -> Iterator[None]:
    """Switches, modes and training flags are put back afterwards."""
    training = {m: m.training for m in model.modules()}
    switches = {fq: (fq.observing, fq.quantizing) for fq in fake_quantizes(model)}
    modes = {m: m.mode for m in model.modules() if isinstance(m, QuantizedUnit)}
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
        for fq, (observing, quantizing) in switches.items():
            fq.observing, fq.quantizing = observing, quantizing
        for unit, mode in modes.items():
            unit.mode = mode


class Recorder(fx.Interpreter):
    """Runs a graph of units and tells every unit's result; what `told` returns is read from then on."""

    def __init__(self, model: fx.GraphModule, told: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__(model)
        self.told = told
        self.known = units_in_order(model)

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        if n.op == "call_module" and str(n.target) in self.known:
            return self.told(str(n.target), out)
        return out


class UnitRunnable:
    """A prepared model in one mode."""

    def __init__(self, model: fx.GraphModule, mode: str) -> None:
        self.model, self.mode = model, mode
        self.about = {"float": "float", "fake": "fake quantised", "lut": "fake quantised, tables exact"}.get(mode, mode)
        self.known = units_in_order(model)

    @property
    def units(self) -> tuple[str, ...]:
        """Every unit."""
        return tuple(self.known)

    def run(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """The whole way."""
        found: dict[str, Array] = {}

        def note(name: str, y: Tensor) -> Tensor:
            found[name] = to_array(y)
            return y

        with torch.no_grad(), in_mode(self.model, self.mode):
            Recorder(self.model, note).run(*args)
        return found

    def outputs(self, args: tuple[Any, ...]) -> dict[str, Array]:
        """The results."""
        with torch.no_grad(), in_mode(self.model, self.mode):
            return named_outputs(self.model.meta["interface"], self.model(*args))

    def own(self, args: tuple[Any, ...], given: Values) -> dict[str, Array]:
        """Every unit on what was given."""
        found: dict[str, Array] = {}

        def replace(name: str, y: Tensor) -> Tensor:
            found[name] = to_array(y)
            want = given.get(name)
            if want is None or want.shape != tuple(y.shape):
                return y
            x = torch.from_numpy(np.ascontiguousarray(want)).to(y.device, y.dtype)
            fq = self.known[name].activation_post_process
            return x if fq is None else fq(x)

        with torch.no_grad(), in_mode(self.model, self.mode):
            Recorder(self.model, replace).run(*args)
        return found


def named_outputs(interface: Interface, result: Any) -> dict[str, Array]:
    """A call's result by the names of the outputs."""
    leaves = [leaf for _, leaf in walk(result) if isinstance(leaf, Tensor)]
    return {name: to_array(leaf) for name, leaf in zip(interface.outputs, leaves, strict=True)}


def to_array(x: Tensor) -> Array:
    """Without gradients, on the host."""
    return x.detach().cpu().numpy()


@contextmanager
def switches(model: fx.GraphModule, changes: Sequence[tuple[FakeQuantize, bool]]) -> Iterator[None]:
    """Some FakeQuantizes round (True) or don't, in plain arithmetic; everything is as before afterwards."""
    with ExitStack() as stack:
        stack.enter_context(in_mode(model, "fake"))
        for fq, on in changes:
            fq.quantizing = on
        yield
