"""An estimate as JSON: the field names that users know from the vendor's perf.json, and what those do not hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hbc_runtime.commands import Engine
from hbc_runtime.version import __version__

from .estimate import Estimate
from .simulate import Span, Timed
from .stream import Replay, sampled

MIB = float(1 << 20)  # the vendor's megabyte
INTERVALS = 64  # at most
LAYER_COLUMNS = (
    "layer", "ops", "original output shape", "aligned output shape", "computing cost (no DDR)", "load/store cost",
    "active period of time",
)  # fmt: skip
COMPUTING = {e.name.lower() for e in Engine} - {"load", "store", "host"}


def as_json(e: Estimate, stream: Replay | None = None) -> dict[str, object]:
    """The whole estimate; with `stream` the figures of its replay under `hbc.stream`."""
    step = interval(e)
    ddr = e.loaded + e.stored
    runs = 1e6 / max(e.bpu_us, 1e-9)
    summary = {
        "BPU OPs per frame (effective)": 2 * e.macs,
        "BPU OPs per run (effective)": 2 * e.macs,
        "BPU core number": e.cores,
        "BPU march": e.march,
        "DDR bytes per frame": ddr,
        "DDR bytes per run": ddr,
        "DDR bytes per second": round(ddr * runs),
        "DDR megabytes per frame": round(ddr / MIB, 3),
        "DDR megabytes per run": round(ddr / MIB, 3),
        "DDR megabytes per second": round(ddr * runs / MIB, 1),
        "FPS": round(e.fps, 2),
        "frame per run": 1,
        "frame per second": round(e.fps, 2),
        "run per second": round(e.fps, 2),
        "input features": [["input name", "input size"], *([n, "x".join(map(str, s))] for n, s in e.inputs)],
        "interval computing units utilization": busy(e, step, COMPUTING),
        "interval loading bandwidth (megabytes/s)": bandwidth(e, step, "load"),
        "interval storing bandwidth (megabytes/s)": bandwidth(e, step, "store"),
        "interval number": len(busy(e, step, COMPUTING)),
        "interval time (ms)": step / 1e3,
        "latency (ms)": round(e.bpu_us / 1e3, 3),
        "latency (us)": round(e.bpu_us, 1),
        "latency (ms) by segments": [round(e.bpu_us / 1e3, 3)],
        "layer details": [
            list(LAYER_COLUMNS),
            *(layer_row(t, e) for t in e.layers if t.work.engine is not Engine.HOST),
        ],
        "loaded bytes per frame": e.loaded,
        "loaded bytes per run": e.loaded,
        "stored bytes per frame": e.stored,
        "stored bytes per run": e.stored,
        "model name": e.model,
        "runtime version": f"hbc {__version__}",
    }
    more = _more(e)
    if stream is not None:
        more["stream"] = stream_numbers(stream)
    return {"summary": summary, "hbc": more}


def stream_numbers(stream: Replay) -> dict[str, object]:
    """A replay's figures: times in microseconds, memory as the most bytes alive in each of 64 equal intervals."""
    return {
        "commands": stream.commands,
        "us": round(stream.end, 3),
        "loaded": stream.loaded,
        "stored": stream.stored,
        "on_chip_bytes": stream.on_chip_bytes,
        "busy": {engine: round(share, 4) for engine, share in stream.busy().items()},
        "memory": sampled(stream.memory, stream.end, INTERVALS),
    }


def _more(e: Estimate) -> dict[str, object]:
    """What perf.json does not hold: host and CPU apart, and each layer in numbers."""
    return {
        "board": e.board.name,
        "latency_ms": round(e.latency_us / 1e3, 4),
        "bpu_ms": round(e.bpu_us / 1e3, 4),
        "host_ms": round(e.host_us / 1e3, 4),
        "cpu_ms": round(e.cpu_us / 1e3, 4),
        "cpu_note": "nodes on the CPU are a rough figure: so many nanoseconds for an element that they read",
        "cpu_segments": [{"name": c.name, "nodes": list(c.nodes), "ms": (c.end - c.start) / 1e3} for c in e.cpu],
        "layers": [layer_numbers(t, e) for t in e.layers],
    }


def layer_numbers(t: Timed, e: Estimate) -> dict[str, object]:
    """A layer's figures."""
    clock = e.board.spec.clock_mhz
    peak = e.board.spec.macs_per_cycle * clock
    took = t.end - t.start
    return {
        "layer": t.work.layer,
        "kind": t.work.kind,
        "engine": t.work.engine.name.lower(),
        "shape": list(t.work.shape),
        "macs": t.work.macs,
        "start_us": round(t.start, 3),
        "us": round(took, 3),
        "compute_us": round(t.compute, 3),
        "transfer_us": round(t.transfer, 3),
        "loaded": t.loaded,
        "stored": t.stored,
        "bound": t.bound,
        "utilization": round(t.work.macs / (peak * took), 4) if took else 0.0,
    }


def layer_row(t: Timed, e: Estimate) -> list[str]:
    """A row of `layer details`, worded as the vendor's."""
    return [
        t.work.layer,
        f"{2 * t.work.macs:,}",
        _shape(t.work.shape),
        _shape(t.work.padded_shape),
        _share(t.compute, e.bpu_us),
        _share(t.transfer, e.bpu_us),
        f"{t.start:.0f} ~ {t.end:.0f} us ({t.end - t.start:.0f})",
    ]


def _shape(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _share(us: float, whole: float) -> str:
    if us <= 0:
        return "0"
    return "<1 us" if us < 1 else f"{us:.0f} us ({100 * us / max(whole, 1e-9):.1f}% of model)"


def interval(e: Estimate) -> float:
    """The length of an interval in µs: 1, 2 or 5 times a power of ten, so that there are at most INTERVALS."""
    least = max(run_end(e), 1.0) / INTERVALS
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least)


def run_end(e: Estimate) -> float:
    """When the last engine stops, in µs."""
    return max([0.0, *(t.end for t in e.layers), *(c.end for c in e.cpu)])


def spans(e: Estimate, engines: Iterable[str]) -> list[tuple[Span, Timed]]:
    """The spans of these engines with their layers."""
    wanted = set(engines)
    return [(s, t) for t in e.layers for s in t.spans if s.engine in wanted]


def busy(e: Estimate, step: float, engines: Iterable[str]) -> list[float]:
    """The share of each interval in which one of `engines` works."""
    return [
        round(min(1.0, us / step), 3) for us in _spread(e, step, [(s, s.end - s.start) for s, _ in spans(e, engines)])
    ]


def bandwidth(e: Estimate, step: float, engine: str) -> list[int]:
    """Megabytes a second in each interval that `engine` (`load` or `store`) moves."""
    found = [(s, (s.end - s.start) * e.board.rates.ddr) for s, _ in spans(e, [engine])]
    return [round(b / step * 1e6 / MIB) for b in _spread(e, step, found)]


def _spread(e: Estimate, step: float, amounts: Iterable[tuple[Span, float]]) -> list[float]:
    """Amounts that run evenly over their spans, summed by interval."""
    count = max(1, math.ceil(run_end(e) / step))
    out = [0.0] * count
    for span, amount in amounts:
        length = span.end - span.start
        if length <= 0:
            continue
        for i in range(int(span.start / step), min(count, int(span.end / step) + 1)):
            part = min(span.end, (i + 1) * step) - max(span.start, i * step)
            out[i] += amount * max(0.0, part) / length
    return out
