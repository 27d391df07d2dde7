"""PyTorch files: what one is, by what it holds, and opening it without running anything but TorchScript's own code.

`torch.load` could run any Python that a pickle names, so it is never called to read one: a state dict or a pickled
module is told from its contents, and refused with what to do. A TorchScript archive is read by `torch.jit.load`'s own
reader, which knows TorchScript and tensors only. A `.pt2` may embed pickles; they are first tried with `weights_only`,
which takes tensors alone, and the file is refused where that fails.
"""

from __future__ import annotations

import io
import json
import logging
import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hbc.diagnostics import FrontendError, NotAModel, NotTaken

from .files import ModelFile
from .problem import listing, problem
from .torch_api import quiet, register_ops, require_torch

_TRACE = "model = torch.jit.trace(model.eval(), example); model.save('model.pt'), and compile that"
_ONNX_HINT = "it is an ONNX model: give it the suffix .onnx"


@dataclass(frozen=True)
class ScriptFile:
    """An opened TorchScript module, and the compilation unit that holds its functions.

    `fields`: of the model's NamedTuples, by the type's whole name; PyTorch reads them, but doesn't tell.
    """

    module: Any
    units: Any
    fields: dict[str, tuple[str, ...]]


def is_torch(data: bytes) -> bool:
    """True for a zip archive that PyTorch wrote: TorchScript, `.pt2`, or something saved by `torch.save`."""
    if not data.startswith(b"PK"):
        return False
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except (zipfile.BadZipFile, ValueError):
        return False
    return any(_tail(n) in {"data.pkl", "archive_format"} or "extern_modules" in n for n in names)


def saved(source: object) -> ModelFile | None:
    """What PyTorch saves of a ScriptModule or an ExportedProgram in memory; None for what isn't PyTorch's.

    FrontendError for a module that is neither, with how to make one of it.
    """
    torch = require_torch("<PyTorch>")
    buffer = io.BytesIO()
    with quiet():
        if isinstance(source, torch.jit.ScriptModule):
            torch.jit.save(source, buffer)
            return ModelFile(f"<{source.original_name}>", buffer.getvalue(), None)
        if isinstance(source, torch.export.ExportedProgram):
            register_ops(torch)
            _save_exported(torch, source, buffer)
            return ModelFile("<ExportedProgram>", buffer.getvalue(), None)
    if isinstance(source, torch.nn.Module):
        name = type(source).__name__
        why = "its code is Python, and hbc compiles what a trace or an export leaves of it"
        hint = "hbc.compile(torch.jit.trace(model.eval(), example), example=…), or torch.export.export"
        raise problem("this is a torch.nn.Module", where=f"<{name}>", why=why, hint=hint, kind=NotAModel)
    return None


def _save_exported(torch: Any, source: object, buffer: io.BytesIO) -> None:
    try:
        torch.export.save(source, buffer)
    except Exception as error:
        hint = "return tensors, tuples, lists or dicts, and export again"
        raise problem(
            "PyTorch can't save this exported program", where="<ExportedProgram>", why=_first_line(error), hint=hint,
            kind=NotAModel,
        ) from error  # fmt: skip


def open_file(torch: Any, file: ModelFile) -> Any:
    """A ScriptFile, or the ExportedProgram of a `.pt2`. FrontendError for anything else, with what it seems to be."""
    names = _names(file)
    tails = {_tail(n) for n in names}
    if "archive_format" in tails or "serialized_exported_program.json" in names:
        return _open_exported(torch, file, names)
    if "constants.pkl" in tails and any("/code/" in n for n in names):
        return _open_script(torch, file)
    raise _foreign(file, names, tails)


def _names(file: ModelFile) -> list[str]:
    data = file.data
    if not data.startswith(b"PK"):
        raise _no_archive(file)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        damaged = archive.testzip()
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        why = f"it begins as a zip archive, but {str(error).lower() or 'is cut off'}; it has {len(data)} bytes"
        raise problem(
            "the file is damaged", where=file.name, why=why, hint="copy or download it again", kind=NotAModel
        ) from error
    if damaged is not None:
        why = f"the checksum of {damaged!r} in it is wrong"
        raise problem("the file is damaged", where=file.name, why=why, hint="copy or download it again", kind=NotAModel)
    if min((i.header_offset for i in archive.infolist()), default=1):  # the end of an archive within the archive
        why = f"its end is missing; it has {len(data)} bytes"
        raise problem("the file is damaged", where=file.name, why=why, hint="copy or download it again", kind=NotAModel)
    return archive.namelist()


def _no_archive(file: ModelFile) -> FrontendError:
    head = file.data[:2]
    if head[:1] == b"\x80":
        why = "it is a Python pickle, as old versions of torch.save wrote; hbc runs no pickles"
        return problem("this is no TorchScript model", where=file.name, why=why, hint=_TRACE, kind=NotAModel)
    if head[:1] and head[0] in {0x08, 0x0A}:
        why = "it begins as an ONNX model does"
        return problem("this is no PyTorch file", where=file.name, why=why, hint=_ONNX_HINT, kind=NotAModel)
    why = f"it begins with the bytes {file.data[:4].hex(' ')}, and a TorchScript or .pt2 file is a zip archive"
    return problem("this is no PyTorch file", where=file.name, why=why, hint="check the path", kind=NotAModel)


