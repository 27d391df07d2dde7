"""One contender in a process of its own: says `ready` with what loading cost, then times a burst per line of input."""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

BURST = 5  # timed runs behind one untimed one, which brings the caches back


def main() -> None:
    """argv: contender, network (pickled, hex), threads."""
    start = time.perf_counter()
    name, blob, threads = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    if name == "peak":
        from bench.peak import vnni_peak

        peak = vnni_peak()
        assert peak is not None
        say({"ready": 0.0})
        for line in sys.stdin:
            say({"ops": peak.ops(float(line))})
        return
    from bench.contenders import CONTENDERS, LIMITED

    every = {**CONTENDERS, **{n: f for own in LIMITED.values() for n, f in own.items()}}
    run = every[name](pickle.loads(blob), threads)
    run()
    say({"ready": time.perf_counter() - start, "resident_mb": resident_mb()})
    for _ in range(5):
        run()
    for _ in sys.stdin:
        say(burst(run))


def burst(run: Callable[[], object]) -> dict[str, float]:
    """The median and least time of a burst, and how often the system took the CPU away meanwhile."""
    taken = switches()
    run()
    times = []
    for _ in range(BURST):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"median": sorted(times)[BURST // 2], "least": min(times), "switches": switches() - taken}


def switches() -> int:
    """Involuntary context switches so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def resident_mb() -> float:
    """Resident memory now."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def say(what: dict[str, float]) -> None:
    """One line of JSON."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
