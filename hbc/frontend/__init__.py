"""Model files → typed IR. `load` is the door; importers load on demand: `import hbc` needs neither onnx nor torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hbc.diagnostics import NoOnnx, NotAModel, TooLarge
from hbc.ir.core import Module

from .files import ModelFile, read, refuse_foreign
from .problem import problem

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["load"]

_TORCH = {".pt", ".pt2", ".pth", ".ckpt"}


def load(source: str | Path | bytes | ModelProto, shapes: Mapping[str, Sequence[int]] | None = None) -> Module:
    """A model as IR: an ONNX file (by path, bytes or ModelProto), or a `.hbir` text (by path or bytes).

    `shapes` binds sizes that the model leaves open: input name → whole shape. `Module.metadata` says where it came
    from: `source` (file name), `sha256` (of the bytes), `opset`, `producer`.
    FrontendError says what, where, why and what to try for anything that isn't a model hbc can take in.
    """
    bound = dict(shapes or {})
    if not isinstance(source, (str, Path, bytes, bytearray, memoryview)):
        return _from_proto(source, bound)
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.suffix.lower() in _TORCH:
            hint = "export it to ONNX with torch.onnx.export"
            raise problem("PyTorch files aren't taken yet", where=str(path), hint=hint, kind=NotAModel)
        file = read(path)
    else:
        file = ModelFile("<bytes>", bytes(source), None)
        if not file.data:
            raise problem("the model is empty", where=file.name, why="it has 0 bytes", kind=NotAModel)
    if file.name.lower().endswith(".hbir") or file.data.startswith(b"// hbir"):
        return _from_text(file)
    refuse_foreign(file)
    _require_onnx(file.name)
    from .onnx_import import import_bytes

    return import_bytes(file.data, file.name, file.folder, _sha256(file.data), bound)


def _from_proto(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> Module:
    _require_onnx("<ModelProto>")
    import onnx
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

    from .onnx_import import import_model
    from .onnx_model import Source

    given: object = model
    if not isinstance(given, onnx.ModelProto):
        hint = "give a path, the file's bytes, or an onnx.ModelProto"
        raise problem(f"no model: {type(given).__name__}", where="hbc.frontend.load", hint=hint, kind=NotAModel)
    own = onnx.ModelProto()
    own.CopyFrom(model)
    try:
        digest = _sha256(own.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        why = f"{error}; a protobuf message ends at 2 GiB"
        hint = "save it with its weights in an external data file and give the path"
        raise problem(
            "the model can't be serialised", where="<ModelProto>", why=why, hint=hint, kind=TooLarge
        ) from error
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
    except ImportError as error:
        raise problem(
            "reading ONNX needs the onnx package", where=where, why=str(error), hint="pip install hbc", kind=NoOnnx
        ) from error
    del onnx


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
