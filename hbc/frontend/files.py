"""Reading a model file: bounded, and refusing by its first bytes what is no model at all."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hbc.diagnostics import FrontendError, NoModelFile, NotAModel, TooLarge

from .problem import problem, quoted

TORCH_SUFFIXES = {".pt", ".pt2", ".pth", ".ckpt", ".ts", ".torchscript"}
LIMIT = (1 << 31) - 1  # protobuf's own limit for one message; larger models keep their weights in a second file

# Tags (field number, wire type) with which a ModelProto can begin: fields 1 to 8, 14, 20, 25, 26 of onnx.proto.
_ONNX_TAGS = {0x08, 0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA, 0xD2}

_FOREIGN = (
    # (offset, first bytes, what it is, what to try)
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model itself", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive (a Keras or NumPy file)", "export the model to ONNX, or with torch.jit.save"),
    (0, b"\x80\x02", "a Python pickle (an old PyTorch file)", "export the model with torch.onnx.export"),
    (0, b"\x80\x04", "a Python pickle", "export the model with torch.onnx.export"),
    (0, b"\x89HDF", "an HDF5 file (Keras)", "convert the model with tf2onnx"),
    (4, b"HBM1", "a compiled .hbm", "give it to `hbc run` or hbc_runtime.Session"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert the model with tf2onnx --tflite"),
    (0, b"<", "a text in HTML or XML", "download the model again; the server may have sent an error page"),
)


@dataclass(frozen=True)
class ModelFile:
    """The bytes of a model, the name to call it by (always text that can be written), and its path (None for bytes)."""

    name: str
    data: bytes
    path: Path | None

    @property
    def folder(self) -> Path | None:
        """Where its external data lie."""
        return None if self.path is None else self.path.parent


def read(path: Path) -> ModelFile:
    """The whole file; FrontendError where it is missing, no regular file, unreadable, empty or beyond 2 GiB."""
    where = str(path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "no regular file"
            raise problem(
                f"this is {kind}, not a model", where=where, hint="give the model file itself", kind=NoModelFile
            )
        if info.st_size > LIMIT:
            raise _too_large(path, info.st_size)
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise problem("there is no such file", where=where, hint="check the path", kind=NoModelFile) from error
    except ValueError as error:
        raise problem("this is no file name", where=quoted(where), why=str(error), kind=NoModelFile) from error
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, "") + f" {error.strerror}"
        raise problem(
            "the file can't be read",
            where=quoted(where),
            why=why.strip(),
            hint="check its permissions",
            kind=NoModelFile,
        ) from error
    if not data:
        raise problem(
            "the file is empty",
            where=where,
            why="it has 0 bytes",
            hint="export or download the model again",
            kind=NotAModel,
        )
    name = os.fsencode(path.name).decode("utf-8", "backslashreplace")  # a file's name may be any bytes
    return ModelFile(name, data, path)


def _too_large(path: Path, size: int) -> FrontendError:
    if path.suffix.lower() in TORCH_SUFFIXES:
        what, why = "the file is too large for a model", f"it has {size} bytes; hbc reads {LIMIT} at most"
        hint = "save it without optimizer states and training data, or in half precision (model.half())"
    else:
        what, why = (
            "the file is too large for an ONNX model",
            f"it has {size} bytes; a protobuf message ends at {LIMIT}",
        )
        hint = "save it with its weights in an external data file: onnx.save(m, path, save_as_external_data=True)"
    return problem(what, where=str(path), why=why, hint=hint, kind=TooLarge)


def refuse_foreign(file: ModelFile) -> None:
    """FrontendError where the first bytes say that this is something else than ONNX."""
    for offset, magic, what, hint in _FOREIGN:
        if file.data[offset : offset + len(magic)] == magic:
            raise problem(
                "this is not an ONNX model", where=file.name, why=f"it looks like {what}", hint=hint, kind=NotAModel
            )
    if file.data[:1] and file.data[0] not in _ONNX_TAGS:
        why = f"no serialised model begins with the byte 0x{file.data[0]:02x}"
        raise problem(
            "this is not an ONNX model",
            where=file.name,
            why=why,
            hint="export or download the model again",
            kind=NotAModel,
        )
