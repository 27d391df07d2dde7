"""`.hbir` files: the text, and the large constants in an `.npz` of the same name beside it."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from hbc.diagnostics import BadFile, ParseError

from .core import Module
from .parser import parse_module
from .printer import print_with_arrays

_NPZ_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def save_module(module: Module, path: str | Path, *, locs: bool = True) -> list[Path]:
    """Write `path` and, where the module has large constants, the `.npz` beside it; returns what was written.

    The same module gives the same bytes. Raises OSError where a file cannot be written.
    """
    path = Path(path)
    text, arrays = print_with_arrays(module, locs=locs)
    written = []
    if arrays:
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type] # no array is named after a parameter of savez
        path.with_suffix(".npz").write_bytes(packed.getvalue())
        written.append(path.with_suffix(".npz"))
    path.write_bytes(text.encode())
    return [path, *written]


def load_module(path: str | Path) -> Module:
    """Read a module that `save_module` or a person wrote; ParseError where the text or the `.npz` is not sound."""
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise _bad(path, f"cannot read {path.name!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise _bad(path, f"{path.name!r} is not UTF-8 text: {found}") from None
    return parse_module(text, filename=str(path), sidecar=_load_arrays(path.with_suffix(".npz")))


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as packed:
            return dict(packed)
    except _NPZ_ERRORS as error:
        raise _bad(path, f"{path.name!r} is not a sound .npz: {error}") from None


def _bad(path: Path, message: str) -> ParseError:
    return ParseError(BadFile(message=message, loc=str(path)))
