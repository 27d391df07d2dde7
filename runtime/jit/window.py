"""What convolution and transposed convolution share: which input rows and columns an output row reads, and the copying
of those rows to scratch memory with their borders, so that the inner loops meet neither edges nor zero points.

A transposed convolution is a convolution of stride 1 over an input with `stuffing − 1` holes between its pixels, with
the kernel turned round. A virtual position v (holes and borders included) is real where 0 ≤ v, stuffing divides v, and
v / stuffing lies in the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..types import DType
from .emitter import I64, PTR, Emitter, const, element, i64, size_of
from .loops import span
from .registry import KernelBuilder


@dataclass(frozen=True)
class Axis:
    """One spatial axis: output o reads, for tap t, the virtual position o·stride + t·dilation − pad."""

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int  # may be negative for a transposed convolution
    stuffing: int = 1


@dataclass(frozen=True)
class Window:
    """Geometry of a convolution over NHWC. `zero_point` is subtracted from what is read; then `fill` stands outside."""

    batch: int
    channels: int
    group: int
    outputs: int  # channels
    rows: Axis
    columns: Axis
    fill: int
    zero_point: int = 0

    @property
    def is_depthwise(self) -> bool:
        """True where every group has one input channel, and there are several."""
        return self.group == self.channels > 1

    @property
    def work(self) -> int:
        """About how many elementary steps there are: multiplications, over sixteen."""
        taps = self.rows.kernel * self.columns.kernel * self.channels // self.group
        return self.batch * self.rows.out * self.columns.out * self.outputs * taps // 16

    @property
    def is_pointwise(self) -> bool:
        """True where output pixel i reads input pixel i and nothing else."""
        return all(
            a.kernel == 1 and a.stride == 1 and a.pad == 0 and a.stuffing == 1 and a.out == a.size
            for a in (self.rows, self.columns)
        )


@dataclass(frozen=True)
class Line:
    """One input row as it lies in scratch memory: `pixels` positions, of which `count` are real, evenly spaced.

    Real position i is scratch pixel `first + i·scratch_step` and input pixel `source + i·source_step`.
    """

    pixels: int
    first: int
    count: int
    scratch_step: int
    source: int
    source_step: int

    @staticmethod
    def of(axis: Axis) -> Line:
        """The line that an output row needs. Strided windows of one column keep only the columns they read."""
        every = axis.stride if axis.kernel == 1 else 1  # 1 wherever there is stuffing
        pixels = axis.out if axis.kernel == 1 else (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        if axis.stuffing == 1:
            first = max(0, -(-axis.pad // every))
            last = min(pixels - 1, (axis.size - 1 + axis.pad) // every)
        else:
            first = -(-max(0, -axis.pad) // axis.stuffing) * axis.stuffing + axis.pad
            last = min(pixels - 1, (axis.size - 1) * axis.stuffing + axis.pad)
        count = max(0, (last - first) // axis.stuffing + 1)
        if count == 0:
            return Line(pixels, pixels, 0, 1, 0, 1)
        source = (first * every - axis.pad) // axis.stuffing
        return Line(pixels, first, count, axis.stuffing if count > 1 else 1, source, every if count > 1 else 1)

    @property
    def is_dense(self) -> bool:
        """True where the real pixels lie side by side in scratch memory."""
        return self.scratch_step == 1


def pixel_step(window: Window) -> int:
    """Scratch pixels from one output pixel's first tap to the next one's."""
    return 1 if window.columns.kernel == 1 else window.columns.stride


@dataclass(frozen=True)
class Copy:
    """How rows reach scratch memory: `taken` of a pixel's `pitch` channels, each `repeat` times, as type `to`."""

    source: DType
    to: ir.Type
    zero_point: int
    fill: int
    pitch: int
    taken: int
    repeat: int = 1
    flip: bool = False  # the top bit of bytes, on their way: q + 128 from q, or back; `fill` is what is to stand there

    @property
    def pixel(self) -> int:
        """Elements of one scratch pixel."""
        return self.taken * self.repeat


def gather_rows(
    k: KernelBuilder,
    window: Window,
    copy: Copy,
    image: ir.Value,
    row: ir.Value,
    scratch: ir.Value,
    taps: int | None = None,
) -> None:
    """Copy the kernel's rows for output row `row` to `scratch`, one `Line` after another.

    `image` is the address of the first channel wanted of the batch entry's first pixel. `taps` is how many rows, where
    not the kernel's: with more of them, the output rows that follow find theirs too.
    """
    axis, line = window.rows, Line.of(window.columns)
    row_bytes = line.pixels * copy.pixel * size_of(copy.to)
    with k.loop(0, axis.kernel if taps is None else taps) as tap:
        virtual = k.b.add(k.b.mul(row, i64(axis.stride)), k.b.mul(tap, i64(axis.dilation)))
        virtual = k.b.sub(virtual, i64(axis.pad))
        at = k.b.sdiv(virtual, i64(axis.stuffing))
        inside = k.b.and_(k.b.icmp_signed(">=", virtual, i64(0)), k.b.icmp_signed("<", at, i64(axis.size)))
        if axis.stuffing > 1:
            inside = k.b.and_(inside, k.b.icmp_signed("==", k.b.mul(at, i64(axis.stuffing)), virtual))
        to = k.at(scratch, k.b.mul(tap, i64(row_bytes)))
        source = k.at(image, k.b.mul(at, i64(window.columns.size * copy.pitch)), copy.source.size)
        with k.b.if_else(inside) as (then, otherwise):
            with then:
                _copy_line(k, line, copy, source, to)
            with otherwise:
                k.call(_fill(k, copy), to, line.pixels * copy.pixel)


