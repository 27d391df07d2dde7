"""Paired rounds: in each round every contender runs one burst, one after the other; ratios are taken within a round."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.nets import Net

TRIES = 4  # bursts during which the system took the CPU away are run again, this often
DISTURBED = 3  # involuntary context switches of one burst
OURS = "hbc_s8s8"


@dataclass
class Contest:
    """All rounds of one network at one number of threads, in seconds per run; `peak` in operations per second.

    Ratios are to the contender `ours`.
    """

    net: str
    threads: int
    times: dict[str, list[float]] = field(default_factory=dict)
    peak: list[float] = field(default_factory=list)
    macs: int = 0
    batch: int = 1
    failed: dict[str, str] = field(default_factory=dict)  # who could not run it
    ours: str = OURS

    def median(self, name: str) -> float:
        """Median seconds."""
        return float(np.median(self.times[name]))

    def ratio(self, name: str) -> tuple[float, float, float]:
        """How many times as long as hbc takes: lower quartile, median, upper quartile of the paired ratios."""
        low, middle, high = np.percentile(np.array(self.times[name]) / np.array(self.times[self.ours]), [25, 50, 75])
        return float(low), float(middle), float(high)

    @property
    def peak_share(self) -> float | None:
        """The part of the core's VNNI peak that hbc reaches, paired; None where it wasn't measured."""
        if not self.peak or not self.macs or self.threads != 1:
            return None
        return float(np.median(2 * self.macs / np.array(self.times[self.ours]) / np.array(self.peak)))


class Worker:
    """A contender's process."""

    def __init__(self, name: str, net: Net, threads: int) -> None:
        command = [sys.executable, "-m", "bench.worker", name, pickle.dumps(net).hex(), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.read()  # it is ready

    def read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args[3:4])} ended with {self.process.wait()}")  # type: ignore[index]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str = "go") -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read()

    def burst(self) -> float:
        """Seconds per run, of an undisturbed burst where there is one."""
        for _ in range(TRIES):
            answer = self.ask()
            if answer["switches"] <= DISTURBED:
                break
        return answer["median"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def contest(net: Net, names: Sequence[str], threads: int, rounds: int, *, peak: bool) -> Contest:
    """Run `rounds` rounds; the first of `names` is the one that the others are compared with."""
    workers: dict[str, Worker] = {}
    roof = None
    result = Contest(net.name, threads, {n: [] for n in names}, macs=net.macs, ours=names[0], batch=net.batch)
    try:
        for name in names:
            try:
                workers[name] = Worker(name, net, threads)
            except RuntimeError as err:
                if name == result.ours:
                    raise
                result.failed[name] = str(err)
                del result.times[name]
                continue
        roof = Worker("peak", net, 1) if peak else None
        for _ in range(rounds):
            before = roof.ask(str(result_seconds(result)))["ops"] if roof else 0.0
            for name, worker in workers.items():
                result.times[name].append(worker.burst())
                if name == result.ours and roof:
                    result.peak.append((before + roof.ask(str(result_seconds(result)))["ops"]) / 2)
    finally:
        for worker in (*workers.values(), *([roof] if roof else [])):
            worker.close()
    return result


def result_seconds(result: Contest) -> float:
    """About as long as one burst of ours: what the peak loop runs for, so that the core's clock is the same."""
    own = result.times.get(result.ours)
    return min(0.2, max(0.005, 6 * own[-1])) if own else 0.02
