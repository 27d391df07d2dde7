"""What exact forward costs in training: a QAT step in exact forward beside the same step with plain fake-quant.

`python -m bench.qat` (needs hbc[torch]). A step is forward, backward and the optimizer's. Float, plain and exact steps
take turns; ratios are taken within a turn. With one thread it is the CPU's time that counts, so that other processes
disturb little; with more it is the clock's.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.qat_nets import NETS
from bench.report import machine
from hbc.quantization import QAT, ModuleNameSetter, calibrate, prepare, set_fake_quantize, set_forward, set_march
from hbc.quantization.pytree import walk

WARM = 2  # turns that aren't counted


@dataclass(frozen=True)
class Steps:
    """Seconds of every step of one network."""

    net: str
    parameters: int
    times: dict[str, list[float]]

    def ratio(self, name: str = "exact", base: str = "plain") -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile of the ratios within a turn."""
        low, middle, high = np.percentile(np.array(self.times[name]) / np.array(self.times[base]), [25, 50, 75])
        return float(low), float(middle), float(high)


def stepper(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """One step of training on the sum of the squares of the heads."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def step() -> None:
        loss = sum(leaf.square().mean() for _, leaf in walk(model(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def trained(name: str, dtype: str = "int8", seed: int = 0) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """The network as it is, prepared in plain and prepared in exact forward, each in training mode, and a batch.

    `dtype`: of all activations; weights are int8.
    """
    torch.manual_seed(seed)
    kind, shape = NETS[name]
    model, x = kind().eval(), torch.randn(shape)
    prepared = prepare(model, (x,), ModuleNameSetter({"": dtype}) if dtype != "int8" else None)
    calibrate(prepared, [x], progress=False)
    set_fake_quantize(prepared, QAT)
    models = {"float": model, "plain": prepared, "exact": copy.deepcopy(prepared)}
    for mode in ("plain", "exact"):
        set_forward(models[mode], mode)  # type: ignore[arg-type]
    return {mode: (m.train(), x) for mode, m in models.items()}


def measure(name: str, turns: int, dtype: str = "int8") -> Steps:
    """Turns of one step of each kind."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    models = trained(name, dtype)
    steps = {mode: stepper(*pair) for mode, pair in models.items()}
    times: dict[str, list[float]] = {mode: [] for mode in steps}
    for turn in range(turns + WARM):
        for mode, step in steps.items():
            start = clock()
            step()
            if turn >= WARM:
                times[mode].append(clock() - start)
    return Steps(name, sum(p.numel() for p in models["float"][0].parameters()), times)


def table(found: list[Steps]) -> str:
    """A line per network, in Markdown."""
    lines = ["| network | float, ms | plain, ms | exact, ms | exact / plain (quartiles) |", "| --- |" + " ---: |" * 4]
    for s in found:
        cells = [f"{1e3 * float(np.median(s.times[mode])):.1f}" for mode in ("float", "plain", "exact")]
        lines.append(f"| {s.net} | {' | '.join(cells)} | " + "{1:.2f} ({0:.2f}–{2:.2f}) |".format(*s.ratio()))
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.qat", description=__doc__)
    parser.add_argument("nets", nargs="*", help=f"among {', '.join(NETS)}; all by default")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--dtype", choices=["int8", "int16"], default="int8", help="of all activations")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--march", default="nash-e")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = [n for n in options.nets if n not in NETS]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(NETS)}")
    torch.set_num_threads(options.threads)
    set_march(options.march)
    found = [measure(name, options.turns, options.dtype) for name in options.nets or NETS]
    head = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "threads": options.threads, "dtype": options.dtype}
    how = f"{options.dtype}, {options.threads} threads, {options.turns} turns"
    print(f"{head['date']}, {head['machine']}, {how}\n\n{table(found)}")
    if options.json:
        options.json.write_text(json.dumps({**head, "steps": [asdict(s) for s in found]}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