def _copy_line(k: KernelBuilder, line: Line, copy: Copy, source: ir.Value, to: ir.Value) -> None:
    """One real row: its border, its pixels, its border."""
    size = size_of(copy.to)
    if line.is_dense:
        behind = line.first + line.count
        for start, count in ((0, line.first), (behind, line.pixels - behind)):
            if count > 0:
                k.call(_fill(k, copy), k.at(to, start * copy.pixel * size), count * copy.pixel)
    else:
        k.call(_fill(k, copy), to, line.pixels * copy.pixel)
    if line.count == 0:
        return
    source = k.at(source, line.source * copy.pitch * copy.source.size)
    copy_pixels(
        k, copy, source, k.at(to, line.first * copy.pixel * size), line.count, line.source_step, line.scratch_step
    )


def copy_pixels(
    e: Emitter, copy: Copy, source: ir.Value, to: ir.Value, count: int, source_step: int = 1, scratch_step: int = 1
) -> None:
    """`count` pixels, `source_step` and `scratch_step` pixels apart; one run where both sides are dense."""
    if copy.repeat == 1 and (count == 1 or (copy.taken == copy.pitch and source_step == scratch_step == 1)):
        e.call(_copy_run(e, copy), to, source, count * copy.taken)
    else:
        steps = source_step * copy.pitch, scratch_step * copy.pixel
        e.call(_copy_apart(e, copy), to, source, count, *steps)


def _fill(e: Emitter, copy: Copy) -> ir.Function:
    """`void(ptr to, i64 elements)`: the value that stands outside."""

    def emit(f: Emitter) -> None:
        to, count = f.args
        span(f, 0, count, _lanes(f, copy), lambda i, lanes: f.store(const(copy.to, copy.fill, lanes), to, i))

    return e.helper(("fill", str(copy.to), copy.fill), [PTR, I64], emit)


def _copy_run(e: Emitter, copy: Copy) -> ir.Function:
    """`void(ptr to, ptr source, i64 elements)`: contiguous."""

    def emit(f: Emitter) -> None:
        to, source, count = f.args
        span(f, 0, count, _lanes(f, copy), lambda i, lanes: f.store(_read(f, copy, source, i, lanes), to, i))

    return e.helper(("copy_run", copy.source, str(copy.to), copy.zero_point, copy.flip), [PTR, PTR, I64], emit)


def _copy_apart(e: Emitter, copy: Copy) -> ir.Function:
    """`void(ptr to, ptr source, i64 pixels, i64 source_step, i64 scratch_step)`: steps in elements."""

    def emit(f: Emitter) -> None:
        to, source, count, source_step, scratch_step = f.args
        with f.loop(0, count) as pixel:
            a = f.at(source, f.b.mul(pixel, source_step), copy.source.size)
            b = f.at(to, f.b.mul(pixel, scratch_step), size_of(copy.to))
            _copy_pixel(f, copy, a, b)

    key = ("copy_apart", copy.source, str(copy.to), copy.zero_point, copy.taken, copy.repeat, copy.flip)
    return e.helper(key, [PTR, PTR, I64, I64, I64], emit)


def _copy_pixel(e: Emitter, copy: Copy, source: ir.Value, to: ir.Value) -> None:
    if copy.repeat == 1:
        lanes = min(_lanes(e, copy), 1 << (copy.taken.bit_length() - 1))
        span(e, 0, copy.taken, lanes, lambda i, n: e.store(_read(e, copy, source, i, n), to, i))
        return
    with e.loop(0, copy.taken) as channel:
        value = _read(e, copy, source, channel, 1)
        for r in range(copy.repeat):
            e.store(value, to, e.b.add(e.b.mul(channel, i64(copy.repeat)), i64(r)))


def _read(e: Emitter, copy: Copy, source: ir.Value, i: ir.Value, lanes: int) -> ir.Value:
    stored = e.load(source, i, element(copy.source), lanes)
    if copy.flip:
        stored = e.b.xor(stored, const(stored.type, -128))
    value = e.resize(stored, copy.to)
    return value if copy.zero_point == 0 else e.b.sub(value, const(value.type, copy.zero_point))


def _lanes(e: Emitter, copy: Copy) -> int:
    return e.host.lanes * 4 // size_of(copy.to)
