"""A small hand for making sound models in tests: tensors and instructions by name, a memory plan by first fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hbc_runtime.isa import Conv2d, Instruction, Reshape, Scheme
from hbc_runtime.program import (
    ALIGN,
    BpuSegment,
    BuildInfo,
    Constants,
    CpuSegment,
    Model,
    Program,
    Segment,
    Storage,
    Tensor,
    TensorInfo,
)
from hbc_runtime.types import DType, Layout, Quant

BUILD = BuildInfo("hbc 0.1.0", "model.onnx", "0" * 64, (("march", "nash-e"),))


def align(n: int) -> int:
    """`n` rounded up to the arena's alignment."""
    return -(-n // ALIGN) * ALIGN


def program_of(*models: Model, march: str = "nash-e", arith: str = "bpu", build: BuildInfo = BUILD) -> Program:
    """A program of these models."""
    return Program(march, arith, build, models)


@dataclass
class Sketch:
    """Grows a model: `input`, `constant`, `emit` and `cpu` return tensor indices; `finish` places everything.

    Results that nothing reads become the outputs.
    """

    name: str = "main"
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    blob: bytearray = field(default_factory=bytearray)
    segments: list[list[Instruction] | CpuSegment] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)  # result of a reshape → the operand whose bytes it may share

    def _tensor(self, name: str, shape: Sequence[int], dtype: DType, storage: Storage, **more: Any) -> int:
        self.tensors.append(Tensor(name or f"t{len(self.tensors)}", tuple(shape), dtype, storage, **more))
        return len(self.tensors) - 1

    def input(
        self,
        shape: Sequence[int],
        dtype: DType = DType.I8,
        name: str = "",
        quant: Quant | None = None,
        layout: Layout = Layout.ANY,
    ) -> int:
        """A new input of the model."""
        i = self._tensor(name, shape, dtype, Storage.INPUT, index=len(self.inputs), quant=quant)
        self.inputs.append(i)
        self.layouts[i] = layout
        return i

    def constant(self, values: Any, dtype: DType) -> int:
        """A new constant."""
        array = np.asarray(values, dtype.numpy)
        self.blob.extend(bytes(align(len(self.blob)) - len(self.blob)))
        offset = len(self.blob)
        self.blob.extend(array.tobytes())
        return self._tensor("", array.shape, dtype, Storage.CONSTANT, offset=offset)

    def emit(
        self,
        kind: type[Instruction],
        inputs: Sequence[int],
        shape: Sequence[int],
        dtype: DType,
        name: str = "",
        quant: Quant | None = None,
        *,
        alias: bool = False,
        **attributes: Any,
    ) -> int:
        """An instruction behind the others; returns its result."""
        out = self._tensor(name, shape, dtype, Storage.ARENA, quant=quant)
        if alias:
            assert kind is Reshape
            self.aliases[out] = inputs[0]
        if not self.segments or isinstance(self.segments[-1], CpuSegment):
            self.segments.append([])
        segment = self.segments[-1]
        assert isinstance(segment, list)
        segment.append(kind(inputs=tuple(inputs), outputs=(out,), **attributes))
        return out

    def convolution(self, x: int, rng: np.random.Generator) -> int:
        """A random 3×3 convolution of i8 [N,H,W,C] by form A that keeps the shape."""
        shape = self.tensors[x].shape
        channels = shape[3]
        parts = [
            self.constant(rng.integers(-50, 50, (channels, 3, 3, channels)), DType.I8),
            self.constant(rng.integers(-500, 500, channels), DType.I32),
            self.constant(rng.integers(1 << 14, 1 << 15, channels), DType.I16),
            self.constant(np.zeros(channels), DType.I8),
            self.constant(np.full(channels, 22), DType.I8),
        ]
        form = {"scheme": Scheme.FORM_A, "clamp_min": -128, "clamp_max": 127}
        return self.emit(Conv2d, [x, *parts, -1, -1, -1], shape, DType.I8, pads=(1, 1, 1, 1), **form)

    def cpu(self, inputs: Sequence[int], results: Sequence[tuple[Sequence[int], DType]], onnx: bytes) -> list[int]:
        """A CPU segment behind the others; returns its results."""
        outs = [self._tensor("", shape, dtype, Storage.ARENA) for shape, dtype in results]
        reasons = ("Softmax 'Softmax_3': no BPU rule",)
        self.segments.append(CpuSegment("cpu", tuple(inputs), tuple(outs), onnx, reasons, ("Softmax_3",)))
        return outs

    # ---- placing

    def _steps(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        steps: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for s in self.segments:
            items = [s] if isinstance(s, CpuSegment) else s
            steps += [(tuple(x for x in i.inputs if x >= 0), i.outputs) for i in items]
        return steps

    def _root(self, tensor: int) -> int:
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor

    def _outputs(self) -> list[int]:
        steps = self._steps()
        read = {i for reads, _ in steps for i in reads}
        return [i for _, writes in steps for i in writes if i not in read]

    def _drop_impossible_aliases(self, outputs: list[int]) -> None:
        """An output cannot share bytes with an input, a constant or another output."""
        taken: set[int] = set()
        for i in outputs:
            if self.tensors[self._root(i)].storage is not Storage.ARENA or self._root(i) in taken:
                self.aliases.pop(i, None)
            taken.add(self._root(i))

    def _place_arena(self, groups: dict[int, list[int]]) -> int:
        """First fit in the order of birth: lifetimes of a group's members are joined. Returns the arena's size."""
        steps = self._steps()
        born = {i: n for n, (_, writes) in enumerate(steps) for i in writes}
        dies = {i: n for n, (reads, _) in enumerate(steps) for i in reads}
        placed: list[tuple[int, int, int, int]] = []  # born, dies, start, end
        for root, members in sorted(groups.items(), key=lambda g: born[g[0]]):
            first, last = born[root], max(dies.get(m, born[m]) for m in members)
            size, start = self.tensors[root].nbytes, 0
            for b, d, s, e in sorted(placed, key=lambda p: p[2]):
                if b <= last and first <= d and s < start + size and start < e:
                    start = align(e)
            placed.append((first, last, start, start + size))
            for m in members:
                self.tensors[m] = replace(self.tensors[m], offset=start)
        return max((e for *_, e in placed), default=0)

    def finish(self) -> Model:
        """The model. Sound if the instructions are: a test that wants an unsound one changes this one."""
        outputs = self._outputs()
        self._drop_impossible_aliases(outputs)
        index = {self._root(i): n for n, i in enumerate(outputs)}
        groups: dict[int, list[int]] = {}
        for i, t in enumerate(self.tensors):
            root = self._root(i)
            if root in index:
                self.tensors[i] = replace(t, storage=Storage.OUTPUT, index=index[root])
            elif self.tensors[root].storage is Storage.ARENA:
                groups.setdefault(root, []).append(i)
            elif i != root:
                r = self.tensors[root]
                self.tensors[i] = replace(t, storage=r.storage, offset=r.offset, index=r.index)
        size = self._place_arena(groups)
        segments: list[Segment] = [
            s if isinstance(s, CpuSegment) else BpuSegment("bpu", tuple(s)) for s in self.segments
        ]
        return Model(
            self.name,
            tuple(self._info(i) for i in self.inputs),
            tuple(self._info(i) for i in outputs),
            tuple(self.tensors),
            tuple(segments),
            size,
            Constants(memoryview(bytes(self.blob))),
        )

    def _info(self, i: int) -> TensorInfo:
        t = self.tensors[i]
        return TensorInfo(t.name, t.shape, t.dtype, self.layouts.get(i, Layout.ANY), t.quant, i)

    def program(self, **more: Any) -> Program:
        """The model alone in a program."""
        return program_of(self.finish(), **more)
