"""`Program`: what the compiler emits, the container stores and the executor runs. Frozen, plain values.

A program is made of models; a model is a list of tensors (where their bytes lie) and of segments (what to do with
them, in order). A BPU segment is a list of instructions (`isa`); a CPU segment is an embedded ONNX model.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .commands import CommandStream
from .isa import Instruction
from .types import DYNAMIC, DType, Layout, Quant, holds

ALIGN = 64  # bytes: one cache line, and the widest vector load


class Storage(enum.IntEnum):
    """Which of a run's buffers a tensor lies in."""

    ARENA = 0  # the scratch arena; `offset` is a byte offset into it
    CONSTANT = 1  # the model's constant blob; `offset` is a byte offset into it
    INPUT = 2  # the caller's array number `index`
    OUTPUT = 3  # the result array number `index`


@dataclass(frozen=True)
class Tensor:
    """One value of a model: shape and dtype (row-major, dense), and where its bytes lie.

    A size of an output may be DYNAMIC: a CPU segment makes the array anew in each run, and nothing else touches it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    offset: int = 0
    index: int = 0
    quant: Quant | None = None

    @property
    def is_dynamic(self) -> bool:
        """True where a size is known only once the model has run."""
        return DYNAMIC in self.shape

    @property
    def elements(self) -> int:
        """How many elements the tensor has. Raises ValueError where a size is dynamic."""
        if self.is_dynamic:
            msg = f"the size of {self.name!r} is known only once the model has run"
            raise ValueError(msg)
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the tensor takes. Raises ValueError where a size is dynamic."""
        return self.elements * self.dtype.size

    def holds(self, array: np.ndarray) -> bool:
        """True where `array` has the tensor's dtype, rank and static sizes."""
        return holds(self.shape, self.dtype, array)


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model as its user sees it. Sizes of outputs may be DYNAMIC (see `Tensor`)."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout
    quant: Quant | None
    tensor: int  # index into Model.tensors

    @property
    def scale(self) -> np.ndarray | None:
        """float32 scales (one, or one per index of `axis`), or None where the tensor is not quantised."""
        return None if self.quant is None else np.asarray(self.quant.scale, np.float32)

    @property
    def zero_point(self) -> np.ndarray | None:
        """int32 zero points, as many as scales, or None where the tensor is not quantised."""
        return None if self.quant is None else np.asarray(self.quant.zero_point, np.int32)

    @property
    def axis(self) -> int | None:
        """The axis that per-channel scales run along, or None."""
        return None if self.quant is None else self.quant.axis


@dataclass(frozen=True)
class BpuSegment:
    """Instructions for the BPU (and the quantise/dequantise steps at its border), in order.

    `commands` say how the BPU's engines do the same, tile by tile; None where nobody asked for them.
    """

    name: str
    instructions: tuple[Instruction, ...]
    commands: CommandStream | None = None


@dataclass(frozen=True)
class CpuSegment:
    """An ONNX model for the host CPU, with the tensors it reads and writes and why it is here."""

    name: str
    inputs: tuple[int, ...]  # tensor indices, in the order of the ONNX model's inputs
    outputs: tuple[int, ...]  # tensor indices, in the order of the ONNX model's outputs
    onnx: bytes
    reasons: tuple[str, ...] = ()  # one line per node: "Softmax 'Softmax_3': no BPU rule"
    loc: tuple[str, ...] = ()  # source nodes


Segment = BpuSegment | CpuSegment


@dataclass(frozen=True, eq=False)
class Constants:
    """A blob of bytes, such as a model's constants. Compares by content; `data` may be a view of a mapped file."""

    data: memoryview = field(default_factory=lambda: memoryview(b""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.data.nbytes

    def __reduce__(self) -> tuple[Callable[[bytes], Constants], tuple[bytes]]:
        return _constants, (bytes(self.data),)  # memoryviews don't pickle; a program does


def _constants(data: bytes) -> Constants:
    return Constants(memoryview(data))


@dataclass(frozen=True)
class Model:
    """One network: its border, its tensors, its segments in running order, and the size of its arena in bytes."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    tensors: tuple[Tensor, ...]
    segments: tuple[Segment, ...]
    arena_size: int
    constants: Constants

    def constant(self, tensor: int) -> np.ndarray:
        """The value of a CONSTANT tensor: a read-only view of the blob, not a copy."""
        t = self.tensors[tensor]
        if t.storage is not Storage.CONSTANT:
            msg = f"tensor {tensor} ({t.name!r}) is not a constant"
            raise ValueError(msg)
        flat = np.frombuffer(self.constants.data, np.uint8, t.nbytes, t.offset)
        flat.flags.writeable = False
        return flat.view(t.dtype.numpy).reshape(t.shape)


@dataclass(frozen=True)
class BuildInfo:
    """Where a program came from. Holds nothing that differs between two builds of the same input."""

    producer: str  # "hbc 0.1.0"
    source: str  # the model file's name, without its folder
    source_sha256: str  # hex, of the model file's bytes
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NativeCode:
    """Machine code of model number `model` for one kind of CPU, made ahead of time. Who runs it has to trust its maker.

    `key` is a hash of all that it was made from and for (`jit.keys`); the texts repeat some of that for people. `data`
    is an entry of `jit.entry`, unread; damaged or of another key it is as good as none.
    """

    model: int
    key: str
    cpu: str  # LLVM's name of it
    features: str  # as LLVM spells them: "+avx2,-avx512f"
    made_by: str  # "hbc 0.1.0, llvmlite 0.50.0, LLVM 20.1"
    data: Constants


@dataclass(frozen=True)
class Program:
    """A compiled file: march, arithmetic (`bpu` or `onnx`), where it came from, its models, code made ahead of time."""

    march: str
    arith: str
    build: BuildInfo
    models: tuple[Model, ...]
    natives: tuple[NativeCode, ...] = ()
