"""An estimate as one HTML page that needs nothing else: no network, no other file.

Names come from a model file, so they are text everywhere: escaped here, and `textContent` in the script.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from hbc.words import human_bytes, human_count, printable
from hbc_runtime.program import Model

from .estimate import Estimate
from .fields import COMPUTING, bandwidth, busy, interval, layer_numbers, run_end
from .graph import graph_of
from .stream import Replay, sampled

SAMPLES = 400  # of the memory over time
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SECTIONS = (
    ("timeline", "Timeline", "Each lane is an engine. Wheel to zoom, drag to move, double click for the whole run."),
    ("commands", "Command stream", "The tiler's commands replayed at the same rates: engines side by side. {stream}"),
    ("alive", "On-chip memory over time", "Bytes of tiles that are written and still to be read, in that replay."),
    ("table", "Layers", "Click a column to sort by it."),
    ("roofline", "Roofline", "Each dot is a layer: operations for each DDR byte, and what it reaches of the roof."),
    ("traffic", "DDR traffic", "Megabytes a second over the run."),
    (
        "memory",
        "On-chip memory",
        "Bytes that somebody still needs beside each layer. Red may have to go to DDR, which is not charged here.",
    ),
    (
        "graph",
        "Model graph",
        "Every instruction in running order: green on the BPU, grey at the border, red on the CPU.",
    ),
)


STREAM = ("commands", "alive")  # sections of a replayed command stream


def page(e: Estimate, model: Model, stream: Replay | None = None) -> str:
    """The whole document; with `stream` what its commands do and what they keep on chip."""
    title = f"hbc perf: {_text(e.model)} on {_text(e.board.name)}"
    parts = [
        f"<header><h1>{title}</h1></header>",
        f"<section><h2>Summary</h2><table class=sum>{_summary(e)}</table></section>",
        *(_section(i, h, t, stream) for i, h, t in SECTIONS),
        f'<script type="application/json" id="data">{_data(e, model, stream)}</script>',
        f"<script>{_file('page.js')}</script>",
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{_file('page.css')}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _section(name: str, heading: str, text: str, stream: Replay | None) -> str:
    if name in STREAM and stream is None:
        return ""
    said = text.format(stream="" if stream is None else _text(stream_line(stream)))
    return f'<section><h2>{heading}</h2><p>{said}</p><div id="{name}" class=plot></div></section>'


def stream_line(stream: Replay) -> str:
    """A replay in a sentence."""
    busy = ", ".join(f"{engine} {100 * share:.0f} %" for engine, share in stream.busy().items() if share >= 0.005)
    return (
        f"{stream.commands} commands take {stream.end / 1e3:.3f} ms (busy: {busy}), load {human_bytes(stream.loaded)} "
        f"and store {human_bytes(stream.stored)}, and use {human_bytes(stream.on_chip_bytes)} on chip."
    )


def summary_rows(e: Estimate) -> list[tuple[str, str]]:
    """The figures that stand first, on the terminal and on the page."""
    peak = e.board.spec.macs_per_cycle * e.board.spec.clock_mhz
    rows = [
        ("board", f"{e.board.title} ({e.board.name}), march {e.march}"),
        ("latency, one thread", f"{e.latency_us / 1e3:.3f} ms"),
        ("of it on the BPU", f"{e.bpu_us / 1e3:.3f} ms"),
        ("of it on the host: dequantise, copy, hand over", f"{e.host_us / 1e3:.3f} ms"),
        ("FPS where threads keep the BPU busy", f"{e.fps:.1f}"),
        ("MACs", human_count(e.macs)),
        ("MACs of the peak while the BPU works", f"{100 * e.macs / (peak * max(e.bpu_us, 1e-9)):.1f} %"),
        ("DDR loaded / stored per run", f"{human_bytes(e.loaded)} / {human_bytes(e.stored)}"),
    ]
    if e.cpu_us:
        nodes = len(e.cpu) or "some tables"
        rows.insert(4, (f"on the CPU ({nodes} segments), a rough figure", f"{e.cpu_us / 1e3:.3f} ms"))
    return rows


def _summary(e: Estimate) -> str:
    return "".join(f"<tr><th>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in summary_rows(e))


def _data(e: Estimate, model: Model, stream: Replay | None) -> str:
    """What the script draws, as JSON that cannot end its element."""
    step = interval(e)
    data = {
        "end": run_end(e),
        "step": step,
        "layers": [layer_numbers(t, e) for t in e.layers],
        "spans": [[s.engine, s.start, s.end, i] for i, t in enumerate(e.layers) for s in t.spans]
        + [["cpu", c.start, c.end, c.name] for c in e.cpu],
        "load": bandwidth(e, step, "load"),
        "store": bandwidth(e, step, "store"),
        "busy": busy(e, step, COMPUTING),
        "peak": 2 * e.board.spec.macs_per_cycle * e.board.spec.clock_mhz / 1e3,  # GOPS
        "ddr": e.board.ddr_peak / 1e3,  # GB/s
        "onchip": e.board.spec.on_chip_bytes,
        "nodes": [[n.name, n.kind, n.device, n.inputs, n.row, n.column, n.live] for n in graph_of(model)],
    }
    if stream is not None:
        ran = [
            [r.engine, r.start, r.end, r.layer + (f": {r.count} commands" if r.count > 1 else "")] for r in stream.ran
        ]
        data["stream"] = {"end": stream.end, "ran": ran, "memory": sampled(stream.memory, stream.end, SAMPLES)}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