def _foreign(file: ModelFile, names: list[str], tails: set[str]) -> FrontendError:
    what, hint = "a zip archive of something else", "give the file that torch.jit.save or torch.export.save wrote"
    if any(n.endswith(".npy") for n in names):
        what = "an .npz of NumPy arrays"
    elif any("extern_modules" in n for n in names):
        what = "a torch.package, which holds Python code"
        hint = f"load it where you trust it, then {_TRACE}"
    elif "data.pkl" in tails:
        what, hint = _saved_object(file, names), _TRACE
    return problem("this is no TorchScript model", where=file.name, why=f"it is {what}", hint=hint, kind=NotAModel)


_LIBRARIES = {"torch", "collections", "builtins", "__builtin__", "numpy", "_codecs", "argparse"}


def _saved_object(file: ModelFile, names: list[str]) -> str:
    """What `torch.save` was given, by the classes that its pickle names (which is not run)."""
    member = next(n for n in names if _tail(n) == "data.pkl")
    classes = _named_classes(zipfile.ZipFile(io.BytesIO(file.data)).read(member))
    own = sorted(c for c in classes if c.split(".", maxsplit=1)[0] not in _LIBRARIES)
    if any(c.startswith("torch.nn.modules") for c in classes) or own:
        named = f" (it names {listing(own)})" if own else ""
        return f"a whole nn.Module, pickled by torch.save{named}; hbc runs no pickles"
    return "a state dict or another object of torch.save: weights without the model that they belong to"


def _named_classes(pickled: bytes) -> set[str]:
    """The classes and functions that a pickle names, read off without running it."""
    found, texts = set(), ["", ""]
    try:
        for code, arg, _ in pickletools.genops(pickled):
            if code.name == "GLOBAL":
                found.add(str(arg).replace(" ", "."))
            elif code.name == "STACK_GLOBAL":
                found.add(".".join(texts[-2:]))
            elif isinstance(arg, str):
                texts.append(arg)
    except ValueError:  # cut off: what was named so far
        return found
    return found


