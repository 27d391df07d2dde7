"""The contests as a table, as JSON and as a chart."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.measure import Contest
from bench.startup import Start


def machine() -> str:
    """The CPU in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names)} cores"


def table(contests: Sequence[Contest]) -> str:
    """One line per network and number of threads, in Markdown: hbc's time, and how many times as long others take."""
    ours = {c.ours for c in contests}
    others = [n for n in dict.fromkeys(n for c in contests for n in c.times) if n not in ours]
    head = ["network", "batch", "threads", "hbc, ms", *(f"× {n}" for n in others), "share of VNNI peak"]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for c in contests:
        cells = [c.net, str(c.batch), str(c.threads), f"{1e3 * c.median(c.ours):.3f}"]
        cells += [_ratio(c, n) for n in others]
        cells.append("–" if c.peak_share is None else f"{100 * c.peak_share:.0f} %")
        lines.append("| " + " | ".join(cells) + " |")
    for threads, batch in sorted({(c.threads, c.batch) for c in contests}):
        own = [c for c in contests if (c.threads, c.batch) == (threads, batch)]
        means = [
            f"{name} {np.exp(np.mean([np.log(c.ratio(name)[1]) for c in own if name in c.times])):.2f}"
            for name in others
            if any(name in c.times for c in own)
        ]
        lines.append(
            f"\ngeometric means, {threads} thread{'s' if threads > 1 else ''}, batch {batch}: {', '.join(means)}"
        )
    return "\n".join(lines)


def _ratio(c: Contest, name: str) -> str:
    if name in c.failed:
        return "fails"
    return "{1:.2f} ({0:.2f}–{2:.2f})".format(*c.ratio(name)) if name in c.times else "–"


def write_json(contests: Sequence[Contest], starts: Sequence[Start], path: Path) -> None:
    """Every single time."""
    head = {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
    path.write_text(
        json.dumps(
            {**head, "contests": [asdict(c) for c in contests], "starts": [asdict(s) for s in starts]}, indent=1
        ),
        encoding="utf-8",
    )


def write_chart(contests: Sequence[Contest], path: Path) -> None:
    """Bars: how many times as long as hbc each engine takes, a group per network."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    own = [c for c in contests if (c.threads, c.batch) == (1, 1)] or list(contests)
    ours = {c.ours for c in own}
    others = [n for n in dict.fromkeys(n for c in own for n in c.times) if n not in ours]
    figure, axes = plt.subplots(figsize=(1.6 + 1.5 * len(own), 4))
    width = 0.8 / max(1, len(others))
    for i, name in enumerate(others):
        at = [x + (i - len(others) / 2 + 0.5) * width for x, c in enumerate(own) if name in c.times]
        axes.bar(at, [c.ratio(name)[1] for c in own if name in c.times], width, label=name)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_xticks(range(len(own)), [c.net for c in own], rotation=20, ha="right")
    axes.set_ylabel("times as long as hbc")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
