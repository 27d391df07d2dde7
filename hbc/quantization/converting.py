"""`convert`, `export`, `compile_model`: from a prepared model to integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.diagnostics import CannotTrace, MarchDiffers, OptionError, error
from hbc.driver import Compiled, lower_model
from hbc.driver import compile_model as compile_onnx
from hbc.files import write_atomically
from hbc.ir.core import Module
from hbc.ir.semantics import Semantics
from hbc.options import CompileOptions, march_named
from hbc_runtime import Session

from .capturing import Interface, arguments, check_devices
from .eager import as_graph
from .emit import to_onnx
from .errors import trouble
from .fake_quantize import is_tracing
from .march import has_int16
from .onnx_writer import Form
from .pytree import fill
from .states import require_calibrated, require_prepared

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["FixedPointModel", "compile_model", "convert", "export", "export_quantized_onnx", "export_to_onnx"]


def _proto(
    model: nn.Module,
    example_inputs: Any,
    verb: str,
    name: str,
    outputs: Sequence[str] | None,
    form: Form = "compiled",
) -> ModelProto:
    require_prepared(model, verb)
    require_calibrated(model)
    args = arguments(example_inputs)
    model.meta["interface"].leaves(args)  # type: ignore[index, union-attr]
    check_devices(model, args)
    return to_onnx(as_graph(model, args), args, name, outputs, form)


def _name(model: nn.Module) -> str:
    if isinstance(model, FixedPointModel):
        return model.compiled.program.models[0].name
    return type(model).__name__.removesuffix("Impl").lower()


def export_to_onnx(
    model: nn.Module, example_inputs: Any, path: str | Path | None = None, *, output_names: Sequence[str] | None = None
) -> ModelProto:
    """The model as QDQ ONNX, int16 and narrow ranges included; written to `path` where one is given.

    Weights are integers with their scales, biases float32. ONNX Runtime runs it: in float32, so that results may differ
    from the program's by 1 quantum per layer. The opset is 20, with int16 in the domain com.microsoft; 21 for a group
    norm. Raises QuantizationError for a float model or an operation without an ONNX form.
    """
    return _written(_proto(model, example_inputs, "export_to_onnx", _name(model), output_names, "file"), path)


def export_quantized_onnx(
    model: nn.Module, example_inputs: Any, path: str | Path | None = None, *, output_names: Sequence[str] | None = None
) -> ModelProto:
    """As `export_to_onnx`, with biases as the compiled program has them: int32 in steps of the accumulator.

    Every parameter is an integer then. The form is QDQ, as ONNX's QLinear operators have no int16, no transposed
    convolution, and neither sum nor activation inside of the accumulator.
    """
    proto = _proto(model, example_inputs, "export_quantized_onnx", _name(model), output_names, "quantized")
    return _written(proto, path)


def _written(proto: ModelProto, path: str | Path | None) -> ModelProto:
    if path is not None:
        write_atomically(Path(path), proto.SerializeToString())
    return proto


def export(
    model: nn.Module, example_inputs: Any, *, name: str | None = None, output_names: Sequence[str] | None = None
) -> Module:
    """The model as a module of hbc's IR, scales verbatim, before any pass; `hbc.ir.printer` prints it.

    A model of `convert` is taken too, with the example's shapes.
    """
    proto = _compiled_form(model, example_inputs, "export", name or _name(model), output_names)
    options = CompileOptions(march=_march(model), name=name or _name(model))
    return lower_model(proto, options, stop_after="load")


def compile_model(
    model: nn.Module,
    example_inputs: Any,
    hbm: str | Path | None = None,
    *,
    march: str | None = None,
    name: str | None = None,
    output_names: Sequence[str] | None = None,
    **options: Any,
) -> Compiled:
    """Compile a prepared model for its march, or a converted one anew; written to `hbm` where a path is given.

    A model of `convert` keeps its shapes and output names; what was trained since then isn't in it. `options`: the
    other fields of `hbc.CompileOptions`. QuantizationError (MarchDiffers) for a march whose integers are others than
    those that the model was trained with.
    """
    title = name or _name(model)
    proto = _compiled_form(model, example_inputs, "compile_model", title, output_names)
    compiled = _compile(model, proto, march, title, options)
    if hbm is not None:
        compiled.save(hbm)
    return compiled


def _compile(model: nn.Module, proto: ModelProto, march: str | None, name: str, options: Mapping[str, Any]) -> Compiled:
    _check_march(model, march)
    return compile_onnx(proto, CompileOptions.of(march=march or _march(model), name=name, **options))


def _compiled_form(
    model: nn.Module, example_inputs: Any, verb: str, name: str, outputs: Sequence[str] | None
) -> ModelProto:
    """The model as ONNX as the compiler reads it: of a prepared model now, of a converted one as it was then."""
    if not isinstance(model, FixedPointModel):
        return _proto(model, example_inputs, verb, name, outputs)
    if outputs is not None:
        hint = "give output_names to convert"
        raise error(OptionError, "the outputs of a converted model have their names already", hint=hint)
    own = [tuple(d.dim_value for d in x.type.tensor_type.shape.dim) for x in model.proto.graph.input]
    given = [tuple(x.shape) for x in model.interface.leaves(arguments(example_inputs))]
    if own != given:
        raise error(
            OptionError,
            f"{verb} takes a converted model with the shapes that it has",
            why=f"it takes {_shapes(own)}, and the example has {_shapes(given)}",
            hint="convert(model, example_inputs) makes one of other shapes",
        )
    return model.proto


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("×".join(map(str, s)) for s in shapes)


def _march(model: nn.Module) -> str:
    if isinstance(model, FixedPointModel):
        return model.compiled.program.march
    return str(model.meta["march"])  # type: ignore[index]


def _check_march(model: nn.Module, march: str | None) -> None:
    own = _march(model)
    other = own if march is None else march_named(str(getattr(march, "value", march)))
    a, b = Semantics(own), Semantics(other)
    if (a.rounding, a.bias_is_16_bit, has_int16(own)) == (b.rounding, b.bias_is_16_bit, has_int16(other)):
        return
    what = "round inputs" if a.rounding is not b.rounding else "store biases"
    raise trouble(
        f"this model is prepared for {own}, and {other} computes other integers",
        why=f"{own} and {other} {what} differently",
        hint=f"set_march({other!r}) before prepare, or compile for {own}",
        kind=MarchDiffers,
    )


class FixedPointModel(nn.Module):
    """A compiled program as a torch module: the inputs and outputs of the model that it was made of, no gradients.

    `engine`: `jit` (machine code) or `reference` (NumPy). It takes batches of a multiple of the example's size.
    `proto` is what the program was compiled from.
    """

    is_fixed_point = True

    def __init__(
        self, compiled: Compiled, interface: Interface, proto: ModelProto, engine: str = "jit", threads: int = 1
    ) -> None:
        super().__init__()
        self.compiled, self.interface, self.proto = compiled, interface, proto
        self.engine, self.threads = engine, threads
        self._session: Session | None = None

    def forward(self, *args: Any) -> Any:
        if is_tracing():
            why = "its program runs outside of torch; the trace would hold this input's results as constants"
            hint = "model.save('model.hbm') keeps it; trace the prepared model for a TorchScript file"
            raise trouble("a FixedPointModel can't be traced", why=why, hint=hint, kind=CannotTrace)
        leaves = self.interface.leaves(args)
        names = [name for name, _, _ in self.interface.inputs]
        feeds = {n: t.detach().cpu().numpy() for n, t in zip(names, leaves, strict=True)}
        outputs = self.session.run(self._known(feeds))
        device = leaves[0].device if leaves else None
        values = [torch.from_numpy(np.ascontiguousarray(y)).to(device) for y in outputs.values()]
        return fill(self.interface.template, values)

    def _known(self, feeds: dict[str, Any]) -> dict[str, Any]:
        wanted = {info.name for info in self.session.inputs}
        return {n: v for n, v in feeds.items() if n in wanted}

    @property
    def session(self) -> Session:
        """The session that runs the program."""
        if self._session is None:
            self._session = Session(self.compiled.program, threads=self.threads, engine=self.engine)
        return self._session

    def integers(self, *args: Any) -> dict[str, Tensor]:
        """Every tensor that a run computes, by its name in the program: the reference engine's integers."""
        leaves = self.interface.leaves(args)
        feeds = {n: t.detach().cpu().numpy() for (n, _, _), t in zip(self.interface.inputs, leaves, strict=True)}
        found = self.session.intermediates(self._known(feeds))
        return {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in found.items()}

    def save(self, path: str | Path) -> int:
        """Write the `.hbm` file and return its size."""
        return self.compiled.save(path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}


def convert(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    engine: str = "jit",
    threads: int = 1,
    march: str | None = None,
    name: str | None = None,
    output_names: Sequence[str] | None = None,
    **options: Any,
) -> FixedPointModel:
    """The fixed-point model of a prepared one: its compiled program, scales verbatim, as a torch module.

    `example_inputs` gives the size of a batch; by default the shapes that the model was prepared with. The rest is as
    in `compile_model`.
    """
    require_prepared(model, "convert")
    meta: dict[str, Any] = model.meta  # type: ignore[assignment]
    given = meta["example_inputs"] if example_inputs is None else example_inputs
    title = name or _name(model)
    proto = _proto(model, given, "convert", title, output_names)
    return FixedPointModel(_compile(model, proto, march, title, options), meta["interface"], proto, engine, threads)
