"""Model files → typed IR. `load` is the door; importers load on demand: `import hbc` needs neither onnx nor torch."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hbc.diagnostics import NoOnnx, NotAModel, OptionError, TooLarge, error
from hbc.example import Example
from hbc.ir.core import Module

from .files import TORCH_SUFFIXES, ModelFile, read, refuse_foreign
from .problem import problem

if TYPE_CHECKING:
    from onnx import ModelProto

    from .torch_reference import TorchReference

__all__ = ["load"]

Given = Mapping[str, Sequence[int]]


def load(
    source: str | Path | bytes | ModelProto | object,
    shapes: Given | None = None,
    examples: Sequence[Example] = (),
    output_names: Sequence[str] = (),
) -> Module:
    """A model as IR: ONNX (by path, bytes or ModelProto), TorchScript or `.pt2` (by path, bytes, or as PyTorch has it),
    or a `.hbir` text (by path or bytes).

    `shapes` binds sizes that the model leaves open: input name → whole shape. `examples` and `output_names` are of
    PyTorch's models, which say neither. `Module.metadata` says where it came from: `source` (file name), `sha256` (of
    the bytes), `opset`, `producer`.
    FrontendError says what, where, why and what to try for anything that isn't a model hbc can take in.
    """
    bound = dict(shapes or {})
    if not isinstance(source, (str, Path, bytes, bytearray, memoryview)):
        in_memory = _torch_object(source)
        if in_memory is not None:
            return _from_torch(in_memory, bound, examples, output_names)
        _require_no_examples("<ModelProto>", examples, output_names)
        return _from_proto(source, bound)
    if isinstance(source, (str, Path)):
        file = read(Path(source))
    else:
        file = ModelFile("<bytes>", bytes(source), None)
        if not file.data:
            raise problem("the model is empty", where=file.name, why="it has 0 bytes", kind=NotAModel)
    if is_torch_file(file):
        return _from_torch(file, bound, examples, output_names)
    _require_no_examples(file.name, examples, output_names)
    if file.name.lower().endswith(".hbir") or file.data.startswith(b"// hbir"):
        return _from_text(file)
    refuse_foreign(file)
    _require_onnx(file.name)
    from .onnx_import import import_bytes

    return import_bytes(file.data, file.name, file.folder, _sha256(file.data), bound)


def is_torch_file(file: ModelFile) -> bool:
    """True for what PyTorch's front end is to read, by its suffix or by what it holds."""
    from .torch_files import is_torch

    suffix = "" if file.path is None else file.path.suffix.lower()
    return suffix in TORCH_SUFFIXES or (suffix != ".onnx" and is_torch(file.data))


def is_torch_path(path: Path) -> bool:
    """True for the path of a model that PyTorch's front end reads; False where there is no such file, or it is ONNX."""
    if path.suffix.lower() in TORCH_SUFFIXES:
        return True
    if path.suffix.lower() in {".onnx", ".hbir"} or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2)
    return head == b"PK" and is_torch_file(read(path))


def open_torch(path: Path, bound: Given, examples: Sequence[Example], output_names: Sequence[str]) -> TorchReference:
    """The model of a TorchScript or `.pt2` file, to be run by PyTorch. FrontendError where it can't be taken in."""
    from .torch_reference import TorchReference

    return TorchReference.of(read(path), [*examples, *shapes_as_examples(bound, examples)], output_names)


def _from_torch(file: ModelFile, bound: Given, examples: Sequence[Example], output_names: Sequence[str]) -> Module:
    from .torch_import import import_torch

    return import_torch(file, [*examples, *shapes_as_examples(bound, examples)], output_names)


def shapes_as_examples(bound: Given, examples: Sequence[Example]) -> list[Example]:
    """`--shape NAME=…` of an input that has no `--example`."""
    named = {e.name for e in examples}
    return [Example(tuple(dims), name=name) for name, dims in bound.items() if name not in named]


def _torch_object(source: object) -> ModelFile | None:
    """The bytes that PyTorch would save of a ScriptModule or an ExportedProgram; None for any other object."""
    if not type(source).__module__.startswith(("torch.", "torch_")) and "torch" not in sys.modules:
        return None
    from .torch_files import saved

    return saved(source)


def _require_no_examples(where: str, examples: Sequence[Example], output_names: Sequence[str]) -> None:
    given = ["example"] * bool(examples) + ["output_names"] * bool(output_names)
    if given:
        what = f"{' and '.join(given)} belong{'s' * (len(given) == 1)} to PyTorch's models"
        hint = "an ONNX model names its inputs and outputs; --shape NAME=1x3x224x224 binds sizes that it leaves open"
        raise error(OptionError, what, where=where, hint=hint)


def _from_proto(model: object, shapes: Given) -> Module:
    _require_onnx("<ModelProto>")
    import onnx
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

    from .onnx_import import import_model
    from .onnx_model import Source

    if not isinstance(model, onnx.ModelProto):
        hint = "give a path, the file's bytes, an onnx.ModelProto, a ScriptModule or an ExportedProgram"
        raise problem(f"no model: {type(model).__name__}", where="hbc.frontend.load", hint=hint, kind=NotAModel)
    own = onnx.ModelProto()
    own.CopyFrom(model)
    try:
        digest = _sha256(own.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as err:
        why = f"{err}; a protobuf message ends at 2 GiB"
        hint = "save it with its weights in an external data file and give the path"
        raise problem("the model can't be serialised", where="<ModelProto>", why=why, hint=hint, kind=TooLarge) from err
    return import_model(Source(own, f"<{model.graph.name or 'ModelProto'}>", None, digest, {}), shapes)


def _from_text(file: ModelFile) -> Module:
    from hbc.ir.files import load_module
    from hbc.ir.parser import parse_module

    if file.path is not None:
        module = load_module(file.path)  # with the arrays beside it
    else:
        module = parse_module(file.data.decode("utf-8", "replace"), filename=file.name)
    module.metadata.setdefault("source", file.name)
    module.metadata.setdefault("sha256", _sha256(file.data))
    return module


def _require_onnx(where: str) -> None:
    try:
        import onnx
    except ImportError as err:
        raise problem(
            "reading ONNX needs the onnx package", where=where, why=str(err), hint="pip install hbc", kind=NoOnnx
        ) from err
    del onnx


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
