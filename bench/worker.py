"""One contender in a process of its own: says when it is ready, then times a burst per line of input."""

from __future__ import annotations

import json
import pickle
import resource
import sys
import time
from collections.abc import Callable

BURST = 5  # timed runs behind one untimed one, which brings the caches back


def main() -> None:
    """argv: contender, network (pickled, hex), threads."""
    name, blob, threads = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    if name == "peak":
        from bench.peak import vnni_peak

        peak = vnni_peak()
        assert peak is not None
        say({})
        for line in sys.stdin:
            say({"ops": peak.ops(float(line))})
        return
    from bench.contenders import CONTENDERS, LIMITED

    every = {**CONTENDERS, **{n: f for own in LIMITED.values() for n, f in own.items()}}
    run = every[name](pickle.loads(blob), threads)
    run()
    say({})  # ready
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


def say(what: dict[str, float]) -> None:
    """One line of JSON."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
