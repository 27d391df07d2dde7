"""What it costs to begin: making code, loading it, the first result, memory. Each in fresh processes, in turns.

As a program (`python -m bench.startup ENGINE FILE FEEDS`) it is one such process: it opens the model, runs it once and
prints what that took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ENGINES = ("hbc, code from nothing", "hbc, code kept", "ONNX Runtime", "OpenVINO")
SETTLED = 3.0  # seconds after which hbc takes a file for one that nobody is writing any more


@dataclass
class Start:
    """Medians of one engine on one network: milliseconds, megabytes."""

    net: str
    engine: str
    opening: list[float] = field(default_factory=list)  # with everything imported
    first: list[float] = field(default_factory=list)  # from the start of the process to the first result
    resident: list[float] = field(default_factory=list)


def starts(net: str, files: dict[str, Path], inputs: dict[str, tuple[int, ...]], rounds: int) -> list[Start]:
    """`rounds` processes per engine. `files` are the network's, by form."""
    found = [Start(net, e) for e in ENGINES]
    program = files["hbm_s8s8" if "hbm_s8s8" in files else "hbm_u8s8"]
    with tempfile.TemporaryDirectory() as kept:
        time.sleep(max(0.0, SETTLED - (time.time() - program.stat().st_mtime)))
        for number in range(-1, rounds):  # the first round fills the caches
            for one in found:
                path = program if one.engine.startswith("hbc") else files["u8s8"]
                cache = {"HBC_CACHE": "off"} if one.engine.endswith("nothing") else {"HBC_CACHE_DIR": kept}
                took = _process(one.engine, path, inputs, {**os.environ, **cache})
                if number >= 0:
                    one.opening.append(took["opening"])
                    one.first.append(took["first"])
                    one.resident.append(took["resident"])
    return found


def table(found: Sequence[Start]) -> str:
    """One line per network and engine, in Markdown."""
    lines = [
        "| network | engine | opening, ms | process start to first result, ms | resident then, MB |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for s in found:
        cells = [f"{1e3 * np.median(s.opening):.1f}", f"{1e3 * np.median(s.first):.0f}", f"{np.median(s.resident):.0f}"]
        lines.append(f"| {s.net} | {s.engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _process(
    engine: str, path: Path, inputs: dict[str, tuple[int, ...]], environment: dict[str, str]
) -> dict[str, float]:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "bench.startup", engine, str(path), json.dumps(inputs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first = time.perf_counter() - begin
    if not line:
        raise RuntimeError(f"{engine} failed on {path}")
    return {**json.loads(line), "first": first}


def main() -> None:
    """One process."""
    engine, path, shapes = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    feeds = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    if engine.startswith("hbc"):
        from importlib import import_module

        from hbc_runtime import Session

        import_module("hbc_runtime.jit")  # opening is timed with everything imported
        if engine.endswith("nothing"):
            import_module("hbc_runtime.jit.assembly")

        start = time.perf_counter()
        session = Session(path)
        opening = time.perf_counter() - start
        session.run(feeds)
    elif engine == "ONNX Runtime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        start = time.perf_counter()
        other = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        opening = time.perf_counter() - start
        other.run(None, feeds)
    else:
        import openvino as ov

        start = time.perf_counter()
        core = ov.Core()
        model = core.read_model(path)
        model.reshape(shapes)
        hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(model, "CPU", hints).create_infer_request()
        opening = time.perf_counter() - start
        request.infer(feeds)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    print(json.dumps({"opening": opening, "resident": resident}), flush=True)


if __name__ == "__main__":
    main()
