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
from importlib import import_module
from pathlib import Path

import numpy as np

ENGINES = {  # (who runs it, the form that it opens, what is imported before)
    "hbc, code from nothing": (
        "hbc_s8s8",
        "hbm_s8s8",
        ("hbc_runtime.session", "hbc_runtime.jit", "hbc_runtime.jit.assembly"),
    ),
    "hbc, code kept": ("hbc_s8s8", "hbm_s8s8", ("hbc_runtime.session", "hbc_runtime.jit")),
    "ONNX Runtime": ("ort_u8s8", "u8s8", ("onnxruntime",)),
    "OpenVINO": ("openvino_u8s8", "u8s8", ("openvino",)),
}
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
    program = files["hbm_s8s8"]
    with tempfile.TemporaryDirectory() as kept:
        time.sleep(max(0.0, SETTLED - (time.time() - program.stat().st_mtime)))
        for number in range(-1, rounds):  # the first round fills the caches
            for one in found:
                path = files[ENGINES[one.engine][1]]
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


@dataclass(frozen=True)
class _Net:
    """A network as contenders want it, without the packages that read models."""

    files: dict[str, Path]
    inputs: dict[str, tuple[int, ...]]

    def feeds(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, np.float32) for name, shape in self.inputs.items()}


def main() -> None:
    """One process."""
    from bench.contenders import CONTENDERS

    who, form, modules = ENGINES[sys.argv[1]]
    net = _Net({form: Path(sys.argv[2]), form.removeprefix("hbm_"): Path(sys.argv[2])}, json.loads(sys.argv[3]))
    for module in modules:
        import_module(module)
    start = time.perf_counter()
    run = CONTENDERS[who](net, 1)
    opening = time.perf_counter() - start
    run()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    print(json.dumps({"opening": opening, "resident": resident}), flush=True)


if __name__ == "__main__":
    main()
