"""An estimate of a program's time on a board: BPU and host apart, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hbc_runtime.commands import Engine
from hbc_runtime.isa import Instruction
from hbc_runtime.program import CpuSegment, Model, Program

from .boards import Board
from .simulate import Timed, run_segment
from .work import Border, Work, border_of, work_of

MB = 1e6


@dataclass(frozen=True)
class CpuPart:
    """A segment of the host's CPU: its nodes, and a rough time (so many nanoseconds an element that it reads)."""

    name: str
    nodes: tuple[str, ...]
    reasons: tuple[str, ...]
    start: float
    end: float


@dataclass(frozen=True)
class Estimate:
    """The time of one run of one model on one core, in microseconds from its beginning.

    `layers` hold the BPU's instructions in running order, `cpu` the segments of the host. `host_us` is what the host
    takes at the border: quantising, dequantising, copying, handing over.
    """

    model: str
    march: str
    board: Board
    layers: tuple[Timed, ...]
    cpu: tuple[CpuPart, ...]
    host_us: float
    output_mb: float
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    cores: int = 1

    @property
    def bpu_us(self) -> float:
        """What the BPU takes."""
        return sum(t.end - t.start for t in self.layers if t.work.engine is not Engine.HOST)

    @property
    def cpu_us(self) -> float:
        """What nodes on the CPU take, roughly."""
        tables = sum(t.end - t.start for t in self.layers if t.work.engine is Engine.HOST)
        return tables + sum(c.end - c.start for c in self.cpu)

    @property
    def latency_us(self) -> float:
        """One run, one thread."""
        return self.bpu_us + self.cpu_us + self.host_us

    @property
    def fps(self) -> float:
        """Frames in a second where enough threads keep every core busy."""
        return 1e6 * self.cores / max(self.bpu_us, 1e-9)

    @property
    def loaded(self) -> int:
        """Bytes that come from DDR in a run."""
        return sum(t.loaded for t in self.layers)

    @property
    def stored(self) -> int:
        """Bytes that go to DDR in a run."""
        return sum(t.stored for t in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the model's own shapes."""
        return sum(t.work.macs for t in self.layers)


def estimate(program: Program, board: Board, *, nv12: bool = False, cores: int = 1) -> Estimate:
    """The first model of `program` on `board`. `nv12`: its image comes from a camera, at 1.5 bytes a pixel."""
    model = program.models[0]
    border = border_of(model, board.spec, nv12=nv12)
    now = 0.0
    layers: list[Timed] = []
    cpu: list[CpuPart] = []
    for segment in model.segments:
        if isinstance(segment, CpuSegment):
            elements = sum(model.tensors[i].elements for i in segment.inputs if not model.tensors[i].is_dynamic)
            end = now + elements * board.cpu / 1e3
            cpu.append(CpuPart(segment.name, segment.loc, segment.reasons, now, end))
            now = end
            continue
        works = segment_works(model, segment.instructions, board, border)
        timed = run_segment(works, board, now)
        layers += timed
        now = timed[-1].end if timed else now
    out_mb = output_mb(model)
    host = 1e3 * (board.rates.host_ms + board.rates.output_ms_per_mb * out_mb)
    inputs = tuple((i.name, i.shape) for i in model.inputs)
    return Estimate(model.name, program.march, board, tuple(layers), tuple(cpu), host, out_mb, inputs, cores)


def segment_works(model: Model, instructions: Iterable[Instruction], board: Board, border: Border) -> list[Work]:
    """The works of a segment's instructions."""
    found = (work_of(model, op, board.spec, border) for op in instructions)
    return [w for w in found if w is not None]


def output_mb(model: Model) -> float:
    """Megabytes (10⁶) of a run's outputs as float32, which is what users read."""
    return (
        sum(4 * model.tensors[o.tensor].elements for o in model.outputs if not model.tensors[o.tensor].is_dynamic) / MB
    )