def _tail(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _open_script(torch: Any, file: ModelFile) -> ScriptFile:
    units = torch._C.CompilationUnit()  # noqa: SLF001 - torch.jit.load makes one, too, but hands it to nobody
    read = torch._C.import_ir_module_from_buffer  # noqa: SLF001
    try:
        with quiet():
            try:
                with _exact_kernels(torch):
                    found = read(units, file.data, torch.device("cpu"), {}, False)  # noqa: FBT003
            except RuntimeError:  # what QNNPACK lacks: weights of float16
                units = torch._C.CompilationUnit()  # noqa: SLF001
                found = read(units, file.data, torch.device("cpu"), {}, False)  # noqa: FBT003
            module = torch.jit._recursive.wrap_cpp_module(found)  # noqa: SLF001
            module.eval()
    except Exception as error:  # PyTorch raises RuntimeError, its subclasses, and others by version
        raise _unreadable(file, error) from error
    return ScriptFile(module, units, _fields(zipfile.ZipFile(io.BytesIO(file.data))))


@contextmanager
def _exact_kernels(torch: Any) -> Iterator[None]:
    """Weights that are unpacked meanwhile are packed for QNNPACK, where PyTorch has it.

    Its products are exact on every CPU; those of the default engine saturate at 16 bits on CPUs without VNNI.
    """
    quantized = torch.backends.quantized
    before = quantized.engine
    if "qnnpack" in quantized.supported_engines:
        quantized.engine = "qnnpack"
    try:
        yield
    finally:
        quantized.engine = before


_NAMED_TUPLE = re.compile(r"^class (\w+)\(NamedTuple\):\n((?:[ \t]+\w+ ?: ?.*\n?)+)", re.MULTILINE)


def _fields(archive: zipfile.ZipFile) -> dict[str, tuple[str, ...]]:
    """The fields of every NamedTuple, from the text of the archive's own code."""
    found = {}
    for name in archive.namelist():
        folder, code, path = name.partition("/code/")
        if not code or not path.endswith(".py") or not folder:
            continue
        for match in _NAMED_TUPLE.finditer(archive.read(name).decode("utf-8", "replace")):
            fields = re.findall(r"^[ \t]+(\w+) ?:", match[2], re.MULTILINE)
            found[f"{path[:-3].replace('/', '.')}.{match[1]}"] = tuple(fields)
    return found


def _unreadable(file: ModelFile, error: Exception) -> FrontendError:
    why = _first_line(error)
    unknown = re.search(r"Unknown (?:builtin op|type name):?\s*'?([\w:.]+)", str(error))
    if unknown is not None:
        hint = "import the package that registers it before hbc.compile, or leave it out of the model"
        what = f"this PyTorch doesn't know {unknown[1].rstrip('.')!r}, which the model uses"
        return problem(what, where=file.name, why=why, hint=hint, kind=NotTaken)
    hint = "save it again with this version of PyTorch, or copy it again"
    return problem("PyTorch can't read this TorchScript file", where=file.name, why=why, hint=hint, kind=NotAModel)


def _open_exported(torch: Any, file: ModelFile, names: list[str]) -> Any:
    register_ops(torch)
    _require_plain(torch, file, names)
    _require_known(torch, file, names)
    logger = logging.getLogger("torch.export")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs whole tracebacks; what it raises says enough
    try:
        with quiet():
            return torch.export.load(io.BytesIO(file.data))
    except Exception as error:
        hint = "export it again with this version of PyTorch, or copy it again"
        raise problem(
            "PyTorch can't read this exported program", where=file.name, why=_first_line(error), hint=hint,
            kind=NotAModel,
        ) from error  # fmt: skip
    finally:
        logger.setLevel(before)


def _require_plain(torch: Any, file: ModelFile, names: list[str]) -> None:
    """Nothing in the archive is code: pickles hold tensors alone, sizes are arithmetic, no machine code lies within."""
    archive = zipfile.ZipFile(io.BytesIO(file.data))
    raw = _raw_members(archive, names)
    for name in names:
        if "/aotinductor/" in f"/{name}":
            why = f"{name!r} in it is a program that AOTInductor compiled"
            hint = "save the exported program itself: torch.export.save(program, 'model.pt2')"
            raise problem("the file holds machine code", where=file.name, why=why, hint=hint, kind=NotAModel)
        if name.endswith(".json"):
            for text in _EXPRESSION.findall(archive.read(name).decode("utf-8", "replace")):
                if not _is_arithmetic(text):
                    why = f"a size in {name!r} is {text[:60]!r}"
                    raise problem("a size is no arithmetic", where=file.name, why=why, kind=NotAModel)
        elif name not in raw and not _is_plain_pickle(torch, archive.read(name)):
            why = f"{name!r} in it is a pickle of more than tensors, and hbc runs no pickles"
            hint = "export it without custom objects among constants and example inputs"
            raise problem("the file holds code", where=file.name, why=why, hint=hint, kind=NotAModel)


_EXPRESSION = re.compile(r'"expr_str":\s*"((?:[^"\\]|\\.)*)"')  # PyTorch hands these to sympy, which evaluates them
_ARITHMETIC = re.compile(r"[A-Za-z0-9_ +\-*/(),<>=]*")
_SYMBOL = re.compile(r"'[A-Za-z_]\w*'")


def _is_arithmetic(text: str) -> bool:
    """True for sums and sympy's own functions, which begin with a capital: `Mod(Symbol('s77', integer=True), 2)`."""
    plain = _SYMBOL.sub("s", text)
    called = re.findall(r"(\w+)\s*\(", plain)
    return bool(_ARITHMETIC.fullmatch(plain)) and "__" not in text and all(c[0].isupper() for c in called)


def _raw_members(archive: zipfile.ZipFile, names: list[str]) -> set[str]:
    """The members that the archive's own tables call the bare bytes of a tensor, which anything may look like."""
    found = set()
    for name in names:
        if not name.endswith("_config.json"):
            continue
        folder = name.rsplit("/", 1)[0]
        try:
            entries = json.loads(archive.read(name))["config"].values()
            found |= {f"{folder}/{e['path_name']}" for e in entries if e["use_pickle"] is False}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # PyTorch will say so itself
    return found


def _is_plain_pickle(torch: Any, data: bytes) -> bool:
    """True for anything that no unpickler would read, and for pickles of tensors and plain values."""
    if not data.startswith((b"PK", b"\x80")):
        return True
    try:
        with quiet():
            torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception:  # noqa: BLE001 - whatever the reason, it isn't handed on
        return False
    return True


def _require_known(torch: Any, file: ModelFile, names: list[str]) -> None:
    """Every operator of the program is registered."""
    archive = zipfile.ZipFile(io.BytesIO(file.data))
    targets: set[str] = set()
    for name in names:
        if name.endswith(".json"):
            targets.update(
                re.findall(r'"target":\s*"torch\.ops\.([\w.]+)"', archive.read(name).decode("utf-8", "replace"))
            )
    unknown = sorted(t for t in targets if not t.startswith("higher_order.") and not _resolves(torch, t))
    if unknown:
        why = f"no {listing('::'.join(t.split('.')[:2]) for t in unknown)} is registered"
        hint = "import the package that registers them before hbc.compile"
        raise problem("this PyTorch lacks operators of the model", where=file.name, why=why, hint=hint, kind=NotTaken)


def _resolves(torch: Any, target: str) -> bool:
    found = torch.ops
    try:
        for word in target.split("."):
            found = getattr(found, word)
    except (AttributeError, RuntimeError):
        return False
    return True


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
