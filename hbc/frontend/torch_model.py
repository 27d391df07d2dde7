"""A PyTorch file → its records: opened, run on the examples, outputs named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hbc.diagnostics import BadModelOutput, NotTaken, OptionError
from hbc.diagnostics.errors import error
from hbc.example import Example, dtype_named

from .files import ModelFile
from .problem import listing, problem, quoted
from .torch_api import quiet, register_ops, require_torch
from .torch_containers import take_apart
from .torch_export import ExportWalker
from .torch_files import ScriptFile, open_file
from .torch_inputs import Argument, assigned, tensors_of
from .torch_recorder import Live, Recorder, Spot
from .torch_records import Recorded, Ref, Weight
from .torchscript import Walker


def record_file(file: ModelFile, examples: Sequence[Example], output_names: Sequence[str] = ()) -> Recorded:
    """The records of a TorchScript or `.pt2` file. FrontendError for anything that can't be taken in."""
    torch = require_torch(file.name)
    opened = open_file(torch, file)
    register_ops(torch)
    recorder = Recorder(torch, file.name)
    script = isinstance(opened, ScriptFile)
    arguments = _script_arguments(opened.module) if script else _export_arguments(file.name, opened)
    taken_apart = take_apart(arguments, examples)
    arguments = taken_apart.arguments
    given = assigned(file.name, arguments, taken_apart.examples)
    used = [e for e in given if e is not None]
    with quiet():
        lives = [recorder.input(e.name, t) for e, t in zip(used, tensors_of(torch, used), strict=True)]
        refs = tuple(v.ref for v in lives)  # as they came in: a model may write into its inputs
        rest = iter(lives)
        flat = [a.default if e is None else next(rest) for a, e in zip(arguments, given, strict=True)]
        values = taken_apart.closed(flat)
        results = _script_results(opened, recorder, values) if script else _export_results(opened, recorder, values)
    outputs = _outputs(recorder, results, output_names)
    kind = "TorchScript" if script else "torch.export"
    return Recorded(file.name, tuple(recorder.records), refs, outputs, tuple(recorder.notes), f"{kind}, PyTorch")


# ---- TorchScript


def _script_arguments(module: Any) -> list[Argument]:
    found = []
    for a in module.forward.schema.arguments[1:]:
        has_default = a.has_default_value()
        kind = str(a.type)
        found.append(
            Argument(a.name, kind=kind, has_default=has_default, default=a.default_value if has_default else None)
        )
    return found


def _script_results(opened: ScriptFile, recorder: Recorder, values: Sequence[Any]) -> Any:
    walker = Walker(recorder, opened)
    results = walker.run(opened.module, values)
    return walker.settled(results)


# ---- torch.export


def _export_arguments(file: str, program: Any) -> list[Argument]:
    fakes = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    found = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT" or type(spec.arg).__name__ != "TensorArgument":
            continue
        fake = fakes.get(spec.arg.name)
        if fake is None:
            raise problem("the program doesn't describe its inputs", where=file, hint="export it again", kind=NotTaken)
        shape = tuple(d if isinstance(d, int) else None for d in fake.shape)
        dtype = str(fake.dtype).removeprefix("torch.")
        found.append(Argument(spec.arg.name, shape, dtype_named(dtype)))
    return found


def _export_results(program: Any, recorder: Recorder, values: Sequence[Any]) -> Any:
    walker = ExportWalker(recorder, program)
    results = [walker.writer.current(v) for v in walker.run(values)]
    tree = getattr(recorder.torch.utils, "_pytree", None)
    try:
        return results if tree is None else tree.tree_unflatten(results, program.call_spec.out_spec)
    except (ValueError, KeyError, TypeError):  # a container that only the exporting program knows
        return results


# ---- outputs


def _outputs(recorder: Recorder, results: Any, output_names: Sequence[str]) -> tuple[tuple[str, Ref | Weight], ...]:
    found = []
    for name, value in _leaves(recorder, results, ""):
        if isinstance(value, (Live, recorder.torch.Tensor)):
            found.append((name, recorder.as_arg(value, Spot())))
        elif value is not None:
            recorder.note(f"output {quoted(name)} is {value!r:.40}, no tensor, and is left out")
    if not found:
        raise problem("the model returns no tensor", where=recorder.file, kind=BadModelOutput)
    if not output_names:
        return tuple((name or "output", value) for name, value in found)
    if len(output_names) != len(found) or len(set(output_names)) != len(output_names):
        why = f"the model has {len(found)}: {listing(quoted(n or 'output') for n, _ in found)}"
        what = f"{len(output_names)} output names are given: {listing(map(quoted, output_names))}"
        raise error(OptionError, what, where=recorder.file, why=why, hint="give each output one name of its own")
    return tuple((name, value) for name, (_, value) in zip(output_names, found, strict=True))


def _leaves(recorder: Recorder, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Everything in nested containers by its path: keys and field names, else `output_0`, `output_1`."""
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "fields", None) or getattr(value, "_fields", None)
        plain = [str(i) if path else f"output_{i}" for i in range(len(value))]
        items = list(zip(fields or plain, value, strict=True))
        if len(value) == 1 and fields is None and not path:
            items = [("", value[0])]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(recorder, item, f"{path}.{key}" if path and key else path or key)
